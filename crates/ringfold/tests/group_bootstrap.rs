//! Forming groups: by address exchanges, listeners and splits.

use crate::blocked::Callers;
use ringfold::{AddressExchange, Bootstrap, BootstrapListener, Error, Group, GroupBuilder, Media, ReduceOp};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

/// Much longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn builder(rank: usize, world: usize, at: &Bootstrap) -> GroupBuilder {
    Group::builder().rank(rank).world(world).bootstrap(at.clone()).timeout(LONG).connect_timeout(LONG)
}

/// Runs all ranks as threads, and returns their results.
fn each<R: Send>(world: usize, run: impl Fn(usize) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = (0..world).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs the ranks of a group as threads.
fn ranks<R: Send>(world: usize, media: Media, run: impl Fn(Group) -> R + Sync) -> Vec<R> {
    let at = Bootstrap::Listener(BootstrapListener::open().unwrap());
    each(world, |rank| run(builder(rank, world, &at).media(media).connect().unwrap()))
}

/// Checks that a group works: the sum has the numbers of all ranks.
#[track_caller]
fn works(group: &Group, numbers: &[usize]) {
    assert_eq!(group.world(), numbers.len());
    let mut data = [numbers[group.rank()] as i64; 100];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    assert_eq!(data, [numbers.iter().sum::<usize>() as i64; 100]);
}

/// An address exchange in memory.
#[derive(Default)]
struct MemoryExchange {
    text: Mutex<Option<String>>,
    reads: AtomicUsize,
    is_withdrawn: AtomicBool,
}

impl MemoryExchange {
    fn with(text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { text: Mutex::new(Some(text.into())), ..Self::default() })
    }
}

impl AddressExchange for MemoryExchange {
    fn post(&self, text: &str) -> io::Result<()> {
        *self.text.lock().unwrap() = Some(text.to_owned());
        Ok(())
    }

    fn read(&self) -> io::Result<Option<String>> {
        // Reads may fail temporarily.
        if self.reads.fetch_add(1, Ordering::Relaxed) == 1 {
            return Err(io::Error::other("temporary failure"));
        }
        Ok(self.text.lock().unwrap().clone())
    }

    fn withdraw(&self) {
        self.is_withdrawn.store(true, Ordering::Relaxed);
    }

    fn describe(&self) -> String {
        "the memory exchange".into()
    }
}

