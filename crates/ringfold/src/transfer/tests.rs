//! Transfers over real connections on loopback, without handshakes.

use super::entry_target::AllocateTarget;
use super::fetch::{Fetch, FetchOrder};
use super::part::{Part, cut_later};
use super::wire::{Header, Request};
use super::{Connect, Done, Moved, Transfer};
use crate::Error;
use crate::shared_state::{SyncedTensor, hash_slices};
use core::time::Duration;
use parking_lot::Mutex;
use ringfold_fabric::memory::{Memory, lend_all_mut};
use ringfold_kernels::{LEAF_BYTES, tree_hash};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{PeerId, Revision};
use ringfold_proto::shared_state::{Assignment, FetchItem};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

type Entries = Vec<Vec<u8>>;
/// Takes a source's end of a new connection, or refuses it.
type Server = Arc<dyn Fn(TcpStream) -> io::Result<()> + Send + Sync>;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Stopping takes about a millisecond; this is for busy machines, and far below every timeout of the transfer.
const AT_ONCE: Duration = Duration::from_secs(1);

fn entries(sizes: &[usize], seed: u32) -> Entries {
    let noise = |n: usize, i: usize| {
        (n as u32 ^ (i as u32) << 20).wrapping_add(seed * 977).wrapping_mul(2_654_435_761)
    };
    sizes.iter().enumerate().map(|(i, s)| (0..*s).map(|n| (noise(n, i) >> 13) as u8).collect()).collect()
}

fn tensors(memories: Vec<Memory>) -> Vec<SyncedTensor> {
    let tensor = |(i, memory): (usize, Memory)| SyncedTensor {
        key: format!("entry {i}"),
        dtype: DType::U8,
        content: memory.into(),
    };
    memories.into_iter().enumerate().map(tensor).collect()
}

fn hashes(entries: &Entries) -> Vec<u128> {
    hash_slices(&entries.iter().map(|e| &e[..]).collect::<Vec<_>>())
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    Ok((near, listener.accept()?.0))
}

fn assignment(fetch: Vec<FetchItem>, sources: &[u128]) -> Assignment {
    let sources = sources.iter().map(|s| PeerId(*s)).collect();
    Assignment { revision: Revision(1), fetch, sources, fetchers: Vec::new() }
}

/// What has to be fetched to make `mine` into `want`.
fn items(mine: &Entries, want: &Entries) -> Vec<FetchItem> {
    let pairs = mine.iter().zip(want).enumerate();
    let item =
        |(i, (_, want)): (usize, (_, &Vec<u8>))| FetchItem { entry: i as u32, hash: tree_hash(want).0 };
    pairs.filter(|(_, (mine, want))| mine != want).map(item).collect()
}

/// A holder that serves with the code under test.
#[derive(Clone)]
struct Holder(Arc<Mutex<Option<Transfer>>>);

impl Holder {
    fn unassigned(content: &Entries) -> Self {
        let memories = content.iter().map(|e| Memory::from(e.clone())).collect();
        let nobody: Connect = Arc::new(|_, _| Err(io::ErrorKind::ConnectionRefused.into()));
        let transfer = Transfer::new(tensors(memories), hashes(content), nobody, Arc::new(|_, _| ()));
        Self(Arc::new(Mutex::new(Some(transfer))))
    }

    fn new(content: &Entries) -> Self {
        let holder = Self::unassigned(content);
        holder.assign();
        holder
    }

    fn assign(&self) {
        self.0.lock().as_mut().unwrap().assign(1, assignment(vec![], &[]));
    }

    fn server(&self) -> Server {
        let holder = self.clone();
        Arc::new(move |stream| {
            let mut transfer = holder.0.lock();
            transfer.as_mut().ok_or(io::ErrorKind::ConnectionRefused)?.serve(PeerId(99), stream.into());
            Ok(())
        })
    }

    fn stop(&self) -> Moved {
        self.0.lock().take().map_or_else(Moved::default, Transfer::stop)
    }
}

/// What a source does after an answer.
#[derive(PartialEq, Eq)]
enum Then {
    GoOn,
    Close,
    Hang,
}

