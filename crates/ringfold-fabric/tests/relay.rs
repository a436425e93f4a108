//! Relays, with real sockets.

use crate::encryption::certified_as;
use crate::node::{
    KEY, LONG, Node, assert_one_link, both_up, closed_port, drive, epoch, idle, two, two_encrypted,
    two_with_keys,
};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::connection_limits::ConnectionLimits;
use ringfold_fabric::dialer::{Credentials, dial_blocking};
use ringfold_fabric::limits;
use ringfold_fabric::listener::Listener;
use ringfold_fabric::mesh::VisitDialer;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::relay::{RelayAnswer, RelayHandle, RelayRequest, RelayRole, RelayServer, Relays};
use ringfold_fabric::tls::issue::new_ca;
use ringfold_fabric::tls::{Encryption, Security};
use ringfold_proto::epoch::RelayAddress;
use ringfold_proto::handshake::{DialTarget, Identity, Role, Secret};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{PeerId, RunId};
use ringfold_settings::bandwidth::Bandwidth;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TOKEN: &str = "sesame";

struct TestRelay {
    address: SocketAddr,
    handle: RelayHandle,
    thread: Option<JoinHandle<()>>,
    token: &'static str,
}

impl TestRelay {
    fn start() -> Self {
        Self::start_with(Poller::new().unwrap(), TOKEN)
    }

    fn start_with(poller: Poller, token: &'static str) -> Self {
        let poller = Arc::new(poller);
        let listener = Listener::bind_one("127.0.0.1:0".parse().unwrap(), &poller).unwrap();
        let address = listener.address();
        let (server, handle) = RelayServer::new(poller, Some(listener), token.into());
        let thread = std::thread::spawn(move || server.serve().unwrap());
        Self { address, handle, thread: Some(thread), token }
    }

    fn relays(&self) -> Relays {
        let relay = RelayAddress { peer: PeerId(0), address: self.address };
        Relays { addresses: vec![relay], token: self.token.into() }
    }

    fn joined(&self) -> u64 {
        self.handle.counters().pairs.load(Ordering::Relaxed)
    }

    fn dial(&self, me: u128, token: &str) -> std::io::Result<BlockingConnection> {
        self.dial_from(PeerId(me), token, &Poller::new().unwrap())
    }

    fn dial_from(&self, me: PeerId, token: &str, poller: &Poller) -> std::io::Result<BlockingConnection> {
        let identity = Identity::new(me, RunId(0));
        let credentials = Credentials { identity, target: DialTarget::relay(), secret: Secret::token(token) };
        let connection = dial_blocking(&[self.address], LONG, &credentials, poller)?;
        connection.set_read_timeout(Some(LONG)).unwrap();
        Ok(connection)
    }

    fn ask(&self, me: u128, role: RelayRole, other: u128) -> BlockingConnection {
        let connection = self.dial(me, TOKEN).unwrap();
        let request = RelayRequest { role, other: PeerId(other) };
        (&connection).write_all(&request.encode()).unwrap();
        connection
    }

    /// The two ends of a joined pair.
    fn pair(&self) -> [BlockingConnection; 2] {
        let ends = [self.ask(1, RelayRole::Dial, 2), self.ask(2, RelayRole::Await, 1)];
        ends.iter().for_each(|end| assert_eq!(answer(end), Some(RelayAnswer::Joined)));
        ends
    }
}

