//! Meshes, doors and links with real sockets, several in one thread, so that chance decides who acts when.

use crate::node::{
    Chance, KEY, LONG, Node, assert_one_link, both_up, closed_port, dial, drive, epoch, idle, two,
    two_encrypted, visit,
};
use crate::tcp_queues::await_delivered;
use ringfold_fabric::connection::{Connection, Intake};
use ringfold_fabric::dialer::Credentials;
use ringfold_fabric::limits;
use ringfold_fabric::link::{Arrival, Link};
use ringfold_fabric::memory::Lease;
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_fabric::probe;
use ringfold_fabric::random;
use ringfold_fabric::slots::SlotPool;
use ringfold_plan::executor::FrameDecision;
use ringfold_plan::medium::Ticket;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::handshake::{DialTarget, DialerHandshake, Identity, Secret};
use ringfold_proto::hello::{Purpose, Welcome};
use ringfold_proto::id::{OpId, PeerId, RunId, Seq};
use ringfold_proto::link_message::LinkMessage;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn two_who_want_each_other_get_exactly_one_link() {
    let (mut a, mut b) = two(4);
    let (of_a, of_b) = (a.member(a.address()), b.member(b.address()));
    a.connect_to(of_b, epoch(1));
    b.connect_to(of_a, epoch(1));
    drive(&mut [&mut a, &mut b], both_up);
    idle(&mut [&mut a, &mut b], limits::DIAL_HEAD_START * 2);
    assert_one_link(&mut a, &mut b, 1);
    assert_eq!(a.up[0].tokens().count(), 1, "one stream is enough within a host");
}

#[test]
fn it_is_enough_that_one_can_be_dialled() {
    for unreachable in [1, 2] {
        let (mut a, mut b) = two(1);
        let of_a = a.member(if unreachable == 1 { closed_port() } else { a.address() });
        let of_b = b.member(if unreachable == 2 { closed_port() } else { b.address() });
        a.connect_to(of_b, epoch(1));
        b.connect_to(of_a, epoch(1));
        drive(&mut [&mut a, &mut b], both_up);
        idle(&mut [&mut a, &mut b], Duration::from_millis(50));
        assert_one_link(&mut a, &mut b, 1);
    }
}

#[test]
fn a_member_is_tried_at_all_its_addresses() {
    let (mut a, mut b) = two(1);
    let mut of_b = b.member(closed_port());
    of_b.addresses.push(b.address());
    let of_a = a.member(closed_port());
    a.connect_to(of_b, epoch(1));
    b.connect_to(of_a, epoch(1));
    drive(&mut [&mut a, &mut b], both_up);
    assert_one_link(&mut a, &mut b, 1);
}

#[test]
fn nobody_to_be_reached_fails_in_time_and_says_why() {
    let mut a = Node::new(1, 1, Duration::from_millis(300));
    let stranger = Node::new(2, 1, LONG).member(closed_port());
    let begun = Instant::now();
    a.connect_to(stranger, epoch(1));
    drive(&mut [&mut a], |nodes| !nodes[0].failed.is_empty());
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert!(a.failed[0].to_lowercase().contains("refused"), "{:?}", a.failed);
}

#[test]
fn a_wish_that_comes_late_is_met() {
    let (mut a, mut b) = two(2);
    let (of_a, of_b) = (a.member(a.far_address()), b.member(b.far_address()));
    a.connect_to(of_b, epoch(1));
    idle(&mut [&mut a, &mut b], Duration::from_millis(500));
    b.connect_to(of_a, epoch(1));
    drive(&mut [&mut a, &mut b], both_up);
    assert_one_link(&mut a, &mut b, 1);
}

#[test]
fn links_have_the_streams_that_were_asked_for() {
    let (mut a, mut b) = two(4);
    let (of_a, of_b) = (a.member(a.far_address()), b.member(b.far_address()));
    a.connect_to(of_b, epoch(1));
    b.connect_to(of_a, epoch(1));
    drive(&mut [&mut a, &mut b], both_up);
    for node in [&a, &b] {
        assert_eq!(node.up[0].tokens().count(), 4);
    }
    assert_one_link(&mut a, &mut b, 1);
}