/// A source that answers by `answer`: of the leaves it is asked for, the bytes to send, and what then.
fn fake(content: &Entries, answer: impl Fn(&[u8]) -> (Vec<u8>, Then) + Send + Sync + 'static) -> Server {
    let (content, answer) = (Arc::new(content.clone()), Arc::new(answer));
    Arc::new(move |mut stream| {
        let (content, answer) = (content.clone(), answer.clone());
        std::thread::spawn(move || {
            while let Ok(Some(request)) = Request::read(&mut stream) {
                let entry: usize = request.key[6..].parse().unwrap();
                let leaves = content[entry].chunks(LEAF_BYTES).skip(request.first_leaf as usize);
                let bytes = leaves.take(request.leaves as usize).collect::<Vec<_>>().concat();
                let (sent, then) = answer(&bytes);
                let _ = stream.write_all(&Header::Leaves(bytes.len() as u64).encode());
                let _ = stream.write_all(&sent);
                match then {
                    Then::GoOn => {}
                    Then::Close => return,
                    Then::Hang => while stream.read(&mut [0; 100]).is_ok_and(|read| read > 0) {},
                }
            }
        });
        Ok(())
    })
}

fn culprit(content: &Entries) -> Server {
    fake(content, |bytes| {
        let mut bytes = bytes.to_vec();
        bytes[0] ^= 1;
        (bytes, Then::GoOn)
    })
}

fn silent() -> Server {
    let kept = Mutex::new(Vec::new());
    Arc::new(move |stream| {
        kept.lock().push(stream);
        Ok(())
    })
}

fn connect(servers: Vec<Server>) -> Connect {
    let servers: HashMap<_, _> =
        servers.into_iter().enumerate().map(|(i, s)| (PeerId(i as u128), s)).collect();
    Arc::new(move |peer, _| {
        let (near, far) = pair()?;
        servers[&peer](far)?;
        Ok(near.into())
    })
}

fn listen() -> (Done, mpsc::Receiver<(u64, bool)>) {
    let (say, hear) = mpsc::channel();
    (Arc::new(move |number, complete| say.send((number, complete)).unwrap_or_default()), hear)
}

/// Fetches an entry into memory that the fetch allocates.
fn fetch_staged(want: &Entries, servers: Vec<Server>, allocate: AllocateTarget) -> (bool, Arc<Fetch>) {
    let (bytes, sources) = (want[0].len(), (0..servers.len() as u128).map(PeerId).collect());
    let (key, target) = ("entry 0".to_owned(), hashes(want)[0]);
    let parts = cut_later(0, bytes, allocate, 4 * LEAF_BYTES);
    let count = bytes as u64;
    let order = FetchOrder { entry: 0, key, dtype: DType::U8, count, target, bytes: count, parts };
    let (done, hear) = listen();
    let fetch = Fetch::start(3, vec![order], sources, (connect(servers), done, Arc::default()), true);
    let (number, complete) = hear.recv_timeout(TIMEOUT).expect("the outcome is told");
    assert_eq!(number, 3);
    (complete, fetch)
}

#[test]
fn memory_is_allocated_once_by_the_threads_that_fetch() {
    let want = entries(&[13 * LEAF_BYTES + 5], 3);
    let servers = vec![Holder::new(&want).server(), Holder::new(&want).server()];
    let (caller, bytes, allocated) = (std::thread::current().id(), want[0].len(), AtomicU64::new(0));
    let allocate = move || {
        assert_ne!(std::thread::current().id(), caller);
        assert_eq!(allocated.fetch_add(1, Ordering::Relaxed), 0);
        Ok(Memory::zeroed(bytes))
    };
    let (complete, fetch) = fetch_staged(&want, servers, Box::new(allocate));
    assert!(complete && fetch.failure().is_none());
    let mut fetched: Vec<_> = fetch.stop().into_iter().filter_map(Part::into_fetched).collect();
    fetched.sort_by_key(|part| part.offset);
    assert!(fetched.iter().flat_map(|part| part.memory.as_slice()).eq(&want[0]));
}