impl Drop for TestRelay {
    fn drop(&mut self) {
        self.handle.interrupt();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

/// The answer of a relay; none if it closes the connection.
fn answer(mut connection: &BlockingConnection) -> Option<RelayAnswer> {
    let mut bytes = [0; RelayAnswer::BYTES];
    connection.read_exact(&mut bytes).ok()?;
    Some(RelayAnswer::take(&mut &bytes[..])?.unwrap())
}

fn ends(mut connection: &BlockingConnection) -> bool {
    match connection.read(&mut [0; 16]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn two_members_that_cannot_be_reached_meet_at_a_relay() {
    let relay = TestRelay::start();
    let (mut a, mut b) = two_encrypted(4);
    let ids = [a.peer, b.peer];
    let begun = Instant::now();
    meet_at(&relay, &mut a, &mut b);
    assert!(begun.elapsed() >= limits::RELAY_HEAD_START, "direct attempts come first");
    // Both can dial each other for other purposes, again and again.
    for (me, other) in [(0, 1), (1, 0), (0, 1)] {
        let (relays, security) = (relay.relays(), [&a, &b][me].poller.security().unwrap());
        let dial = std::thread::spawn(move || {
            let target = DialTarget::member(Purpose::State, epoch(1), ids[other]);
            let identity = Identity::new(ids[me], RunId(0));
            let credentials = Credentials { identity, target, secret: Secret::epoch_key(&KEY) };
            let route = (&relays, Duration::from_millis(20));
            VisitDialer::new(Arc::new(Poller::new().unwrap().with_security(security)))
                .dial(&[closed_port()], LONG, &credentials, route)
                .unwrap()
        });
        drive(&mut [&mut a, &mut b], |nodes| nodes.iter().any(|node| !node.visitors.is_empty()));
        let visited = if me == 0 { &mut b } else { &mut a };
        let (peer, purpose, visitor) = visited.visitors.pop().unwrap();
        assert_eq!((peer, purpose), (ids[me], Purpose::State));
        (&visitor).write_all(b"state").unwrap();
        let mut bytes = [0; 5];
        (&dial.join().unwrap()).read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"state");
    }
    // The end of one is the end for the other.
    a.up.clear();
    let end = Instant::now() + LONG;
    let mut pool = ringfold_fabric::slots::SlotPool::default();
    while b.up[0].next(&mut pool, |_| ringfold_plan::executor::FrameDecision::Place).is_ok() {
        assert!(Instant::now() < end, "it does not notice");
    }
}

/// Two nodes that have no address meet at a relay.
fn meet_at(relay: &TestRelay, a: &mut Node, b: &mut Node) {
    let ids = [a.peer, b.peer];
    for node in [&mut *a, b] {
        let mesh = core::mem::replace(&mut node.mesh, Node::new(9, 1, LONG).mesh);
        node.mesh = mesh.with_relay_token(relay.token.into(), false);
        node.mesh.use_relays(node.now(), relay.relays().addresses);
        node.mesh.admit(epoch(1), &KEY, ids.to_vec());
    }
    let (of_a, of_b) = (a.member(closed_port()), b.member(closed_port()));
    a.connect_to(of_b, epoch(1));
    b.connect_to(of_a, epoch(1));
    drive(&mut [a, b], both_up);
    assert_one_link(a, b, 1);
    assert!(a.mesh.is_relayed(ids[1]) && b.mesh.is_relayed(ids[0]));
}

#[test]
fn a_relay_with_certificates_refuses_thieves_of_ids_and_joins_the_honest_pair() {
    let (ca, other) = (new_ca("run").unwrap(), new_ca("run").unwrap());
    let relay_of =
        |security| TestRelay::start_with(Poller::new().unwrap().with_security(Arc::new(security)), "");
    let relay = relay_of(certified_as(&ca, "relay", Role::Relay));
    let (mut a, mut b) = two_with_keys(["ann", "ben"].map(|name| certified_as(&ca, name, Role::Peer)), 1);
    let dial = |relay: &TestRelay, me: PeerId, keys: Security| {
        relay.dial_from(me, "", &Poller::new().unwrap().with_security(Arc::new(keys)))
    };
    for (keys, why) in [
        (Security::new(Encryption::Never).unwrap(), "encrypt"),
        (Security::new(Encryption::Always).unwrap(), "certificate"),
        (certified_as(&other, "ben", Role::Peer), "not signed by a CA of this run"),
        (certified_as(&ca, "second", Role::Relay), "role"),
        // A member of the run that is not the one which it claims to be.
        (certified_as(&ca, "mallory", Role::Peer), "keys"),
    ] {
        let error = dial(&relay, b.peer, keys).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    // No member uses a relay that anyone could have started.
    let open = relay_of(Security::new(Encryption::Always).unwrap());
    let error = dial(&open, PeerId(1), certified_as(&ca, "carol", Role::Peer)).unwrap_err().to_string();
    assert!(error.contains("the certificate of the acceptor"), "{error}");
    meet_at(&relay, &mut a, &mut b);
    assert_eq!(relay.joined(), 1);
}

#[test]
fn a_pair_gets_no_more_than_its_rate() {
    const BYTES: usize = 1 << 20;
    let poller = Poller::new().unwrap();
    poller.set_limits(ConnectionLimits {
        relay_pair_rate: Some(Bandwidth::bytes(2 << 20)),
        ..ConnectionLimits::default()
    });
    let relay = TestRelay::start_with(poller, TOKEN);
    let [one, other] = relay.pair();
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| (&one).write_all(&vec![7; BYTES]).unwrap());
        // What goes the other way is not behind all of that.
        (&other).write_all(b"back").unwrap();
        (&one).read_exact(&mut [0; 4]).unwrap();
        assert!(relay.handle.counters().bytes.load(Ordering::Relaxed) < BYTES as u64);
        (&other).read_exact(&mut vec![0; BYTES]).unwrap();
    });
    let took = began.elapsed();
    assert!(took > Duration::from_millis(300) && took < LONG, "{took:?}");
}

#[test]
fn a_pair_that_can_reach_each_other_does_not_use_a_relay() {
    let relay = TestRelay::start();
    for unreachable in [1, 2] {
        let (mut a, mut b) = two(1);
        for node in [&mut a, &mut b] {
            node.mesh.use_relays(node.now(), relay.relays().addresses);
        }
        let of_a = a.member(if unreachable == 1 { closed_port() } else { a.address() });
        let of_b = b.member(if unreachable == 2 { closed_port() } else { b.address() });
        a.connect_to(of_b, epoch(1));
        b.connect_to(of_a, epoch(1));
        drive(&mut [&mut a, &mut b], both_up);
        idle(&mut [&mut a, &mut b], Duration::from_millis(50));
        assert_one_link(&mut a, &mut b, 1);
    }
    assert_eq!(relay.joined(), 0);
}

#[test]
fn bytes_are_copied_in_order_with_back_pressure() {
    const BYTES: usize = 48 << 20;
    let relay = TestRelay::start();
    let [one, other] = relay.pair();
    let pattern = |at: usize| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3];
    let written = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
        (&one).write_all(&bytes).unwrap();
        one
    });
    // Nothing is read for a while: the writer has to wait, and the relay holds no more than its buffers.
    std::thread::sleep(Duration::from_millis(200));
    let held = relay.handle.counters().bytes.load(Ordering::Relaxed);
    assert!(held < BYTES as u64 / 2 && !written.is_finished(), "{held} bytes were taken");
    let mut bytes = vec![0; BYTES];
    (&other).read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
    // The other direction is not affected, and the end is passed on.
    let one = written.join().unwrap();
    (&other).write_all(b"back").unwrap();
    drop(other);
    let mut back = Vec::new();
    (&one).read_to_end(&mut back).unwrap();
    assert_eq!(back, b"back");
}

