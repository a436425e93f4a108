//! Windows, through shared memory and over TCP.

use crate::blocked::{Callers, await_blocked, this_thread};
use crate::rank_threads::{bootstrap_file, run_ranks};
use ringfold::{Bootstrap, Error, Group, Media, Memory, SharedMemory, View, Window, WindowMemory};
use ringfold_lab::socket::free_port;
use ringfold_lab::{Process, Usage};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// How long a rank may take to notice the end of another. The goal is a tenth of a second.
const SOON: Duration = Duration::from_secs(5);

/// Runs all ranks of a group as threads.
fn ranks<R: Send>(world: usize, media: Media, run: impl Fn(Group) -> R + Sync) -> Vec<R> {
    run_ranks(world, |builder| builder.media(media).timeout(LONG).connect_timeout(LONG), run)
}

/// Which memory the ranks expose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Shared memory on all ranks, which is mapped.
    Mapped,
    /// All ranks use TCP.
    Tcp,
    /// The ranks are on one host, but expose private memory.
    Private,
    /// Even ranks expose private memory, odd ranks shared memory.
    Mixed,
}

const KINDS: [Kind; 4] = [Kind::Mapped, Kind::Tcp, Kind::Private, Kind::Mixed];

impl Kind {
    fn media(self) -> Media {
        if self == Self::Tcp { Media::Tcp } else { Media::Auto }
    }

    fn is_mapped(self, rank: usize) -> bool {
        self == Self::Mapped || self == Self::Mixed && rank % 2 == 1
    }

    fn memory(self, rank: usize, bytes: usize) -> WindowMemory {
        if self.is_mapped(rank) || self == Self::Tcp {
            SharedMemory::create(bytes).unwrap().into()
        } else {
            Memory::zeroed(bytes).into()
        }
    }

    fn open(self, group: &Group, bytes: usize) -> Window {
        group.window(self.memory(group.rank(), bytes), &[group.rank() as u8; 3]).unwrap()
    }
}

fn everywhere(run: impl Fn(Kind, Group) + Sync) {
    for kind in KINDS {
        for world in 1..=4 {
            ranks(world, kind.media(), |group| run(kind, group));
        }
    }
}

fn own(window: &Window, bytes: usize) -> Vec<u8> {
    let mut own = vec![0; bytes];
    window.read(window.group().rank(), 0, &mut own).unwrap();
    own
}

#[test]
fn data_is_there_when_its_signal_arrives() {
    everywhere(|kind, group| {
        let (me, world) = (group.rank(), group.world());
        let window = kind.open(&group, 100 * world);
        for rank in 0..world {
            assert_eq!(window.bytes(rank).unwrap(), 100 * world);
            assert_eq!(window.about(rank).unwrap(), [rank as u8; 3]);
            assert_eq!(window.is_mapped(rank).unwrap(), rank == me || kind.is_mapped(rank));
            window.put(&[me as u8 + 1; 100], rank, 100 * me, None).unwrap();
            window.signal(rank, None).unwrap();
        }
        for rank in 0..world {
            window.wait_signal(rank, None).unwrap();
        }
        let expected: Vec<u8> = (0..world).flat_map(|rank| [rank as u8 + 1; 100]).collect();
        assert_eq!(own(&window, 100 * world), expected);
        group.barrier().unwrap();
        for rank in (0..world).filter(|rank| window.is_mapped(*rank).unwrap()) {
            let mut theirs = vec![0; 100 * world];
            window.read(rank, 0, &mut theirs).unwrap();
            assert_eq!(theirs, expected);
        }
        window.close().unwrap();
    });
}