#[test]
fn a_fetch_without_memory_fails_and_says_why() {
    let want = entries(&[9 * LEAF_BYTES], 3);
    let servers = vec![Holder::new(&want).server(), silent()];
    let allocate = Box::new(|| Err(Error::System("out of memory".into())));
    let (complete, fetch) = fetch_staged(&want, servers, allocate);
    assert!(!complete);
    assert!(fetch.failure().is_some_and(|error| error.to_string().contains("out of memory")));
    assert!(fetch.stop().into_iter().all(|part| part.into_fetched().is_none()));
}

/// Makes `mine` into `want` with all servers as sources. Whether that was said to be complete.
fn fetch(mine: &mut Entries, want: &Entries, servers: Vec<Server>) -> (bool, Moved) {
    let sources: Vec<_> = (0..servers.len() as u128).collect();
    let (hashes, items, (done, hear)) = (hashes(mine), items(mine, want), listen());
    lend_all_mut(mine.iter_mut().map(|e| &mut e[..]).collect(), |memories| {
        let mut transfer = Transfer::new(tensors(memories), hashes, connect(servers), done);
        transfer.assign(7, assignment(items, &sources));
        let (number, complete) = hear.recv_timeout(TIMEOUT).expect("the outcome is told");
        assert_eq!(number, 7);
        let moved = transfer.stop();
        assert!(hear.recv_timeout(Duration::from_millis(20)).is_err(), "the outcome is reported once");
        (complete, moved)
    })
}

const ODD: &[usize] = &[5, 0, LEAF_BYTES - 1, LEAF_BYTES, 3 << 20, LEAF_BYTES + 1, (9 << 20) + 77, 1];

#[test]
fn one_source_gives_what_differs_and_nothing_else() {
    let want = entries(ODD, 1);
    let mut mine = entries(ODD, 2);
    mine[4] = want[4].clone();
    let bytes: usize = items(&mine, &want).iter().map(|f| want[f.entry as usize].len()).sum();
    let holder = Holder::new(&want);
    let (complete, moved) = fetch(&mut mine, &want, vec![holder.server()]);
    assert!(complete);
    assert!(mine == want);
    assert_eq!(moved, Moved { tx_bytes: 0, rx_bytes: bytes as u64 });
    assert_eq!(holder.stop(), Moved { tx_bytes: bytes as u64, rx_bytes: 0 });
}

#[test]
fn three_sources_share_the_work() {
    let sizes = [48 << 20, 1000, 5 << 20];
    let want = entries(&sizes, 1);
    let mut mine = entries(&sizes, 2);
    let holders = [(); 3].map(|()| Holder::new(&want));
    let (complete, moved) = fetch(&mut mine, &want, holders.iter().map(Holder::server).collect());
    assert!(complete && mine == want);
    let sent = holders.map(|h| h.stop().tx_bytes);
    assert_eq!(sent.iter().sum::<u64>(), moved.rx_bytes);
    assert_eq!(moved.rx_bytes, sizes.iter().sum::<usize>() as u64);
    assert!(sent.iter().all(|bytes| *bytes > 0), "{sent:?}");
}

#[test]
fn thousands_of_small_entries_arrive() {
    let sizes: Vec<_> = (0..5000).map(|i| i % 700).collect();
    let want = entries(&sizes, 1);
    let mut mine = entries(&sizes, 2);
    let holders = [Holder::new(&want), Holder::new(&want)];
    let (complete, _) = fetch(&mut mine, &want, holders.iter().map(Holder::server).collect());
    assert!(complete && mine == want);
}

#[test]
fn what_a_dying_source_gave_is_kept() {
    let sizes = [40 << 20];
    let want = entries(&sizes, 1);
    let mut mine = entries(&sizes, 2);
    let holder = Holder::new(&want);
    // It sends one part and then half a leaf less than another, and is not to be reached any more.
    let calls = Arc::new(AtomicU64::new(0));
    let dying = {
        let calls = calls.clone();
        let dying = fake(&want, move |bytes| match calls.fetch_add(1, Ordering::Relaxed) {
            0 => (bytes.to_vec(), Then::GoOn),
            _ => (bytes[..bytes.len() - LEAF_BYTES / 2].to_vec(), Then::Close),
        });
        let dialled = AtomicU64::new(0);
        let server: Server = Arc::new(move |stream| match dialled.fetch_add(1, Ordering::Relaxed) {
            0 => dying(stream),
            _ => Err(io::ErrorKind::ConnectionRefused.into()),
        });
        server
    };
    let second: Server = {
        let (calls, server) = (calls.clone(), holder.server());
        Arc::new(move |stream| {
            let began = Instant::now();
            while calls.load(Ordering::Relaxed) < 2 && began.elapsed() < TIMEOUT / 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            server(stream)
        })
    };
    let (complete, moved) = fetch(&mut mine, &want, vec![dying, second]);
    assert!(complete && mine == want);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let twice = moved.rx_bytes - sizes[0] as u64;
    assert!(twice < LEAF_BYTES as u64, "only the broken leaf came twice, and not {twice} bytes");
}