/// Both dial at the same time, round after round.
fn dial_each_other(rounds: u64, (mut a, mut b): (Node, Node), address: impl Fn(&Node) -> SocketAddr) {
    let is_shared = a.host != 1;
    let mut slowest = Duration::ZERO;
    for round in 1..=rounds {
        let (of_a, of_b) = (a.member(address(&a)), b.member(address(&b)));
        let begun = Instant::now();
        // To the higher one it seems that it has waited for long enough.
        b.ahead = Duration::ZERO;
        b.connect_to(of_a, epoch(round));
        b.ahead = limits::DIAL_HEAD_START;
        for _ in 0..a.chance.below(12) {
            b.turn(Duration::ZERO);
        }
        a.connect_to(of_b, epoch(round));
        drive(&mut [&mut a, &mut b], both_up);
        slowest = slowest.max(begun.elapsed());
        for _ in 0..10 {
            a.turn(Duration::ZERO);
            b.turn(Duration::ZERO);
        }
        assert_one_link(&mut a, &mut b, round);
        assert!(a.up[0].is_shared() == is_shared && b.up[0].is_shared() == is_shared);
        (a.up, b.up) = (Vec::new(), Vec::new());
        assert!(a.failed.is_empty() && b.failed.is_empty());
    }
    println!("{rounds} rounds; the slowest took {slowest:?}");
    assert!(slowest < limits::HANDSHAKE_MAX / 2, "someone waited for what did not come: {slowest:?}");
}

#[test]
fn two_who_dial_at_once_never_get_two_links_or_none() {
    dial_each_other(200, two(1), Node::address);
}

#[test]
fn two_who_dial_several_streams_at_once_never_get_two_links_or_none() {
    dial_each_other(100, two(3), Node::far_address);
}

#[test]
fn two_who_dial_encrypted_never_get_two_links_or_none() {
    dial_each_other(50, two_encrypted(1), Node::address);
    dial_each_other(50, two_encrypted(3), Node::far_address);
}

#[test]
fn one_who_encrypts_and_one_who_does_not_get_no_link() {
    let ((mut a, _), (_, mut b)) = (two_encrypted(1), two(1));
    let (of_a, of_b) = (a.member(a.address()), b.member(b.address()));
    a.connect_to(of_b, epoch(1));
    b.connect_to(of_a, epoch(1));
    b.ahead = limits::DIAL_HEAD_START;
    drive(&mut [&mut a, &mut b], |nodes| nodes.iter().any(|node| !node.failed.is_empty()));
    assert!(a.up.is_empty() && b.up.is_empty());
}

#[test]
fn two_who_dial_at_once_and_share_memory_never_get_two_links_or_none() {
    let (a, b) = two(1);
    dial_each_other(200, (a.sharing(9), b.sharing(9)), Node::address);
}

fn credentials(me: u128, purpose: Purpose, to: PeerId, key: &[u8; 32]) -> Credentials {
    let target = DialTarget::member(purpose, epoch(1), to);
    Credentials { identity: Identity::new(PeerId(me), RunId(0)), target, secret: Secret::epoch_key(key) }
}

fn dialler(me: u128, purpose: Purpose, to: PeerId, key: &[u8; 32]) -> DialerHandshake {
    let Credentials { identity, target, secret } = credentials(me, purpose, to, key);
    DialerHandshake::new(identity, target, secret, random::nonce().unwrap())
}

#[test]
fn an_intruder_without_the_key_gets_nothing_and_disturbs_nobody() {
    let (mut a, mut b) = two(1);
    b.mesh.admit(epoch(1), &KEY, vec![PeerId(1), PeerId(2)]);
    let (of_a, of_b) = (a.member(a.address()), b.member(b.address()));
    // The one that is wanted is not there yet, and someone claims to be it.
    b.connect_to(of_a, epoch(1));
    let (at, to) = (b.address(), b.peer);
    let intruding = std::thread::spawn(move || {
        for (purpose, key) in [(Purpose::Data, [1; 32]), (Purpose::State, [2; 32])] {
            let error = dial(&[at], LONG, &credentials(1, purpose, to, &key)).unwrap_err();
            assert_ne!(error.kind(), ErrorKind::TimedOut, "{error}");
        }
        // An unknown peer may become known soon, so it tries again until the timeout.
        let briefly = Duration::from_millis(300);
        dial(&[at], briefly, &credentials(3, Purpose::Probe, to, &KEY)).unwrap_err();
        dial(&[at], LONG, &credentials(9, Purpose::Control, to, &KEY)).unwrap_err();
    });
    while !intruding.is_finished() {
        b.turn(Duration::from_millis(1));
    }
    intruding.join().unwrap();
    assert!(b.up.is_empty() && b.visitors.is_empty());
    a.connect_to(of_b, epoch(1));
    drive(&mut [&mut a, &mut b], both_up);
    assert_one_link(&mut a, &mut b, 1);
}