/// Another process could truncate the file, which would kill the processes that have it mapped by SIGBUS.
#[test]
fn memory_in_an_unsealed_file_is_written_over_tcp() {
    ranks(2, Media::Auto, |group| {
        let path = std::env::temp_dir().join(format!("ringfold-{}-{}", std::process::id(), group.rank()));
        let file = std::fs::File::create_new(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(100).unwrap();
        let memory = SharedMemory::of(Memory::zeroed(100), file.into(), 0);
        let window = group.window(memory, &[]).unwrap();
        let other = 1 - group.rank();
        assert!(!window.is_mapped(other).unwrap());
        window.put(b"hello", other, 10, None).unwrap();
        window.signal(other, None).unwrap();
        window.wait_signal(other, None).unwrap();
        assert_eq!(own(&window, 100)[10..15], *b"hello");
        window.close().unwrap();
    });
}

#[test]
fn a_signal_arrives_after_a_large_put() {
    for kind in KINDS {
        ranks(2, kind.media(), |group| {
            const BYTES: usize = 3 << 20;
            let window = kind.open(&group, BYTES);
            for round in 1..=20_u8 {
                if group.rank() == 0 {
                    window.put(&vec![round; BYTES], 1, 0, None).unwrap();
                    window.signal(1, None).unwrap();
                    window.wait_signal(1, None).unwrap();
                } else {
                    window.wait_signal(0, None).unwrap();
                    assert!(own(&window, BYTES).iter().all(|byte| *byte == round), "{kind:?} {round}");
                    window.signal(0, None).unwrap();
                }
            }
            window.close().unwrap();
        });
    }
}

#[test]
fn each_wait_consumes_one_signal_of_one_window() {
    for kind in KINDS {
        ranks(2, kind.media(), |group| {
            let (one, other) = (kind.open(&group, 8), kind.open(&group, 8));
            let peer = 1 - group.rank();
            for _ in 0..3 {
                one.signal(peer, None).unwrap();
            }
            other.signal(peer, None).unwrap();
            for _ in 0..3 {
                one.wait_signal(peer, None).unwrap();
            }
            let late = one.wait_signal(peer, Some(Duration::from_millis(20))).unwrap_err();
            assert!(
                matches!(&late, Error::TimedOut(text) if text.contains(&format!("rank {peer}"))),
                "{late}"
            );
            other.wait_signal(peer, None).unwrap();
            group.barrier().unwrap();
            // A late signal is not lost.
            one.signal(peer, None).unwrap();
            one.wait_signal(peer, None).unwrap();
            // A dropped wait consumes its signal.
            drop(one.begin_wait_signal(peer, None).unwrap());
            let second = one.begin_wait_signal(peer, None).unwrap();
            one.signal(peer, None).unwrap();
            // A signal of the other window arrives after it.
            other.signal(peer, None).unwrap();
            other.wait_signal(peer, None).unwrap();
            assert!(!second.is_done());
            assert_eq!(second.wait_for(Duration::from_millis(10)), None);
            group.barrier().unwrap();
            one.signal(peer, None).unwrap();
            second.wait().unwrap();
            assert!(second.is_done() && second.wait().is_ok());
        });
    }
}

#[test]
fn a_rank_signals_itself() {
    everywhere(|kind, group| {
        let (window, me) = (kind.open(&group, 8), group.rank());
        window.signal(me, None).unwrap();
        window.signal(me, None).unwrap();
        window.wait_signal(me, None).unwrap();
        window.wait_signal(me, None).unwrap();
        assert!(window.wait_signal(me, Some(Duration::from_millis(5))).is_err());
    });
}

#[test]
fn sizes_may_differ_and_be_zero() {
    everywhere(|kind, group| {
        let (me, world) = (group.rank(), group.world());
        let window = kind.open(&group, me * 10);
        for rank in 0..world {
            assert_eq!(window.bytes(rank).unwrap(), rank * 10);
            window.put(&vec![7; rank * 10], rank, 0, None).unwrap();
            let error = window.put(&[1], rank, rank * 10, None).unwrap_err();
            let window_name = format!("window of rank {rank}");
            assert!(
                error.to_string().contains("past the end") && error.to_string().contains(&window_name),
                "{error}"
            );
            assert!(window.put(&[1], rank, usize::MAX, None).is_err());
            window.signal(rank, None).unwrap();
            window.wait_signal(rank, None).unwrap();
        }
        assert_eq!(own(&window, me * 10), vec![7; me * 10]);
        for error in [
            window.put(&[], world, 0, None).unwrap_err(),
            window.signal(world, None).unwrap_err(),
            window.wait_signal(world, None).unwrap_err(),
        ] {
            assert!(error.to_string().contains(&format!("rank {world} is out of range")), "{error}");
        }
        window.close().unwrap();
    });
}

#[test]
fn asynchronous_puts_complete() {
    for kind in KINDS {
        ranks(2, kind.media(), |group| {
            let bytes = 1 << 20;
            let (window, peer) = (kind.open(&group, 16 * bytes), 1 - group.rank());
            let begin = |piece: usize| {
                window.begin_put(View::from(vec![piece as u8 + 1; bytes]), peer, piece * bytes, None).unwrap()
            };
            let works: Vec<_> = (0..16).map(begin).collect();
            window.signal(peer, None).unwrap();
            for work in works.iter().rev() {
                work.wait().unwrap();
                assert!(work.is_done());
            }
            window.wait_signal(peer, None).unwrap();
            let own = own(&window, 16 * bytes);
            assert!(own.chunks(bytes).enumerate().all(|(i, piece)| piece.iter().all(|b| *b == i as u8 + 1)));
            window.close().unwrap();
        });
    }
}

#[test]
fn closing_a_window_completes_all_puts_and_frees_its_memory() {
    for kind in KINDS {
        ranks(3, kind.media(), |group| {
            let mut first = Usage::of_this_process().unwrap().descriptors;
            for round in 0..30_u8 {
                let window = kind.open(&group, 300_000);
                for rank in 0..3 {
                    window.put(&[round; 100_000], rank, group.rank() * 100_000, None).unwrap();
                    // No rank waits for these.
                    window.signal(rank, None).unwrap();
                }
                window.close().unwrap();
                assert!(own(&window, 300_000).iter().all(|byte| *byte == round), "{kind:?}");
                drop(window);
                group.barrier().unwrap();
                if round == 2 {
                    first = Usage::of_this_process().unwrap().descriptors;
                }
                group.barrier().unwrap();
            }
            let last = Usage::of_this_process().unwrap().descriptors;
            // Other tests run beside this one.
            assert!(last < first + 300, "{kind:?}: {first} descriptors became {last}");
        });
    }
}

#[test]
fn many_threads_may_wait_put_and_signal() {
    for kind in KINDS {
        ranks(2, kind.media(), |group| {
            let (window, peer) = (kind.open(&group, 4000), 1 - group.rank());
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let window = &window;
                    scope.spawn(move || {
                        for _ in 0..500 {
                            window.put(&[thread as u8; 1000], peer, thread * 1000, None).unwrap();
                            window.signal(peer, None).unwrap();
                            window.wait_signal(peer, None).unwrap();
                        }
                    });
                }
            });
            assert!(window.wait_signal(peer, Some(Duration::ZERO)).is_err());
            let own = own(&window, 4000);
            assert!(own.chunks(1000).enumerate().all(|(i, piece)| piece.iter().all(|b| *b == i as u8)));
            window.close().unwrap();
        });
    }
}