#[test]
fn ranks_connect_by_an_address_exchange_with_stale_content() {
    let closed = BootstrapListener::open().unwrap().announcement();
    let silent = BootstrapListener::open().unwrap();
    let silent_text = silent.announcement();
    // A wrong secret for a listener that another group uses.
    let busy = BootstrapListener::open().unwrap();
    let last = busy.announcement();
    let mut parts: Vec<_> = last.splitn(4, ':').collect();
    parts[2] = "00112233445566778899aabbccddeeff";
    let wrong = parts.join(":");
    let ends = Arc::new(AtomicBool::new(false));
    let others = {
        let (busy, ends) = (busy.clone(), ends.clone());
        std::thread::spawn(move || {
            let hosts = Group::builder().rank(0).world(2).name("others").bootstrap(Bootstrap::Listener(busy));
            hosts.cancel_when(Duration::from_millis(5), move || ends.load(Ordering::Relaxed)).connect()
        })
    };
    for stale in ["", "not an announcement", &closed, &silent_text, &wrong] {
        let exchange = MemoryExchange::with(stale);
        let at = Bootstrap::Exchange(exchange.clone());
        each(3, |rank| {
            if rank == 0 {
                // One read fails, so another one has returned the stale content.
                let until = Instant::now() + LONG;
                while exchange.reads.load(Ordering::Relaxed) < 3 {
                    assert!(Instant::now() < until, "the exchange is not read: {stale}");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            works(&builder(rank, 3, &at).connect().unwrap(), &[1, 2, 4]);
        });
        assert!(exchange.is_withdrawn.load(Ordering::Relaxed), "{stale}");
        assert!(exchange.reads.load(Ordering::Relaxed) > 1, "{stale}");
    }
    ends.store(true, Ordering::Relaxed);
    assert_eq!(others.join().unwrap().unwrap_err(), Error::Interrupted);
}

#[test]
fn an_empty_address_exchange_is_named_in_the_error() {
    let at = Bootstrap::Exchange(Arc::new(MemoryExchange::default()));
    let error = builder(1, 2, &at).connect_timeout(Duration::from_millis(200)).connect().unwrap_err();
    assert!(error.to_string().contains("the memory exchange is empty"), "{error}");
}

#[test]
fn ranks_with_an_announcement_may_connect_before_rank_0() {
    for media in [Media::Auto, Media::Tcp] {
        let (listener, callers) = (BootstrapListener::open().unwrap(), Callers::default());
        let at = |rank: usize| match rank {
            0 => Bootstrap::Listener(listener.clone()),
            _ => Bootstrap::Announcement(listener.announcement()),
        };
        each(4, |rank| {
            if rank == 0 {
                callers.await_waiting(3);
            } else {
                callers.add();
            }
            works(&builder(rank, 4, &at(rank)).media(media).connect().unwrap(), &[1, 2, 4, 8]);
        });
    }
}

#[test]
fn invalid_bootstraps_are_rejected_at_once() {
    let bad = |result: Result<Group, Error>| match result {
        Err(Error::BadArgument(why)) => why,
        other => panic!("{other:?}"),
    };
    let at = Bootstrap::Announcement("nonsense".into());
    assert!(bad(builder(1, 2, &at).connect()).contains("announcement"));
    let at = Bootstrap::Announcement(BootstrapListener::open().unwrap().announcement());
    assert!(bad(builder(0, 2, &at).connect()).contains("rank 0"));
    assert!(!format!("{at:?} {at}").contains(':'), "a secret is shown: {at:?}");
}

#[test]
fn groups_with_different_names_share_one_listener() {
    let listener = BootstrapListener::open().unwrap();
    each(6, |number| {
        let (name, rank) = (["blue", "green"][number % 2], number / 2);
        let at = if rank == 0 {
            Bootstrap::Listener(listener.clone())
        } else {
            Bootstrap::Announcement(listener.announcement())
        };
        for round in 0..5 {
            let group = builder(rank, 3, &at).name(format!("{name} {round}")).connect().unwrap();
            works(&group, &[number % 2, 5, 7]);
        }
    });
}

#[test]
fn a_listener_can_be_used_again_after_a_failed_bootstrap() {
    let listener = BootstrapListener::open().unwrap();
    let (host, announced) =
        (Bootstrap::Listener(listener.clone()), Bootstrap::Announcement(listener.announcement()));
    let briefly = Duration::from_millis(300);
    // Rank 1 connects, and times out before rank 0 connects.
    builder(1, 2, &announced).connect_timeout(briefly).connect().unwrap_err();
    // Both report that rank 2 is missing.
    let ends = each(2, |rank| {
        let at = if rank == 0 { &host } else { &announced };
        let timeout = if rank == 0 { briefly } else { LONG };
        builder(rank, 3, at).connect_timeout(timeout).connect().unwrap_err().to_string()
    });
    for error in ends {
        assert!(error.contains("waiting for rank 2"), "{error}");
    }
    each(3, |rank| {
        let at = if rank == 0 { &host } else { &announced };
        works(&builder(rank, 3, at).connect().unwrap(), &[1, 2, 4]);
    });
}

#[test]
fn connect_can_be_cancelled() {
    let listener = BootstrapListener::open().unwrap();
    let silent = Bootstrap::Announcement(listener.announcement());
    let empty = Bootstrap::Exchange(Arc::new(MemoryExchange::default()));
    let alone = Bootstrap::Listener(BootstrapListener::open().unwrap());
    for (rank, at) in [(1, silent), (1, empty), (0, alone)] {
        let begun = Instant::now();
        let must_end = move || begun.elapsed() > Duration::from_millis(150);
        let error =
            builder(rank, 2, &at).cancel_when(Duration::from_millis(20), must_end).connect().unwrap_err();
        assert_eq!(error, Error::Interrupted);
        assert!(begun.elapsed() < Duration::from_secs(3), "{at}: {:?}", begun.elapsed());
    }
}

#[test]
fn disjoint_ranks_split_at_the_same_time() {
    for media in [Media::Auto, Media::Tcp] {
        ranks(4, media, |group| {
            let me = group.rank();
            let mine: &[usize] = if me % 2 == 0 { &[0, 2] } else { &[3, 1] };
            let child = group.split(mine, "half").unwrap();
            assert_eq!((child.name(), mine[child.rank()]), ("half", me));
            assert_eq!(child.is_shared(), media == Media::Auto);
            works(&child, mine);
            works(&group, &[0, 1, 2, 3]);
        });
    }
}

#[test]
fn splits_nest_repeat_and_outlive_their_parents() {
    for media in [Media::Auto, Media::Tcp] {
        ranks(4, media, |group| {
            let me = group.rank();
            let all: Vec<_> = (0..3).map(|_| group.split(&[3, 2, 1, 0], "all").unwrap()).collect();
            if me == 0 {
                let alone = group.split(&[0], "alone").unwrap();
                works(&alone, &[0]);
            }
            group.close();
            for group in &all {
                works(group, &[3, 2, 1, 0]);
            }
            // The ranks of the parent are in reverse order.
            let nested = if me < 3 { Some(all[1].split(&[1, 2, 3], "nested").unwrap()) } else { None };
            drop(all);
            if let Some(nested) = nested {
                works(&nested, &[2, 1, 0]);
                let pair = if me > 0 { Some(nested.split(&[1, 0], "pair").unwrap()) } else { None };
                if let Some(pair) = pair {
                    works(&pair, &[1, 2]);
                }
            }
        });
    }
}

#[test]
fn a_split_does_not_disturb_transfers_and_collectives() {
    for media in [Media::Auto, Media::Tcp] {
        ranks(3, media, |group| {
            let me = group.rank();
            if me == 0 {
                // It is in flight when the split starts.
                group.send(&[7_i32; 10], 1).unwrap();
            }
            if me < 2 {
                works(&group.split(&[0, 1], "pair").unwrap(), &[1, 2]);
            }
            if me == 1 {
                let mut data = [0_i32; 10];
                group.recv(&mut data, 0).unwrap();
                assert_eq!(data, [7; 10]);
            }
            works(&group, &[1, 2, 4]);
        });
    }
}

#[test]
fn an_invalid_split_is_rejected_locally() {
    ranks(3, Media::Auto, |group| {
        let me = group.rank();
        let bad = |ranks: &[usize]| match group.split(ranks, "x") {
            Err(Error::BadArgument(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(bad(&[]).contains("at least one"));
        assert!(bad(&[me, 3]).contains("0 to 2"));
        assert!(bad(&[me, me]).contains("twice"));
        assert!(bad(&[(me + 1) % 3]).contains(&format!("rank {me} is not")));
        works(&group, &[1, 2, 4]);
    });
}

#[test]
fn a_split_reports_the_failure_of_its_parent() {
    for media in [Media::Auto, Media::Tcp] {
        let errors = ranks(3, media, |group| {
            if group.rank() == 2 {
                group.abort();
            }
            let until = Instant::now() + LONG;
            while group.failure().is_none() {
                assert!(Instant::now() < until, "the failure is not reported");
                std::thread::sleep(Duration::from_millis(1));
            }
            group.split(&[0, 1, 2], "late").unwrap_err().to_string()
        });
        for error in errors {
            assert!(error.contains("rank 2"), "{error}");
        }
    }
}

#[test]
fn a_waiting_split_reports_the_failure_of_its_parent_and_ranks_that_left() {
    for leaves in [true, false] {
        for late in [0, 2] {
            let (begun, heard, callers) = (Instant::now(), Barrier::new(3), Callers::default());
            let errors = ranks(3, Media::Auto, |group| {
                let mut error = format!("rank {late}");
                if group.rank() != late {
                    callers.add();
                    error = group.split(&[0, 1, 2], "incomplete").unwrap_err().to_string();
                } else {
                    callers.await_waiting(2);
                    if leaves {
                        group.close();
                    } else {
                        group.abort();
                    }
                }
                // No other rank leaves before all have seen the failure.
                heard.wait();
                error
            });
            assert!(begun.elapsed() < Duration::from_secs(20));
            for error in errors {
                assert!(error.contains(&format!("rank {late}")), "{error}");
            }
        }
    }
}

#[test]
fn a_rank_that_does_not_split_is_named_and_the_parent_continues() {
    let done = Barrier::new(3);
    ranks(3, Media::Auto, |group| {
        let me = group.rank();
        let briefly = Duration::from_millis(300);
        // First the leader is missing, then another rank.
        for missing in [0, 2] {
            if me != missing {
                let error = group.split_within(&[0, 1, 2], "incomplete", briefly, Media::Auto).unwrap_err();
                assert!(matches!(error, Error::BootstrapFailed(_)), "{error}");
            }
            done.wait();
        }
        works(&group.split(&[0, 1, 2], "incomplete").unwrap(), &[1, 2, 4]);
        works(&group, &[1, 2, 4]);
    });
}

/// The numbers of descriptors and threads of this process.
fn usage() -> (usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn many_splits_leave_nothing_behind() {
    if !crate::own_process::is_own_process("group_bootstrap::many_splits_leave_nothing_behind") {
        return;
    }
    let steps = Barrier::new(3);
    ranks(3, Media::Auto, |group| {
        let before = {
            works(&group.split(&[0, 1, 2], "first").unwrap(), &[1, 2, 4]);
            steps.wait();
            // A baseline that is taken too early hides the resources of one split, of 50.
            std::thread::sleep(Duration::from_millis(200));
            let before = usage();
            steps.wait();
            before
        };
        for number in 0..50 {
            let child = group.split(&[2, 0, 1], &format!("split {number}")).unwrap();
            works(&child, &[4, 1, 2]);
        }
        steps.wait();
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let (descriptors, threads) = usage();
            if descriptors <= before.0 && threads <= before.1 {
                break;
            }
            assert!(Instant::now() < until, "{before:?}, then {descriptors} and {threads}");
            std::thread::sleep(Duration::from_millis(20));
        }
        steps.wait();
    });
}