#[test]
fn strangers_and_members_that_are_not_named_get_nothing() {
    let relay = TestRelay::start();
    assert!(relay.dial(1, "wrong").is_err());
    let identity = Identity::new(PeerId(1), RunId(0));
    for purpose in [Purpose::Data, Purpose::State, Purpose::Control] {
        let target = DialTarget { purpose, epoch: epoch(1), peer: None, role: Role::Peer };
        let credentials = Credentials { identity, target, secret: Secret::token(TOKEN) };
        let rejected = dial_blocking(&[relay.address], LONG, &credentials, &Poller::new().unwrap());
        assert!(rejected.unwrap_err().to_string().contains("unsupported purpose"));
    }
    // It names itself; it sends something else than a request; it does not wait for the answer.
    assert!(ends(&relay.ask(1, RelayRole::Dial, 1)));
    let connection = relay.dial(1, TOKEN).unwrap();
    (&connection).write_all(&[7; RelayRequest::BYTES]).unwrap();
    assert!(ends(&connection));
    let hasty = relay.ask(1, RelayRole::Await, 2);
    (&hasty).write_all(&[0; 100]).unwrap();
    assert!(ends(&hasty));
    // Member 3 is not the one that 2 waits for.
    let waiting = relay.ask(2, RelayRole::Await, 1);
    let unnamed = relay.ask(3, RelayRole::Dial, 2);
    unnamed.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert_eq!((answer(&unnamed), relay.joined()), (None, 0));
    let named = relay.ask(1, RelayRole::Dial, 2);
    assert_eq!([answer(&named), answer(&waiting)], [Some(RelayAnswer::Joined); 2]);
}

#[test]
fn a_member_that_floods_a_relay_is_limited_and_others_are_served() {
    let relay = TestRelay::start();
    let flood: Vec<_> = (0..limits::RELAY_WAITING_PER_MEMBER_MAX as u128 + 10)
        .map(|other| relay.ask(7, RelayRole::Await, 100 + other))
        .collect();
    for rejected in &flood[limits::RELAY_WAITING_PER_MEMBER_MAX..] {
        assert_eq!(answer(rejected), Some(RelayAnswer::Full));
    }
    relay.pair();
    // A connection that is gone makes room.
    drop(flood);
    let end = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < end, "there is no room again");
        let waiting = relay.ask(7, RelayRole::Await, 1);
        let dialled = relay.ask(1, RelayRole::Dial, 7);
        if answer(&dialled) == Some(RelayAnswer::Joined) {
            return assert_eq!(answer(&waiting), Some(RelayAnswer::Joined));
        }
    }
}