#[test]
fn signals_before_leaving_count_and_later_waits_fail() {
    for kind in KINDS {
        ranks(3, kind.media(), |group| {
            let (window, silent) = (kind.open(&group, 10), kind.open(&group, 10));
            if group.rank() == 1 {
                window.put(&[9; 5], 0, 0, None).unwrap();
                window.signal(0, None).unwrap();
                return;
            }
            if group.rank() == 0 {
                // This wait ends when rank 1 has left.
                silent.wait_signal(1, None).unwrap_err();
                window.wait_signal(1, None).unwrap();
                assert_eq!(own(&window, 10)[..5], [9; 5]);
            }
            let begun = Instant::now();
            let errors = [window.wait_signal(1, None).unwrap_err(), window.signal(1, None).unwrap_err()];
            assert!(begun.elapsed() < SOON, "{kind:?}");
            for error in errors {
                assert!(matches!(error, Error::GroupFailed(_)), "{error}");
                assert!(error.to_string().contains("rank 1"), "{error}");
            }
            // The other ranks can still communicate.
            let other = 2 - group.rank();
            window.put(&[3; 5], other, 5, None).unwrap();
            window.signal(other, None).unwrap();
            window.wait_signal(other, None).unwrap();
            assert_eq!(own(&window, 10)[5..], [3; 5]);
        });
    }
}

