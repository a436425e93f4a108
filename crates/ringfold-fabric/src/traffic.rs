//! What a process sends and receives over the network, per peer, and the caps on it.
//!
//! A [`Network`] belongs to a poller, and so to a communicator or group. Every connection has a `Meter`, which counts on
//! the account of its other end once that is known, and asks the caps. Connections within a host are counted
//! separately and are never capped; shared memory is not counted at all.

use crate::clock::Clock;
use crate::token_bucket::TokenBucket;
use core::fmt;
use core::iter::Sum;
use core::ops::Add;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use parking_lot::Mutex;
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::PeerId;
use ringfold_proto::time::Time;
use ringfold_settings::bandwidth::Bandwidth;
use ringfold_settings::{Setting, Settings, table};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

/// Accounts that are kept. Beyond that, those without a connection become one account of others.
const ACCOUNTS_MAX: usize = 4096;

/// Bytes that were sent and received.
///
/// Of TCP connections the bytes of the stream count, without headers and retransmissions; of QUIC connections whole
/// packets with the headers of UDP and IP, retransmissions included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Bytes sent to other hosts.
    pub sent: u64,
    /// Bytes received from other hosts.
    pub received: u64,
    /// Bytes sent through sockets within this host.
    pub local_sent: u64,
    /// Bytes received through sockets within this host.
    pub local_received: u64,
}

impl Add for Traffic {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            received: self.received + other.received,
            local_sent: self.local_sent + other.local_sent,
            local_received: self.local_received + other.local_received,
        }
    }
}

impl Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(f, "sent {:.1} MiB, received {:.1} MiB", mib(self.sent), mib(self.received))
    }
}

/// Caps on the bandwidth of a process or communicator, over all its connections to other hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub struct BandwidthCaps {
    pub upload: Option<Bandwidth>,
    pub download: Option<Bandwidth>,
}

/// The accounts and caps of the connections of a poller.
#[derive(Debug, Default)]
pub struct Network {
    accounts: Mutex<Accounts>,
    limits: [Option<Arc<Limit>>; 2],
}

#[derive(Debug, Default)]
struct Accounts {
    peers: BTreeMap<PeerId, Arc<Account>>,
    /// Peers that have gone, and connections whose other end never authenticated.
    others: Traffic,
}

/// Counters of one peer, or of a connection whose other end is not known.
#[derive(Debug, Default)]
struct Account {
    /// By whether it is local, and by direction.
    bytes: [[AtomicU64; 2]; 2],
}

/// A direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Direction {
    Send,
    Receive,
}

/// The cap of one direction, for all connections.
#[derive(Debug)]
struct Limit {
    bucket: Mutex<TokenBucket>,
}

/// The time of all buckets.
static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::start);

pub(crate) fn now() -> Time {
    CLOCK.now()
}