#[test]
fn a_source_that_breaks_and_returns_alone_is_enough() {
    let want = entries(&[10 << 20], 1);
    let mut mine = entries(&[10 << 20], 2);
    let flaky = fake(&want, |bytes| (bytes[..bytes.len().min(3 * LEAF_BYTES)].to_vec(), Then::Close));
    let (complete, _) = fetch(&mut mine, &want, vec![flaky]);
    assert!(complete && mine == want);
}

#[test]
fn a_source_that_lies_is_found_and_others_are_used() {
    let sizes = [12 << 20, 6 << 20, 100];
    let want = entries(&sizes, 1);
    for place in 0..3 {
        let mut mine = entries(&sizes, 2);
        let holders = [Holder::new(&want), Holder::new(&want)];
        let mut servers: Vec<_> = holders.iter().map(Holder::server).collect();
        servers.insert(place, culprit(&want));
        let (complete, _) = fetch(&mut mine, &want, servers);
        assert!(complete && mine == want);
    }
}

#[test]
fn one_honest_source_among_liars_is_enough() {
    let sizes = [12 << 20, 100, 6 << 20];
    let want = entries(&sizes, 1);
    let mut mine = entries(&sizes, 2);
    let holder = Holder::new(&want);
    let mut servers: Vec<_> = (0..10).map(|_| culprit(&want)).collect();
    servers.push(holder.server());
    let (complete, _) = fetch(&mut mine, &want, servers);
    assert!(complete && mine == want);
}

#[test]
fn if_all_lie_it_is_not_complete() {
    let want = entries(&[3 << 20, 100], 1);
    let mut mine = entries(&[3 << 20, 100], 2);
    let (complete, _) = fetch(&mut mine, &want, vec![culprit(&want), culprit(&want), culprit(&want)]);
    assert!(!complete);
}

#[test]
fn if_nobody_can_be_reached_it_is_not_complete() {
    let want = entries(&[100], 1);
    let refuse: Server = Arc::new(|_| Err(io::ErrorKind::ConnectionRefused.into()));
    let closed: Server = Arc::new(|_| Ok(()));
    let mut mine = entries(&[100], 2);
    let before = mine.clone();
    assert_eq!(fetch(&mut mine, &want, vec![refuse, closed]), (false, Moved::default()));
    assert_eq!(fetch(&mut mine, &want, vec![]), (false, Moved::default()));
    assert!(mine == before);
}

#[test]
fn a_source_that_holds_something_else_is_passed_over() {
    let want = entries(&[6 << 20], 1);
    let mut mine = entries(&[6 << 20], 2);
    let (other, holder) = (Holder::new(&entries(&[6 << 20], 3)), Holder::new(&want));
    let (complete, _) = fetch(&mut mine, &want, vec![other.server(), holder.server()]);
    assert!(complete && mine == want);
    assert_eq!(other.stop().tx_bytes, 0);
}

#[test]
fn a_panic_is_told_as_incomplete() {
    let want = entries(&[100], 1);
    let panics: Server = Arc::new(|_| panic!("on purpose"));
    assert!(!fetch(&mut entries(&[100], 2), &want, vec![panics]).0);
}

#[test]
fn what_a_hung_source_owes_is_fetched_elsewhere() {
    let want = entries(&[20 << 20], 1);
    let mut mine = entries(&[20 << 20], 2);
    let holder = Holder::new(&want);
    let began = Instant::now();
    let (complete, _) = fetch(&mut mine, &want, vec![silent(), holder.server()]);
    assert!(complete && mine == want);
    assert!(began.elapsed() < super::limits::STALL_MAX, "{:?}", began.elapsed());
}