#[test]
fn close_and_abort_end_a_wait_on_another_thread() {
    for kind in KINDS {
        for gives_up in [true, false] {
            ranks(2, kind.media(), |group| {
                let (window, peer) = (kind.open(&group, 10), 1 - group.rank());
                if group.rank() == 0 {
                    // The other rank has opened the window, and is in no call.
                    window.wait_signal(peer, None).unwrap();
                    let callers = Callers::default();
                    std::thread::scope(|scope| {
                        let waiting = scope.spawn(|| {
                            callers.add();
                            window.wait_signal(peer, None).unwrap_err()
                        });
                        callers.await_waiting(1);
                        let begun = Instant::now();
                        if gives_up {
                            group.abort()
                        } else {
                            group.close()
                        }
                        let error = waiting.join().unwrap();
                        assert!(begun.elapsed() < SOON);
                        assert_eq!(matches!(error, Error::Left), !gives_up, "{error}");
                    });
                    assert!(window.put(&[1], peer, 0, None).is_err());
                } else {
                    let signalled = window.signal(peer, None);
                    let error = signalled.and_then(|()| window.wait_signal(peer, None)).unwrap_err();
                    assert!(error.to_string().contains("rank 0"), "{error}");
                }
            });
        }
    }
}

#[test]
fn invalid_connections_to_the_port_do_no_harm() {
    let at = bootstrap_file();
    let ports: Vec<u16> = (0..2).map(|_| free_port()).collect();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (at, ports) = (at.clone(), &ports);
            scope.spawn(move || {
                let builder = Group::builder().rank(rank).world(2).bootstrap(at).media(Media::Tcp);
                let builder = builder.timeout(LONG).listen_ports(ports[rank]..=ports[rank]);
                let group = builder.connect().unwrap();
                let window = Kind::Tcp.open(&group, 1000);
                let silent: Vec<_> = (0..10).map(|_| dial(ports[1 - rank])).collect();
                for length in [1, 32, 200, 70_000] {
                    let mut hostile = dial(ports[1 - rank]);
                    // Looks like the header of a put.
                    let _ = hostile.write_all(&vec![1; length]);
                    let _ = hostile.shutdown(std::net::Shutdown::Write);
                    hostile.set_read_timeout(Some(LONG)).unwrap();
                    let mut answer = Vec::new();
                    let _ = hostile.read_to_end(&mut answer);
                    assert!(answer.len() < 1000);
                }
                group.barrier().unwrap();
                let again = Kind::Tcp.open(&group, 1000);
                for window in [&window, &again] {
                    window.put(&[5; 1000], 1 - rank, 0, None).unwrap();
                    window.signal(1 - rank, None).unwrap();
                    window.wait_signal(1 - rank, None).unwrap();
                    assert_eq!(own(window, 1000), [5; 1000]);
                }
                drop(silent);
            });
        }
    });
}

fn dial(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).unwrap()
}

/// Set for rank processes: what they do.
const ROLE: &str = "RINGFOLD_TEST_WINDOW_ROLE";

/// Not a test by itself: the tests below run it in the processes of their ranks.
#[test]
fn rank_process_main() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split_whitespace();
    let mut next = || words.next().unwrap();
    let (rank, media, does, file) = (next().parse().unwrap(), next(), next(), next());
    let kind = if media == "tcp" { Kind::Tcp } else { Kind::Mapped };
    let builder = Group::builder().rank(rank).world(3).bootstrap(Bootstrap::File(file.into()));
    let group = builder.media(kind.media()).timeout(LONG).connect_timeout(LONG).connect().unwrap();
    let window = kind.open(&group, 8 << 20);
    assert_eq!(window.is_mapped((rank + 1) % 3).unwrap(), kind == Kind::Mapped);
    println!("\nbegun {}", this_thread());
    let error = match does {
        "waits" => window.wait_signal(2, None).unwrap_err(),
        "puts" | "puts-in-time" => loop {
            let timeout = (does == "puts-in-time").then_some(Duration::from_secs(1));
            let put = window.put(&vec![1; 8 << 20], 2, 0, timeout);
            if let Err(error) = put.and_then(|()| window.signal(2, None)) {
                break error;
            }
            println!("has put");
        },
        "signals-in-time" => signal_behind_puts(&window),
        _ => loop {
            std::thread::sleep(LONG);
        },
    };
    println!("ended {} {error}", now_ns());
}