#[test]
fn garbage_at_the_door_is_turned_away_at_once() {
    let (mut a, mut b) = two(1);
    let mut strangers: Vec<_> = (0..20)
        .map(|number: u8| {
            let mut stream = TcpStream::connect(b.address()).unwrap();
            stream.write_all(&[number; 5000]).unwrap();
            stream
        })
        .collect();
    let (of_a, of_b) = (a.member(a.address()), b.member(b.address()));
    a.connect_to(of_b, epoch(1));
    b.connect_to(of_a, epoch(1));
    drive(&mut [&mut a, &mut b], both_up);
    assert_one_link(&mut a, &mut b, 1);
    idle(&mut [&mut b], Duration::from_millis(50));
    for stream in &mut strangers {
        assert!(is_closed(stream));
    }
}

#[test]
fn whoever_says_too_little_is_turned_away_in_time() {
    let mut b = Node::new(2, 1, LONG);
    let mut slow = TcpStream::connect(b.address()).unwrap();
    let mut silent = TcpStream::connect(b.address()).unwrap();
    let hello = dialler(1, Purpose::Data, b.peer, &KEY).poll_output();
    let begun = b.now();
    for byte in &hello[..9] {
        slow.write_all(&[*byte]).unwrap();
        b.ahead += limits::HANDSHAKE_MAX / 10;
        idle(&mut [&mut b], Duration::from_millis(2));
    }
    assert!(!is_closed(&mut slow) && !is_closed(&mut silent), "it had its time: {:?}", b.now() - begun);
    b.ahead += limits::HANDSHAKE_MAX / 5;
    idle(&mut [&mut b], Duration::from_millis(20));
    assert!(is_closed(&mut slow) && is_closed(&mut silent));
    drop((slow, silent));
    idle(&mut [&mut b], Duration::from_millis(20));
    assert_eq!(b.mesh.poll_timeout(), None, "no connection is left");
}

#[test]
fn a_silent_crowd_gives_way_to_a_peer() {
    let (mut a, mut b) = two(1);
    let mut crowd = Vec::new();
    for _ in 0..limits::handshakes_max() + 40 {
        crowd.push(TcpStream::connect(b.address()).unwrap());
        b.turn(Duration::ZERO);
    }
    // Only `b` can be dialled, and it is full.
    let (of_a, of_b) = (a.member(closed_port()), b.member(b.address()));
    a.connect_to(of_b, epoch(1));
    b.connect_to(of_a, epoch(1));
    drive(&mut [&mut a, &mut b], both_up);
    assert_one_link(&mut a, &mut b, 1);
    let dropped = crowd.iter_mut().map(is_closed).filter(|closed| *closed).count();
    assert!((40..=40 + limits::handshakes_max() / 8).contains(&dropped), "{dropped} of the crowd gave way");
}

#[test]
fn a_member_may_come_to_probe() {
    let mut b = Node::new(2, 1, LONG);
    b.mesh.admit(epoch(1), &KEY, vec![PeerId(1), PeerId(2)]);
    let (at, to) = (b.address(), b.peer);
    let probing = std::thread::spawn(move || {
        probe::measure(visit(&[at], LONG, &credentials(1, Purpose::Probe, to, &KEY)).unwrap()).unwrap()
    });
    drive(&mut [&mut b], |nodes| !nodes[0].visitors.is_empty());
    let (peer, purpose, stream) = b.visitors.remove(0);
    assert_eq!((peer, purpose), (PeerId(1), Purpose::Probe));
    probe::answer(stream).unwrap();
    assert!(probing.join().unwrap().forward > 0);
}

#[test]
fn a_member_that_speaks_before_its_time_is_turned_away() {
    let mut b = Node::new(2, 1, LONG);
    b.mesh.admit(epoch(1), &KEY, vec![PeerId(1), PeerId(2)]);
    let mut hasty = TcpStream::connect(b.address()).unwrap();
    let mut dialler = dialler(1, Purpose::Probe, b.peer, &KEY);
    hasty.write_all(&dialler.poll_output()).unwrap();
    idle(&mut [&mut b], Duration::from_millis(20));
    let mut welcome = [0; Welcome::BYTES];
    hasty.read_exact(&mut welcome).unwrap();
    dialler.handle_bytes(&mut &welcome[..]).unwrap();
    hasty.write_all(&[dialler.poll_output(), vec![9; 100]].concat()).unwrap();
    idle(&mut [&mut b], Duration::from_millis(20));
    assert!(b.visitors.is_empty());
}

