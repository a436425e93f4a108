//! Settings of emulated links.

use std::time::Duration;

/// One direction of the path between two hosts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PathSettings {
    /// The time from one host to the other, without queues.
    pub delay: Duration,
    /// The largest additional delay. It is random, and does not change the order of packets.
    pub jitter: Duration,
    /// Bits per second, counted over whole IP packets; unlimited if there is none.
    pub rate: Option<u64>,
    /// The time that the queue in front of the rate holds. Packets beyond it are dropped.
    pub queue: Duration,
    /// The share of packets that is lost, 0 to 1.
    pub loss: f64,
    /// The mean number of consecutive packets that are lost together; 1 means independent losses.
    pub loss_burst: f64,
    /// The share of packets that arrives twice, 0 to 1.
    pub duplicates: f64,
    /// Whether UDP is blocked, as by some firewalls.
    pub drops_udp: bool,
    /// Larger packets are dropped without a message: a black hole of the MTU.
    pub drops_above: Option<usize>,
}

impl Default for PathSettings {
    /// No delay, no limit, no loss.
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            queue: Duration::from_millis(100),
            loss: 0.0,
            loss_burst: 1.0,
            duplicates: 0.0,
            drops_udp: false,
            drops_above: None,
        }
    }
}

/// The link of one host to the network, shared by all its paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessLink {
    /// Bits per second from the host; unlimited if there is none.
    pub up: Option<u64>,
    /// Bits per second to the host; unlimited if there is none.
    pub down: Option<u64>,
    /// The time that each of the two queues holds.
    pub queue: Duration,
}

impl Default for AccessLink {
    fn default() -> Self {
        Self { up: None, down: None, queue: Duration::from_millis(100) }
    }
}

/// A NAT or firewall in front of a host: only the host itself can begin connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Firewall {
    /// After this time without packets a connection is forgotten: its packets are dropped silently.
    pub forgets_after: Duration,
}