/// Fills the queue to the last rank, which the test stops after the first put, and signals it. The error of the signal.
fn signal_behind_puts(window: &Window) -> Error {
    let puts = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut works = Vec::new();
            // The first ones fill the buffers of the sockets.
            for bytes in [8 << 20; 8].into_iter().chain(std::iter::repeat(1)) {
                let Ok(work) = window.begin_put(View::from(vec![1; bytes]), 2, 0, None) else { break };
                works.push(work);
                if puts.fetch_add(1, Ordering::Relaxed) == 0 {
                    println!("has put");
                    std::thread::sleep(SOON / 5);
                }
            }
        });
        let mut before = 0;
        while before == 0 || puts.load(Ordering::Relaxed) != before {
            before = puts.load(Ordering::Relaxed);
            std::thread::sleep(SOON / 2);
        }
        window.signal(2, Some(Duration::from_secs(1))).unwrap_err()
    })
}

fn now_ns() -> u128 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos()
}

/// Three processes that have opened a window, and the thread of each. The first one waits, the second one has put, the
/// last one sleeps.
fn processes(media: &str, puts: &str) -> ([Process; 3], [String; 3]) {
    let Bootstrap::File(file) = bootstrap_file() else { unreachable!() };
    let start = |rank: usize, does: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["window::rank_process_main", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, format!("{rank} {media} {does} {}", file.display()));
        Process::spawn(format!("rank {rank}"), command).unwrap()
    };
    let mut ranks = [start(0, "waits"), start(1, puts), start(2, "sleeps")];
    let threads = ranks.each_mut().map(|rank| {
        let line = rank.wait_for_line("begun ", LONG).unwrap();
        line.rsplit_once(' ').unwrap().1.to_owned()
    });
    await_blocked(&threads[..1]);
    ranks[1].wait_for_line("has put", LONG).unwrap();
    (ranks, threads)
}

fn kill_one(media: &str, stop: bool) {
    let ([waiter, putter, mut victim], threads) = processes(media, "puts");
    if stop {
        victim.stop().unwrap();
        // Its socket buffers fill up. Mapped memory takes all puts.
        if media == "tcp" {
            await_blocked(&threads[1..2]);
        }
    }
    let killed = now_ns();
    victim.kill9().unwrap();
    for mut rank in [waiter, putter] {
        let line = rank.wait_for("the end", LONG, |line| line.starts_with("ended ")).unwrap();
        let mut words = line.splitn(3, ' ').skip(1);
        let at: u128 = words.next().unwrap().parse().unwrap();
        let error = words.next().unwrap();
        println!("{media}: after {} ms: {error}", at.saturating_sub(killed) / 1_000_000);
        assert!(error.contains("rank 2"), "{error}");
        assert!(at.saturating_sub(killed) < SOON.as_nanos(), "{line}");
    }
}

#[test]
fn waits_and_puts_end_at_once_and_name_the_killed_rank() {
    for media in ["tcp", "auto"] {
        kill_one(media, false);
    }
}

#[test]
fn waits_and_puts_end_at_once_when_a_stopped_rank_is_killed() {
    for media in ["tcp", "auto"] {
        kill_one(media, true);
    }
}

#[test]
fn a_put_that_times_out_fails_the_group_and_names_the_rank() {
    time_out("puts-in-time");
}

#[test]
fn a_signal_that_times_out_fails_the_group_and_names_the_rank() {
    time_out("signals-in-time");
}

fn time_out(does: &str) {
    let ([mut waiter, mut putter, mut stopped], _) = processes("tcp", does);
    stopped.stop().unwrap();
    let began = Instant::now();
    for rank in [&mut waiter, &mut putter] {
        let line = rank.wait_for("the end", LONG, |line| line.starts_with("ended ")).unwrap();
        assert!(line.contains("rank 2"), "{line}");
    }
    // The timeout of the call, not that of the group.
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    stopped.kill9().unwrap();
}
