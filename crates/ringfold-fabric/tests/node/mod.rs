//! Peers that make links, driven by a test.

use ringfold_fabric::clock::Clock;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::{Credentials, dial_blocking};
use ringfold_fabric::link::{Arrival, Link};
use ringfold_fabric::listener::Listener;
use ringfold_fabric::mesh::{Mesh, MeshEvent, VisitDialer};
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_fabric::relay::Relays;
use ringfold_fabric::slots::SlotPool;
use ringfold_fabric::tls::{Encryption, Security};
use ringfold_plan::executor::FrameDecision;
use ringfold_proto::epoch::Member;
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{EpochId, GroupId, Incarnation, OpId, PeerId, Seq, Tag};
use ringfold_proto::link_message::LinkMessage;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than anything here takes, on any machine.
pub const LONG: Duration = Duration::from_secs(30);

pub const KEY: [u8; 32] = [42; 32];

/// Dials and waits.
pub fn dial(
    at: &[SocketAddr],
    timeout: Duration,
    credentials: &Credentials,
) -> std::io::Result<BlockingConnection> {
    dial_blocking(at, timeout, credentials, &Poller::new().unwrap())
}

/// The same, for shared state and probes.
pub fn visit(
    at: &[SocketAddr],
    timeout: Duration,
    credentials: &Credentials,
) -> std::io::Result<BlockingConnection> {
    VisitDialer::new(Arc::new(Poller::new().unwrap())).dial(
        at,
        timeout,
        credentials,
        (&Relays::default(), Duration::ZERO),
    )
}

/// A peer that makes links.
pub struct Node {
    pub peer: PeerId,
    pub host: u64,
    pub mesh: Mesh,
    pub poller: Arc<Poller>,
    pub clock: Clock,
    /// By how much its clock is put forward.
    pub ahead: Duration,
    pub chance: Chance,
    pub up: Vec<Link>,
    pub failed: Vec<String>,
    pub visitors: Vec<(PeerId, Purpose, BlockingConnection)>,
}

impl Node {
    pub fn new(peer: u128, streams: u16, timeout: Duration) -> Self {
        Self::with_keys(PeerId(peer), Arc::new(Security::new(Encryption::Never).unwrap()), streams, timeout)
    }

    fn with_keys(peer: PeerId, security: Arc<Security>, streams: u16, timeout: Duration) -> Self {
        let poller = Arc::new(Poller::new().unwrap().with_security(security));
        let listener = Listener::bind_one("127.0.0.1:0".parse().unwrap(), &poller).unwrap();
        let mesh = Mesh::new(peer, listener, streams, timeout, &poller);
        let (clock, chance) = (Clock::start(), Chance((peer.0 as u64).wrapping_mul(2) | 1));
        let (up, failed, visitors) = (Vec::new(), Vec::new(), Vec::new());
        Self { peer, host: 1, mesh, poller, clock, ahead: Duration::ZERO, chance, up, failed, visitors }
    }

    /// The same, but links with members of this host go through memory.
    pub fn sharing(self, host: u64) -> Self {
        Self { host, mesh: self.mesh.share_memory_on(host), ..self }
    }

    pub fn member(&self, address: SocketAddr) -> Member {
        Member {
            peer: self.peer,
            name: "it".into(),
            host: self.host,
            site: 0,
            cores: Default::default(),
            addresses: vec![address],
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.mesh.address()
    }

    /// The same place by a name that does not look like this host's own, for which one stream would do.
    pub fn far_address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped()), self.address().port())
    }

    pub fn now(&self) -> ringfold_proto::time::Time {
        self.clock.now() + self.ahead
    }

    pub fn connect_to(&mut self, member: Member, epoch: EpochId) {
        self.mesh.request(self.now(), member, epoch, &KEY);
    }

    /// Does some of what can be done.
    pub fn turn(&mut self, timeout: Duration) {
        let mut ready = Readiness::default();
        self.poller.wait(&mut ready, timeout).unwrap();
        for token in ready.tokens() {
            if self.chance.below(4) > 0 {
                self.mesh.handle_ready(self.now(), token);
            }
        }
        if self.mesh.poll_timeout().is_some_and(|at| at <= self.now()) {
            self.mesh.handle_timeout(self.now());
        }
        while let Some(event) = self.mesh.next_event() {
            match event {
                MeshEvent::Up(_, link) => self.up.push(link),
                MeshEvent::Failed(_, why) => self.failed.push(why),
                MeshEvent::Visitor { peer, purpose, connection } => {
                    self.visitors.push((peer, purpose, connection));
                }
            }
        }
    }
}

/// Small numbers that are hard to foresee.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

pub fn epoch(counter: u64) -> EpochId {
    EpochId { group: GroupId(0), incarnation: Incarnation(7), counter }
}

/// Lets nodes act, in any order, until something is the case.
pub fn drive(nodes: &mut [&mut Node], until: impl Fn(&[&mut Node]) -> bool) {
    let end = Instant::now() + LONG;
    while !until(nodes) {
        assert!(Instant::now() < end, "it takes too long; failures: {:?}", nodes[0].failed);
        let who = nodes[0].chance.below(nodes.len() as u64) as usize;
        nodes[who].turn(Duration::from_micros(200));
    }
}

/// Lets them act for a while.
pub fn idle(nodes: &mut [&mut Node], time: Duration) {
    let end = Instant::now() + time;
    drive(nodes, |_| Instant::now() >= end);
}

pub fn both_up(nodes: &[&mut Node]) -> bool {
    nodes[..2].iter().all(|node| !node.up.is_empty())
}

/// The links of the two are the same one, and it works both ways.
pub fn assert_one_link(a: &mut Node, b: &mut Node, number: u64) {
    assert_eq!((a.up.len(), b.up.len()), (1, 1));
    let op = OpId { epoch: epoch(number), tag: Tag(number), seq: Seq(0) };
    let (mut from, mut to) = (&mut a.up[0], &mut b.up[0]);
    for _ in 0..2 {
        from.send_message(&LinkMessage::Want { op });
        from.flush(&mut Vec::new()).unwrap();
        let (mut pool, end) = (SlotPool::default(), Instant::now() + LONG);
        let heard = loop {
            assert!(Instant::now() < end);
            if let Some(arrival) = to.next(&mut pool, |_| FrameDecision::Place).unwrap() {
                break arrival;
            }
        };
        assert!(matches!(heard, Arrival::Message(LinkMessage::Want { op: of }) if of == op), "{heard:?}");
        core::mem::swap(&mut from, &mut to);
    }
}

pub fn two(streams: u16) -> (Node, Node) {
    (Node::new(1, streams, LONG), Node::new(2, streams, LONG))
}

/// The same, whose connections are all encrypted. The first has the lower id.
pub fn two_encrypted(streams: u16) -> (Node, Node) {
    two_with_keys([(); 2].map(|()| Security::new(Encryption::Always).unwrap()), streams)
}

/// Two nodes with these keys; the first has the lower id.
pub fn two_with_keys(keys: [Security; 2], streams: u16) -> (Node, Node) {
    let mut keys = keys.map(Arc::new);
    keys.sort_by_key(|security| security.peer());
    let [a, b] = keys.map(|security| Node::with_keys(security.peer(), security, streams, LONG));
    (a, b)
}

pub fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