/// A head of 16 bytes: link, index, count, flags.
fn stream_head(index: u8, count: u8, flags: u8) -> [u8; 16] {
    [7, 0, 0, 0, 0, 0, 0, 0, index, 0, count, 0, flags, 0, 0, 0]
}

#[test]
fn a_visit_with_an_invalid_or_incomplete_pair_of_streams_is_turned_away() {
    const GUARDED: u8 = 2;
    let mut b = Node::new(2, 1, LONG);
    b.mesh.admit(epoch(1), &KEY, vec![PeerId(1), PeerId(2)]);
    let (at, to) = (b.address(), b.peer);
    let come = |b: &mut Node, head: &[u8]| {
        let head = head.to_vec();
        let coming = std::thread::spawn(move || {
            let connection = dial(&[at], LONG, &credentials(1, Purpose::State, to, &KEY)).unwrap();
            (&connection).write_all(&head).unwrap();
            connection
        });
        while !coming.is_finished() {
            b.turn(Duration::from_millis(1));
        }
        idle(&mut [b], Duration::from_millis(20));
        coming.join().unwrap()
    };
    let invalid = come(&mut b, &stream_head(0, 3, 0));
    // Two streams by TCP are no guarded connection.
    let pair = [0, 1].map(|index| come(&mut b, &stream_head(index, 2, GUARDED)));
    let half = come(&mut b, &stream_head(0, 2, GUARDED));
    assert!(b.visitors.is_empty());
    assert!(b.mesh.poll_timeout().is_some(), "the other half is awaited");
    b.ahead += limits::HANDSHAKE_MAX;
    idle(&mut [&mut b], Duration::from_millis(20));
    assert_eq!(b.mesh.poll_timeout(), None, "it is not awaited for ever");
    for closed in [&invalid, &pair[0], &pair[1], &half] {
        closed.set_read_timeout(Some(LONG)).unwrap();
        assert!(matches!((&mut &*closed).read(&mut [0]), Ok(0) | Err(_)));
    }
    let _one = come(&mut b, &stream_head(0, 1, 0));
    assert_eq!(b.visitors.len(), 1);
}

/// Whether the other end has closed, as far as is known by now. What it said before that does not matter.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 1000]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Two ends of a link whose bytes go through our hands: what one end sent, and where the other end reads.
struct Broken {
    from: Link,
    to: Link,
    pipes: Vec<(TcpStream, TcpStream)>,
    poller: Arc<Poller>,
    port: u16,
}