/// A source that sends a part of the first answer and then hangs, and how many bytes of leaves it has sent.
fn hanging(want: &Entries, part: fn(usize) -> usize) -> (Server, Arc<AtomicU64>) {
    let sent = Arc::new(AtomicU64::new(NOTHING_ASKED));
    let says = sent.clone();
    let server = fake(want, move |bytes| {
        let part = &bytes[..part(bytes.len())];
        says.store(part.len() as u64, Ordering::Relaxed);
        (part.to_vec(), Then::Hang)
    });
    (server, sent)
}

/// What a source has sent before it is asked.
const NOTHING_ASKED: u64 = u64::MAX;

/// Waits until a fetch has received what its only source has sent.
fn await_received(transfer: &Transfer, sent: &AtomicU64) {
    let began = Instant::now();
    while transfer.counts.rx_bytes.load(Ordering::Relaxed) != sent.load(Ordering::Relaxed) {
        assert!(began.elapsed() < TIMEOUT, "timed out waiting for the source");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stops a fetch while its source has it wait, and says how long stopping took. The memory must stay as it is then.
fn stop_while(connect: Connect, sent: &AtomicU64) -> Duration {
    let want = entries(&[8 << 20], 1);
    let mut mine = entries(&[8 << 20], 2);
    let (hashes, items, (done, hear)) = (hashes(&mine), items(&mine, &want), listen());
    let took = lend_all_mut(mine.iter_mut().map(|e| &mut e[..]).collect(), |memories| {
        let mut transfer = Transfer::new(tensors(memories), hashes, connect, done);
        transfer.assign(1, assignment(items, &[0]));
        await_received(&transfer, sent);
        let began = Instant::now();
        transfer.stop();
        began.elapsed()
    });
    let then = mine.clone();
    std::thread::sleep(Duration::from_millis(100));
    assert!(mine == then, "nothing is written after the end");
    assert!(hear.try_recv().is_err(), "nothing is reported after the end");
    took
}

#[test]
fn stopping_does_not_wait_for_a_source_that_hangs() {
    let want = entries(&[8 << 20], 1);
    // One that says nothing, one that stops in the middle of a leaf, one that does after some leaves.
    let (mute, dialled) = (silent(), Arc::new(AtomicU64::new(NOTHING_ASKED)));
    let says = dialled.clone();
    let mute: Server = Arc::new(move |stream| {
        says.store(0, Ordering::Relaxed);
        mute(stream)
    });
    for (server, sent) in [(mute, dialled), hanging(&want, |_| 100), hanging(&want, |bytes| bytes / 2)] {
        let took = stop_while(connect(vec![server]), &sent);
        assert!(took < AT_ONCE, "{took:?}");
    }
}

#[test]
fn stopping_does_not_wait_for_a_connection_being_made() {
    let dialled = Arc::new(AtomicU64::new(NOTHING_ASKED));
    let says = dialled.clone();
    let connect: Connect = Arc::new(move |_, _| {
        says.store(0, Ordering::Relaxed);
        std::thread::sleep(3 * AT_ONCE);
        Ok(pair()?.0.into())
    });
    let took = stop_while(connect, &dialled);
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn a_holder_stops_at_once_while_a_fetcher_does_not_read() {
    let content = entries(&[32 << 20], 1);
    let holder = Holder::new(&content);
    let (mut near, far) = pair().unwrap();
    holder.server()(far).unwrap();
    let request = Request {
        key: "entry 0".into(),
        dtype: DType::U8,
        count: 32 << 20,
        hash: tree_hash(&content[0]).0,
        first_leaf: 0,
        leaves: (32 << 20) / LEAF_BYTES as u64,
    };
    near.write_all(&request.encode().unwrap()).unwrap();
    near.set_read_timeout(Some(TIMEOUT)).unwrap();
    near.read_exact(&mut [0]).expect("it has begun to send");
    let began = Instant::now();
    let moved = holder.stop();
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert!(moved.tx_bytes > 0 && moved.tx_bytes < 32 << 20, "{moved:?}");
}

#[test]
fn a_fetcher_that_comes_before_the_holders_assignment_waits_for_it() {
    let want = entries(&[1 << 20], 1);
    let mut mine = entries(&[1 << 20], 2);
    let holder = Holder::unassigned(&want);
    let (late, server, (say, hear)) = (holder.clone(), holder.server(), mpsc::channel());
    let thread = std::thread::spawn(move || {
        hear.recv_timeout(TIMEOUT).unwrap();
        late.assign();
    });
    let server: Server = Arc::new(move |stream| {
        server(stream)?;
        say.send(()).unwrap_or_default();
        Ok(())
    });
    let (complete, _) = fetch(&mut mine, &want, vec![server]);
    assert!(complete && mine == want);
    thread.join().unwrap();
}

#[test]
fn hostile_requests_are_refused_and_honest_ones_still_served() {
    let content = entries(&[3 * LEAF_BYTES + 5, 0], 1);
    let holder = Holder::new(&content);
    let good = Request {
        key: "entry 0".into(),
        dtype: DType::U8,
        count: content[0].len() as u64,
        hash: tree_hash(&content[0]).0,
        first_leaf: 3,
        leaves: 1,
    };
    let hostile = [
        Request { first_leaf: u64::MAX, ..good.clone() },
        Request { leaves: u64::MAX, ..good.clone() },
        Request { leaves: 0, ..good.clone() },
        Request { leaves: 2, ..good.clone() },
        Request { key: "entry 9".into(), ..good.clone() },
        Request { key: "x".repeat(4000), ..good.clone() },
        Request { hash: 0, ..good.clone() },
        Request { dtype: DType::I8, ..good.clone() },
        Request { count: u64::MAX, ..good.clone() },
        Request { key: "entry 1".into(), count: 0, hash: tree_hash(&[]).0, first_leaf: 0, ..good.clone() },
    ];
    let (mut near, far) = pair().unwrap();
    near.set_read_timeout(Some(TIMEOUT)).unwrap();
    holder.server()(far).unwrap();
    for request in hostile {
        near.write_all(&request.encode().unwrap()).unwrap();
        let mut header = [0; Header::BYTES];
        near.read_exact(&mut header).unwrap();
        assert_eq!(Header::decode(header).unwrap(), Header::NotHeld, "{request:?}");
    }
    near.write_all(&good.encode().unwrap()).unwrap();
    let mut answer = [0; Header::BYTES + 5];
    near.read_exact(&mut answer).unwrap();
    assert_eq!(answer[Header::BYTES..], content[0][3 * LEAF_BYTES..]);
    // What is no request ends the connection, and no other.
    for garbage in [&[255; 64][..], &[2, 0, 0, 0, 200, 200], &[0; 4]] {
        let (mut near, far) = pair().unwrap();
        near.set_read_timeout(Some(TIMEOUT)).unwrap();
        holder.server()(far).unwrap();
        near.write_all(garbage).unwrap();
        // Closed, or reset because some of it was never read.
        assert!(!matches!(near.read(&mut [0; 1]), Ok(1..)));
    }
    assert_eq!(holder.stop().tx_bytes, 5);
}

#[test]
fn another_assignment_keeps_what_is_here_and_right() {
    let want = entries(&[8 << 20], 1);
    let mut mine = entries(&[8 << 20], 2);
    // The first source gives half of a part and then nothing, so that the first assignment can't end.
    let (half, sent) = hanging(&want, |bytes| bytes / 2);
    let holder = Holder::new(&want);
    let (hashes, items, (done, hear)) = (hashes(&mine), items(&mine, &want), listen());
    let moved = lend_all_mut(mine.iter_mut().map(|e| &mut e[..]).collect(), |memories| {
        let servers = connect(vec![half, holder.server()]);
        let mut transfer = Transfer::new(tensors(memories), hashes, servers, done);
        transfer.assign(1, assignment(items.clone(), &[0]));
        await_received(&transfer, &sent);
        transfer.assign(2, assignment(items.clone(), &[1]));
        assert_eq!(hear.recv_timeout(TIMEOUT), Ok((2, true)));
        // It is all here: nobody has to be asked.
        transfer.assign(3, assignment(items, &[0]));
        assert_eq!(hear.recv_timeout(TIMEOUT), Ok((3, true)));
        // A peer that still expects the initial content gets an error.
        transfer.assign(4, assignment(vec![], &[]));
        assert_eq!(hear.recv_timeout(TIMEOUT), Ok((4, false)));
        transfer.stop()
    });
    assert!(mine == want);
    let sent = holder.stop().tx_bytes;
    assert_eq!(moved.rx_bytes, 8 << 20);
    assert!(sent > 0 && sent < 8 << 20, "{sent}");
}

#[test]
fn a_holder_may_become_a_fetcher() {
    let (old, want) = (entries(&[2 << 20, 2 << 20], 1), entries(&[2 << 20, 2 << 20], 2));
    let mut mine = old.clone();
    let holder = Holder::new(&want);
    let (hashes, items, (done, hear)) = (hashes(&mine), items(&mine, &want), listen());
    lend_all_mut(mine.iter_mut().map(|e| &mut e[..]).collect(), |memories| {
        let mut transfer = Transfer::new(tensors(memories), hashes, connect(vec![holder.server()]), done);
        transfer.assign(1, assignment(vec![], &[]));
        let (near, far) = pair().unwrap();
        transfer.serve(PeerId(5), far.into());
        transfer.assign(2, assignment(items[1..].to_vec(), &[0]));
        assert_eq!(hear.recv_timeout(TIMEOUT), Ok((2, true)));
        // What it still has as it was, it serves; what was replaced, it does not.
        drop(near);
        let (mut near, far) = pair().unwrap();
        near.set_read_timeout(Some(TIMEOUT)).unwrap();
        transfer.serve(PeerId(5), far.into());
        for (entry, held) in [(0, true), (1, false)] {
            let (key, hash) = (format!("entry {entry}"), tree_hash(&old[entry]).0);
            let request = Request { key, dtype: DType::U8, count: 2 << 20, hash, first_leaf: 0, leaves: 1 };
            near.write_all(&request.encode().unwrap()).unwrap();
            let mut header = [0; Header::BYTES];
            near.read_exact(&mut header).unwrap();
            assert_eq!(Header::decode(header).unwrap() != Header::NotHeld, held);
            if held {
                near.read_exact(&mut vec![0; LEAF_BYTES]).unwrap();
            }
        }
        transfer.stop()
    });
    assert!(mine[0] == old[0] && mine[1] == want[1]);
}

#[test]
#[ignore = "a measurement: run it alone, optimised, with --nocapture"]
fn half_a_gibibyte_against_plain_tcp() {
    const BYTES: usize = 512 << 20;
    let want = vec![entries(&[1 << 20], 1)[0].repeat(BYTES >> 20)];
    for _ in 0..3 {
        let (mut near, mut far) = pair().unwrap();
        let mut sink = vec![1; 1 << 20];
        let source = want[0].clone();
        let began = Instant::now();
        let writer = std::thread::spawn(move || far.write_all(&source).unwrap());
        while near.read(&mut sink).unwrap() > 0 {}
        let plain = began.elapsed().as_secs_f64();
        writer.join().unwrap();
        for sources in [1, 2] {
            let mut mine = vec![vec![1; BYTES]];
            let holders: Vec<_> = (0..sources).map(|_| Holder::new(&want)).collect();
            let began = Instant::now();
            let (hashes, items) = (vec![1], vec![FetchItem { entry: 0, hash: hashes(&want)[0] }]);
            let hashed = began.elapsed().as_secs_f64();
            let (done, hear) = listen();
            let servers = connect(holders.iter().map(Holder::server).collect());
            let took = lend_all_mut(vec![&mut mine[0][..]], |memories| {
                let began = Instant::now();
                let mut transfer = Transfer::new(tensors(memories), hashes, servers, done);
                transfer.assign(1, assignment(items, &(0..sources).collect::<Vec<_>>()));
                assert_eq!(hear.recv_timeout(TIMEOUT), Ok((1, true)));
                transfer.stop();
                began.elapsed().as_secs_f64()
            });
            assert!(mine == want);
            let gb = BYTES as f64 / 1e9;
            println!(
                "plain TCP {:.2} GB/s, {sources} source(s) {:.2} GB/s ({:.0} %), hashing {:.1} GB/s",
                gb / plain,
                gb / took,
                100.0 * plain / took,
                gb / hashed
            );
        }
    }
}