impl Account {
    fn add(&self, is_local: bool, direction: Direction, bytes: u64) {
        self.bytes[usize::from(is_local)][direction as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    fn traffic(&self) -> Traffic {
        let [[sent, received], [local_sent, local_received]] =
            self.bytes.each_ref().map(|pair| pair.each_ref().map(|bytes| bytes.load(Ordering::Relaxed)));
        Traffic { sent, received, local_sent, local_received }
    }
}

/// The caps of variables and files, which all networks of the process share.
static SHARED: Mutex<Vec<(Direction, Bandwidth, Weak<Limit>)>> = Mutex::new(Vec::new());

impl Network {
    /// With these caps alone.
    pub fn with_caps(caps: BandwidthCaps) -> Self {
        Self {
            accounts: Mutex::default(),
            limits: [caps.upload, caps.download].map(|cap| cap.map(Limit::new)),
        }
    }

    /// With the caps of its owner. A direction without one has that of the settings: if that is not an argument, it is shared by
    /// the whole process.
    pub fn of(settings: &Settings, own: BandwidthCaps) -> Self {
        let limit = |direction, own: Option<Bandwidth>, setting: &Setting| match (own, settings.cap(setting))
        {
            (None, Some(cap)) if !settings.is_argument(setting) => Some(Limit::shared(direction, cap)),
            (own, cap) => own.or(cap).map(Limit::new),
        };
        let upload = limit(Direction::Send, own.upload, &table::MAX_UPLOAD);
        let download = limit(Direction::Receive, own.download, &table::MAX_DOWNLOAD);
        Self { accounts: Mutex::default(), limits: [upload, download] }
    }

    /// With the caps of another one, and accounts of its own.
    pub(crate) fn beside(other: &Self) -> Self {
        Self { accounts: Mutex::default(), limits: other.limits.clone() }
    }

    /// What was sent and received in total.
    pub fn total(&self) -> Traffic {
        let accounts = self.accounts.lock();
        accounts.peers.values().map(|account| account.traffic()).sum::<Traffic>() + accounts.others
    }

    /// What was sent and received per peer. The id of a master is zero.
    pub fn per_peer(&self) -> Vec<(PeerId, Traffic)> {
        let accounts = self.accounts.lock();
        accounts.peers.iter().map(|(peer, account)| (*peer, account.traffic())).collect()
    }

    fn account(&self, peer: PeerId) -> Arc<Account> {
        let mut accounts = self.accounts.lock();
        if accounts.peers.len() >= ACCOUNTS_MAX && !accounts.peers.contains_key(&peer) {
            let Accounts { peers, others } = &mut *accounts;
            peers.retain(|_, account| {
                let is_used = Arc::strong_count(account) > 1;
                if !is_used {
                    *others = *others + account.traffic();
                }
                is_used
            });
        }
        accounts.peers.entry(peer).or_default().clone()
    }

    /// Counts packets of no connection.
    pub(crate) fn count_others(&self, traffic: Traffic) {
        let mut accounts = self.accounts.lock();
        accounts.others = accounts.others + traffic;
    }
}

impl Limit {
    fn new(cap: Bandwidth) -> Arc<Self> {
        Arc::new(Self { bucket: Mutex::new(TokenBucket::new(cap.bytes_per_second())) })
    }

    /// The cap of the whole process.
    fn shared(direction: Direction, cap: Bandwidth) -> Arc<Self> {
        let mut shared = SHARED.lock();
        let used = shared
            .iter()
            .find(|(d, c, _)| *d == direction && *c == cap)
            .and_then(|(.., used)| used.upgrade());
        used.unwrap_or_else(|| {
            let limit = Self::new(cap);
            shared.retain(|(.., used)| used.strong_count() > 0);
            shared.push((direction, cap, Arc::downgrade(&limit)));
            limit
        })
    }
}

/// Counts the bytes of one connection, and says when it may move more.
#[derive(Debug)]
pub(crate) struct Meter {
    network: Arc<Network>,
    is_local: AtomicBool,
    /// The account of the other end, once that is known.
    account: Mutex<Arc<Account>>,
    is_identified: AtomicBool,
    /// Whether the caps hold for it.
    is_capped: AtomicBool,
    /// When it may move more, by direction; zero if it has moved nothing yet.
    next: [AtomicU64; 2],
}

impl Meter {
    pub(crate) fn new(network: &Arc<Network>) -> Self {
        Self {
            network: network.clone(),
            is_local: AtomicBool::new(false),
            account: Mutex::default(),
            is_identified: AtomicBool::new(false),
            is_capped: AtomicBool::new(false),
            next: Default::default(),
        }
    }

    /// A meter of a connection that stays on this host, as far as its addresses show.
    pub(crate) fn local(network: &Arc<Network>) -> Self {
        let meter = Self::new(network);
        meter.is_local.store(true, Ordering::Relaxed);
        meter
    }

    /// The other end has authenticated. Control messages are never held back.
    pub(crate) fn identify(&self, peer: PeerId, purpose: Purpose, is_local: bool) {
        let account = self.network.account(peer);
        self.is_local.store(is_local, Ordering::Relaxed);
        let mut own = self.account.lock();
        let early = own.traffic();
        let (sent, received) = (early.sent + early.local_sent, early.received + early.local_received);
        for (direction, bytes) in [(Direction::Send, sent), (Direction::Receive, received)] {
            account.add(is_local, direction, bytes);
        }
        *own = account;
        self.is_identified.store(true, Ordering::Relaxed);
        self.is_capped.store(!is_local && purpose != Purpose::Control, Ordering::Release);
    }

    /// Counts bytes that were moved.
    pub(crate) fn count(&self, direction: Direction, bytes: usize) {
        self.account.lock().add(self.is_local.load(Ordering::Relaxed), direction, bytes as u64);
    }

    fn limit(&self, direction: Direction) -> Option<&Limit> {
        let limit = self.network.limits[direction as usize].as_deref()?;
        self.is_capped.load(Ordering::Acquire).then_some(limit)
    }

    /// The cap of a direction, in bytes per second.
    pub(crate) fn cap(&self, direction: Direction) -> Option<u64> {
        self.limit(direction).map(|limit| limit.bucket.lock().rate())
    }

    /// How many bytes may be moved now, or when to ask again.
    pub(crate) fn allowance(&self, direction: Direction) -> Result<usize, Instant> {
        let Some(limit) = self.limit(direction) else { return Ok(usize::MAX) };
        let next = &self.next[direction as usize];
        let bucket = limit.bucket.lock();
        if next.load(Ordering::Relaxed) == 0 {
            next.store(bucket.begin().0.max(1), Ordering::Relaxed);
        }
        let (now, next) = (now(), Time(next.load(Ordering::Relaxed)));
        if next <= now { Ok(bucket.quantum()) } else { Err(Instant::now() + next.since(now)) }
    }

    /// Pays for bytes that were moved.
    pub(crate) fn pay(&self, direction: Direction, bytes: usize) {
        if let Some(limit) = self.limit(direction) {
            let next = limit.bucket.lock().pay(now(), bytes);
            self.next[direction as usize].store(next.0.max(1), Ordering::Relaxed);
        }
    }

    /// Waits until bytes may be moved, for a thread that may block. Returns how many.
    pub(crate) fn wait(&self, direction: Direction) -> usize {
        loop {
            match self.allowance(direction) {
                Ok(bytes) => return bytes,
                Err(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    std::thread::sleep(left.max(Duration::from_micros(50)));
                }
            }
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if !*self.is_identified.get_mut() {
            self.network.count_others(self.account.get_mut().traffic());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_before_and_after_the_handshake_are_on_the_account_of_the_peer() {
        let network = Arc::new(Network::default());
        let meter = Meter::new(&network);
        meter.count(Direction::Send, 100);
        meter.identify(PeerId(7), Purpose::Data, false);
        meter.count(Direction::Send, 20);
        meter.count(Direction::Receive, 3);
        let near = Meter::new(&network);
        near.count(Direction::Receive, 5);
        near.identify(PeerId(7), Purpose::State, true);
        near.count(Direction::Send, 6);
        let expected = Traffic { sent: 120, received: 3, local_sent: 6, local_received: 5 };
        assert_eq!(network.per_peer(), [(PeerId(7), expected)]);
        assert_eq!(network.total(), expected);
        // A stranger counts in the total.
        let stranger = Meter::new(&network);
        stranger.count(Direction::Receive, 1000);
        drop(stranger);
        assert_eq!(network.total(), expected + Traffic { received: 1000, ..Traffic::default() });
        assert_eq!(expected.to_string(), "sent 0.0 MiB, received 0.0 MiB");
    }

    #[test]
    fn accounts_are_bounded_and_nothing_is_lost() {
        let network = Arc::new(Network::default());
        for peer in 0..2 * ACCOUNTS_MAX as u128 {
            let meter = Meter::new(&network);
            meter.identify(PeerId(peer), Purpose::Data, false);
            meter.count(Direction::Send, 1);
        }
        assert!(network.per_peer().len() <= ACCOUNTS_MAX);
        assert_eq!(network.total().sent, 2 * ACCOUNTS_MAX as u64);
    }

    #[test]
    fn only_bulk_connections_to_other_hosts_are_capped() {
        let caps = BandwidthCaps { upload: Some(Bandwidth::bytes(1_000_000)), download: None };
        let network = Arc::new(Network::with_caps(caps));
        let meter = |purpose, is_local| {
            let meter = Meter::new(&network);
            meter.identify(PeerId(1), purpose, is_local);
            meter.pay(Direction::Send, 10_000_000);
            meter.pay(Direction::Receive, 10_000_000);
            (meter.allowance(Direction::Send), meter.allowance(Direction::Receive))
        };
        assert_eq!(meter(Purpose::Control, false), (Ok(usize::MAX), Ok(usize::MAX)));
        assert_eq!(meter(Purpose::Data, true), (Ok(usize::MAX), Ok(usize::MAX)));
        let (send, receive) = meter(Purpose::Data, false);
        let wait = send.unwrap_err().saturating_duration_since(Instant::now());
        assert!(wait > Duration::from_secs(5) && wait <= Duration::from_secs(10), "{wait:?}");
        assert_eq!(receive, Ok(usize::MAX));
        // A connection that begins now waits for what the other has moved.
        let late = Meter::new(&network);
        late.identify(PeerId(2), Purpose::State, false);
        assert!(late.allowance(Direction::Send).is_err());
    }
}