impl Broken {
    fn new(streams: usize) -> Self {
        let poller = Arc::new(Poller::new().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pair = || {
            let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (dialled, listener.accept().unwrap().0)
        };
        let (mut from, mut to, mut pipes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..streams {
            let ((left, inlet), (outlet, right)) = (pair(), pair());
            inlet.set_nonblocking(true).unwrap();
            outlet.set_nonblocking(true).unwrap();
            from.push(Connection::new(left, &Arc::new(Poller::new().unwrap()), Intake::Frames).unwrap());
            to.push(Connection::new(right, &poller, Intake::Frames).unwrap());
            pipes.push((inlet, outlet));
        }
        let port = listener.local_addr().unwrap().port();
        Self { from: Link::new(from), to: Link::new(to), pipes, poller, port }
    }

    /// Passes some bytes on.
    fn pass(&mut self, pipe: usize, bytes: usize) {
        let (inlet, outlet) = &mut self.pipes[pipe];
        let mut block = vec![0; bytes];
        if let Ok(read) = inlet.read(&mut block) {
            let mut rest = &block[..read];
            while !rest.is_empty() {
                match outlet.write(rest) {
                    Ok(written) => rest = &rest[written..],
                    // The other end does not read for now, and what cannot be forwarded is lost in this test.
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

fn header(chunk: u32, length: u32) -> DataHeader {
    DataHeader {
        op: OpId::default(),
        fingerprint: 5,
        chunk,
        offset: 0,
        length,
        slot: 0,
        eager: true,
        checksum: None,
    }
}

/// Sends frames and messages over a link, and expects them in their order.
fn in_order(frames: u32, bytes_max: u64, mut pass: impl FnMut(&mut Broken, u32)) {
    let mut link = Broken::new(4);
    let (mut pool, mut chance) = (SlotPool::default(), Chance(77));
    let (mut sent, mut received, mut flushed) = (0, 0, Vec::new());
    let end = Instant::now() + LONG;
    while received < frames {
        assert!(Instant::now() < end, "{received} of {frames} came");
        // Data is bounded by credit, so a link never holds more than some frames.
        while sent < frames && sent < received + 400 {
            if sent % 5 == 0 {
                let op = OpId { seq: Seq(u64::from(sent)), ..OpId::default() };
                link.from.send_message(&LinkMessage::Want { op });
            } else {
                let bytes = chance.below(bytes_max) as usize;
                let payload = Lease::from(vec![sent as u8; bytes]);
                link.from.put(&header(sent, bytes as u32), payload, Ticket(u64::from(sent)));
            }
            sent += 1;
        }
        link.from.flush(&mut flushed).unwrap();
        pass(&mut link, received);
        while let Some(arrival) = link.to.next(&mut pool, |_| FrameDecision::Place).unwrap() {
            match arrival {
                Arrival::Frame(header, payload) => {
                    assert_eq!(header.chunk, received);
                    assert!(payload.as_slice().iter().all(|byte| *byte == received as u8));
                    pool.give_back(payload);
                }
                Arrival::Message(LinkMessage::Want { op }) => assert_eq!(op.seq, Seq(u64::from(received))),
                other => panic!("{other:?}"),
            }
            received += 1;
        }
    }
}

#[test]
fn frames_keep_their_order_over_several_streams_that_are_cut_up_anyhow() {
    let mut chance = Chance(123);
    in_order(3000, 20_000, |link, _| {
        for _ in 0..20 {
            link.pass(chance.below(4) as usize, 1 + chance.below(9000) as usize);
        }
    });
}

#[test]
fn a_stream_that_lags_far_behind_the_others_breaks_nothing() {
    let mut turns = 0;
    in_order(2000, 300, |link, _| {
        turns += 1;
        // The last stream is let through only when the others have been for long.
        let pipes = if turns % 50 == 0 { 4 } else { 3 };
        for pipe in 0..pipes {
            link.pass(pipe, 100_000);
        }
    });
}

#[test]
fn a_stream_that_must_wait_for_others_does_not_keep_the_poller_awake() {
    let mut link = Broken::new(2);
    let mut pool = SlotPool::default();
    // Both streams have the same to do, so they take turns.
    for chunk in 0..400 {
        link.from.put(&header(chunk, 10), Lease::from(vec![1; 10]), Ticket(u64::from(chunk)));
    }
    link.from.flush(&mut Vec::new()).unwrap();
    await_delivered(link.port);
    // The first frame is on the first stream, which is held back.
    link.pass(1, 1 << 20);
    await_delivered(link.port);
    assert!(link.to.next(&mut pool, |_| FrameDecision::Place).unwrap().is_none());
    let mut ready = Readiness::default();
    link.poller.wait(&mut ready, Duration::from_millis(50)).unwrap();
    assert_eq!(ready.tokens().count(), 0, "nothing is ready, and nothing is reported");
    link.pass(0, 1 << 20);
    let (mut received, end) = (0, Instant::now() + LONG);
    while received < 400 {
        assert!(Instant::now() < end, "{received} came");
        received += u32::from(link.to.next(&mut pool, |_| FrameDecision::Place).unwrap().is_some());
    }
}

#[test]
fn slots_that_are_given_back_wait_for_company() {
    let mut link = Broken::new(1);
    let mut pool = SlotPool::default();
    let returned = LinkMessage::Return { epoch: epoch(1), slots: vec![1, 2] };
    let mut next = |link: &mut Broken| {
        link.from.flush(&mut Vec::new()).unwrap();
        await_delivered(link.port);
        link.pass(0, 1000);
        await_delivered(link.port);
        let mut came = Vec::new();
        for _ in 0..5 {
            came.extend(link.to.next(&mut pool, |_| FrameDecision::Place).unwrap());
        }
        came.len()
    };
    link.from.send_message(&returned);
    assert_eq!(next(&mut link), 0, "alone it would cost a packet of its own");
    link.from.put(&header(0, 10), Lease::from(vec![1; 10]), Ticket(0));
    assert_eq!(next(&mut link), 2, "with a frame it costs nothing");
    link.from.send_message(&returned);
    link.from.flush_deferred();
    assert_eq!(next(&mut link), 1, "a thread about to sleep sends it alone");
}
