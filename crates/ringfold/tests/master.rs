//! The master over real sockets, with valid and hostile clients.

use ringfold::{Departure, Error, Master, MasterBuilder, Removal, Timing};
use ringfold_fabric::random;
use ringfold_lab::Usage;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::{Attributes, Member};
use ringfold_proto::frame::{ControlDecoder, encode_control};
use ringfold_proto::handshake::{DialTarget, DialerHandshake, HandshakeError, Identity, Secret};
use ringfold_proto::id::{CallId, EpochId, GroupId, Incarnation, OpId, PeerId, RunId, Seq, Tag};
use ringfold_proto::limits::{CONTROL_BYTES_MAX, OPS_IN_RESUME_MAX};
use ringfold_proto::message::{
    Answer, Ballot, Direction, EpochRecord, Join, Numbered, OpProgress, OpRecord, Outcome, Request, Resume,
    RoundNumbers, ToMaster, ToPeer,
};
use ringfold_proto::reduce_op::ReduceOp;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Much longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Clients here send no heartbeats.
fn timing() -> Timing {
    Timing { silence_max: Duration::from_secs(60), ..Timing::default() }
}

fn local() -> MasterBuilder {
    Master::builder().listen("127.0.0.1:0").timing(timing())
}

fn running(builder: MasterBuilder) -> (Master, SocketAddr) {
    let master = builder.build();
    master.run().unwrap();
    let address = master.addresses()[0];
    (master, address)
}

/// A client that a test controls.
struct Client {
    peer: PeerId,
    stream: TcpStream,
    decoder: ControlDecoder<Numbered<ToPeer>>,
    input: Vec<u8>,
    sent: u64,
    received: u64,
    calls: u64,
}

impl Client {
    /// Connects and authenticates.
    fn dial(to: SocketAddr, token: &str, run: RunId) -> Result<Self, HandshakeError> {
        Self::dial_as(PeerId(random::id().unwrap()), to, token, run)
    }

    fn dial_as(peer: PeerId, to: SocketAddr, token: &str, run: RunId) -> Result<Self, HandshakeError> {
        Self::dial_target(DialTarget::master(), peer, to, token, run)
    }

    fn dial_target(
        target: DialTarget,
        peer: PeerId,
        to: SocketAddr,
        token: &str,
        run: RunId,
    ) -> Result<Self, HandshakeError> {
        let nonce = random::nonce().unwrap();
        let me = Identity::new(peer, run);
        let mut dialler = DialerHandshake::new(me, target, Secret::token(token), nonce);
        let mut stream = connect(to);
        let mut input = Vec::new();
        loop {
            stream.write_all(&dialler.poll_output()).unwrap();
            let mut rest = &input[..];
            let established = dialler.handle_bytes(&mut rest)?;
            input = rest.to_vec();
            if established.is_some() {
                let decoder = ControlDecoder::default();
                return Ok(Self { peer, stream, decoder, input, sent: 0, received: 0, calls: 0 });
            }
            stream.write_all(&dialler.poll_output()).unwrap();
            let mut bytes = [0; 256];
            match stream.read(&mut bytes).unwrap() {
                0 => return Err(dialler.handle_end()),
                read => input.extend_from_slice(&bytes[..read]),
            }
        }
    }

    /// Connects, authenticates and joins.
    fn join(to: SocketAddr) -> Self {
        let mut client = Self::dial(to, "", RunId(0)).unwrap();
        client.send_unnumbered(ToMaster::Join(join_message()));
        client.await_message(|m| matches!(m, ToPeer::Registered { .. }).then_some(()));
        client
    }

    /// Joins as the first peer, which gets an epoch at once.
    fn join_first(to: SocketAddr) -> Self {
        let mut client = Self::join(to);
        client.await_open();
        client
    }

    fn send_numbered(&mut self, message: ToMaster) {
        self.sent += 1;
        self.send(&Numbered { number: self.sent, acknowledged: self.received, message });
    }

    fn send_unnumbered(&mut self, message: ToMaster) {
        self.send(&Numbered { number: 0, acknowledged: self.received, message });
    }

    fn send(&mut self, message: &Numbered<ToMaster>) {
        self.stream.write_all(&encode_control(message).unwrap()).unwrap();
    }

    /// The next message; `None` if the connection is closed.
    fn next(&mut self) -> Option<ToPeer> {
        loop {
            let mut rest = &self.input[..];
            let message = self.decoder.next_message(&mut rest).unwrap();
            self.input = rest.to_vec();
            if let Some(Numbered { number, message, .. }) = message {
                self.received = self.received.max(number);
                return Some(message);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(read) => self.input.extend_from_slice(&bytes[..read]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("receiving failed: {e}"),
            }
        }
    }

    fn await_message<T>(&mut self, mut wanted: impl FnMut(&ToPeer) -> Option<T>) -> T {
        let end = Instant::now() + TIMEOUT;
        loop {
            let message = self.next().expect("the connection is open");
            if let Some(found) = wanted(&message) {
                return found;
            }
            assert!(Instant::now() < end, "timed out waiting for the message");
        }
    }

    fn await_open(&mut self) -> EpochId {
        self.await_message(|m| match m {
            ToPeer::EpochOpened { epoch, .. } => Some(*epoch),
            _ => None,
        })
    }

    /// Votes alone, and waits for the answer.
    fn round_trip(&mut self) -> Duration {
        let began = Instant::now();
        self.calls += 1;
        let round = self.calls;
        let (call, request) = (CallId(self.calls), Request::ArePeersPending);
        self.send_numbered(ToMaster::Vote { call, round, deadline_ms: 0, request });
        self.await_message(|m| match m {
            ToPeer::Answer { call: of, answer: Answer::Pending(_), .. } if *of == call => Some(()),
            _ => None,
        });
        began.elapsed()
    }
}

/// Two members of one epoch, the older first.
fn pair(to: SocketAddr) -> (Client, Client, EpochId) {
    let mut first = Client::join_first(to);
    let mut second = Client::join(to);
    let (call, request) = (CallId(100), Request::UpdateTopology);
    first.send_numbered(ToMaster::Vote { call, round: 1, deadline_ms: 0, request });
    let mut epoch = EpochId::default();
    for client in [&mut first, &mut second] {
        epoch = client.await_message(|m| match m {
            ToPeer::EpochProposed { description, .. } if description.members.len() == 2 => {
                Some(description.id)
            }
            _ => None,
        });
        client.send_numbered(ToMaster::EpochReady { epoch, unreachable: Vec::new() });
    }
    for client in [&mut first, &mut second] {
        assert_eq!(client.await_open(), epoch);
    }
    (first, second, epoch)
}

fn join_message() -> Join {
    let addresses = vec!["0.0.0.0:7".parse().unwrap()];
    Join {
        group: GroupId(0),
        name: "a client".into(),
        host: 1,
        site: 0,
        cores: Default::default(),
        addresses,
        relays: false,
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, TIMEOUT).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Reads until the other end closes.
fn await_end(mut stream: &TcpStream) {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return,
            Err(e) => panic!("the connection was not closed: {e}"),
        }
    }
}

fn ends(master: &Master) {
    let began = Instant::now();
    master.wait().unwrap();
    assert!(began.elapsed() < TIMEOUT);
}

#[test]
fn a_new_peer_is_registered_with_the_address_the_master_sees() {
    let (_master, address) = running(local());
    let mut client = Client::dial(address, "", RunId(0)).unwrap();
    client.send_unnumbered(ToMaster::Join(join_message()));
    client.await_message(|m| matches!(m, ToPeer::Registered { .. }).then_some(()));
    let described = client.await_message(|m| match m {
        ToPeer::EpochProposed { description, .. } => Some(description.clone()),
        _ => None,
    });
    assert_eq!(described.members[0].peer, client.peer);
    assert_eq!(described.members[0].addresses, ["127.0.0.1:7".parse().unwrap()]);
    assert_eq!(client.await_open(), described.id);
    client.round_trip();
}

#[test]
fn peers_of_both_families_are_seen_at_their_source_address() {
    let master = Master::builder().listen("[::]:0").timing(timing()).build();
    match master.run() {
        Ok(()) => {}
        // A machine without IPv6.
        Err(Error::Bind(_)) => return,
        Err(other) => panic!("{other}"),
    }
    let port = master.addresses()[0].port();
    let mut client = Client::join(SocketAddr::from(([127, 0, 0, 1], port)));
    let member = client.await_message(|m| match m {
        ToPeer::EpochProposed { description, .. } => Some(description.members[0].clone()),
        _ => None,
    });
    assert_eq!(member.addresses, ["127.0.0.1:7".parse().unwrap()]);
}

#[test]
fn a_peer_with_any_run_id_is_accepted() {
    let (_master, address) = running(local().token("sesame").insecure(true));
    for run in [RunId(0), RunId(77), RunId(78)] {
        let mut client = Client::dial(address, "sesame", run).unwrap();
        client.send_unnumbered(ToMaster::Join(join_message()));
        client.await_message(|m| matches!(m, ToPeer::Registered { .. }).then_some(()));
    }
}

#[test]
fn a_restarted_master_takes_a_returning_member_back_into_its_epoch() {
    let (first, address) = running(local());
    let mut client = Client::dial(address, "", RunId(0)).unwrap();
    client.send_unnumbered(ToMaster::Join(join_message()));
    let (incarnation, seniority) = client.await_message(|m| match m {
        ToPeer::Registered { incarnation, seniority } => Some((*incarnation, *seniority)),
        _ => None,
    });
    let description = client.await_message(|m| match m {
        ToPeer::EpochProposed { description, .. } => Some((**description).clone()),
        _ => None,
    });
    let attributes = client.await_message(|m| match m {
        ToPeer::EpochOpened { attributes, .. } => Some(*attributes),
        _ => None,
    });
    first.interrupt();
    ends(&first);

    let (_second, _) = running(Master::builder().listen(address.to_string()).timing(timing()));
    let epoch = description.id;
    let resume = Resume {
        join: join_message(),
        incarnation,
        previous: None,
        received: client.received,
        seniority,
        epochs: vec![EpochRecord { description, opened: true, signature: None, ops: Vec::new() }],
        rounds: RoundNumbers::default(),
        last_pending: false,
        synced: None,
        attributes,
        voter: Default::default(),
        charter_signature: None,
        chains: Vec::new(),
        held_bytes: 0,
    };
    let mut client = Client::dial_as(client.peer, address, "", RunId(7)).unwrap();
    client.send_unnumbered(ToMaster::Resume(Box::new(resume)));
    client.await_message(|m| matches!(m, ToPeer::Restored { .. }).then_some(()));
    assert_eq!(client.await_open(), epoch);
    client.round_trip();
}

#[test]
fn an_unreachable_member_is_evicted_and_the_master_continues() {
    let timing = Timing { establish_max: Duration::from_secs(1), ..timing() };
    let (_master, address) = running(local().timing(timing));
    let (mut first, mut second, epoch) = pair(address);
    first.send_numbered(ToMaster::LinkTrouble { epoch, peer: second.peer, direction: Direction::Both });
    // They try their link again until the time is over.
    let reason = loop {
        let next = second.await_message(|m| match m {
            ToPeer::EpochProposed { description, .. } => Some(Ok(description.id)),
            ToPeer::Removed { reason } => Some(Err(reason.clone())),
            _ => None,
        });
        let epoch = match next {
            Ok(epoch) => epoch,
            Err(reason) => break reason,
        };
        first.send_numbered(ToMaster::EpochReady { epoch, unreachable: vec![second.peer] });
        second.send_numbered(ToMaster::EpochReady { epoch, unreachable: Vec::new() });
    };
    assert_eq!(reason, Removal::Departed(Departure::Unreachable));
    assert_ne!(first.await_open(), epoch);
    first.round_trip();
}

#[test]
fn a_wrong_token_is_rejected_with_a_reason() {
    let (_master, address) = running(local().token("sesame").insecure(true));
    let refused = |token: &str| Client::dial(address, token, RunId(0)).err();
    assert_eq!(refused("simsalabim"), Some(HandshakeError::BadToken));
    assert_eq!(refused(""), Some(HandshakeError::TokenMissing));
    assert_eq!(refused("sesame"), None);
    let (_open, address) = running(local());
    let refused = Client::dial(address, "sesame", RunId(0)).err();
    assert_eq!(refused, Some(HandshakeError::TokenUnexpected));
}

#[test]
fn invalid_input_is_rejected_and_disturbs_no_member() {
    let (_master, address) = running(local());
    let mut member = Client::join_first(address);
    for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0; 3000], &[255; 70_000]] {
        let mut stream = connect(address);
        // The connection may be closed before all is written.
        let _ = stream.write_all(garbage);
        await_end(&stream);
        member.round_trip();
    }
    let mut invalid = Client::join(address);
    invalid.stream.write_all(&[3, 0, 0, 0, 255, 255, 255]).unwrap();
    let reason = invalid.await_message(|m| match m {
        ToPeer::Removed { reason } => Some(reason.clone()),
        _ => None,
    });
    assert!(matches!(reason, Removal::Disconnected(_)), "{reason}");
    assert_eq!(invalid.next(), None);
    member.round_trip();
}

#[test]
fn names_that_control_terminals_or_look_like_ids_are_rejected_by_master_and_caller() {
    let (master, address) = running(local());
    for name in ["a\n\x1b[2J\x1b]52;c;aGk=\x07", "b\u{9b}1mhealthy", "c\u{202e}", "00c0ffee"] {
        let named = ringfold::Communicator::builder(address.to_string()).name(name);
        let error = named.build().map(drop).unwrap_err();
        assert!(error.to_string().contains("a name must not "), "{error}");
        // The codec of an honest peer would not send this.
        let message = ToMaster::Join(Join { name: name.into(), ..join_message() });
        let body = postcard::to_allocvec(&Numbered { number: 0, acknowledged: 0, message }).unwrap();
        let mut client = Client::dial(address, "", RunId(0)).unwrap();
        client.stream.write_all(&[&(body.len() as u32).to_le_bytes()[..], &body].concat()).unwrap();
        let reason = client.await_message(|m| match m {
            ToPeer::Removed { reason } => Some(reason.to_string()),
            _ => None,
        });
        assert!(reason.starts_with("invalid message: a name must not "), "{reason}");
    }
    assert_eq!(master.status().unwrap().run.peers, []);
}

#[test]
fn oversized_frames_are_rejected_before_they_are_read() {
    let (_master, address) = running(local());
    let mut member = Client::join_first(address);
    let mut client = Client::dial(address, "", RunId(0)).unwrap();
    client.stream.write_all(&(CONTROL_BYTES_MAX as u32 + 1).to_le_bytes()).unwrap();
    let reason = client.await_message(|m| match m {
        ToPeer::Removed { reason } => Some(reason.clone()),
        _ => None,
    });
    assert!(matches!(reason, Removal::Disconnected(_)), "{reason}");
    assert_eq!(client.next(), None);
    member.round_trip();
}

/// A frame by which a member returns that claims so many operations of five bytes each.
fn resume_with_ops(resume: &Resume, count: usize) -> Vec<u8> {
    let op = OpRecord {
        tag: Tag(0),
        seq: Seq(0),
        descriptor: None,
        progress: OpProgress::Started,
        signature: None,
    };
    let body = |ops: Vec<OpRecord>| {
        let mut resume = resume.clone();
        resume.epochs[0].ops = ops;
        let message = ToMaster::Resume(Box::new(resume));
        encode_control(&Numbered { number: 0, acknowledged: 0, message }).unwrap().split_off(4)
    };
    let (none, one) = (body(Vec::new()), body(vec![op]));
    let at = none.iter().zip(&one).position(|(a, b)| a != b).unwrap();
    let op = &one[at + 1..][..one.len() - none.len()];
    assert_eq!(op.len(), 5);
    let (mut length, mut claim) = (count, Vec::new());
    while length >= 0x80 {
        claim.push(length as u8 | 0x80);
        length >>= 7;
    }
    claim.push(length as u8);
    let body = [&none[..at], &claim, &op.repeat(count), &none[at + 1..]].concat();
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

#[test]
fn many_returning_members_with_many_operations_take_little_memory() {
    // More operations than a member may report, and as many as it may.
    for (ops, held_max) in [(200_000, 1 << 30), (OPS_IN_RESUME_MAX, 32 << 20)] {
        let (_master, address) = running(local().held_bytes_max(held_max));
        let mut member = Client::join(address);
        let description = member.await_message(|m| match m {
            ToPeer::EpochProposed { description, .. } => Some((**description).clone()),
            _ => None,
        });
        let resume = |peer: PeerId| {
            let mut description = description.clone();
            description.members = [Member { peer, ..description.members[0].clone() }].into();
            Resume {
                join: join_message(),
                incarnation: Incarnation(99),
                previous: None,
                received: 0,
                seniority: 1,
                epochs: vec![EpochRecord { description, opened: true, signature: None, ops: Vec::new() }],
                rounds: RoundNumbers::default(),
                last_pending: false,
                synced: None,
                attributes: Attributes { global_world: 1000, ..Attributes::default() },
                voter: Default::default(),
                charter_signature: None,
                chains: Vec::new(),
                held_bytes: 0,
            }
        };
        let before = Usage::of_this_process().unwrap().anonymous_bytes;
        let mut hostile = Vec::new();
        for _ in 0..20 {
            let mut client = Client::dial(address, "", RunId(0)).unwrap();
            let frame = resume_with_ops(&resume(client.peer), ops);
            client.stream.write_all(&frame).unwrap();
            client.await_message(|m| {
                matches!(m, ToPeer::Restoring { .. } | ToPeer::Removed { .. }).then_some(())
            });
            hostile.push(client);
        }
        let grown = Usage::of_this_process().unwrap().anonymous_bytes.saturating_sub(before);
        assert!(grown < 64 << 20, "{ops} operations: {} MiB more", grown >> 20);
    }
}

#[test]
fn whoever_makes_a_master_keep_most_is_dismissed_and_not_the_member_that_grows_next() {
    const MIB: usize = 1 << 20;
    let (_master, address) = running(local().held_bytes_max(16 * MIB));
    // Each sends a part of a message.
    let mut clients: Vec<_> = (0..3).map(|_| Client::join(address)).collect();
    let begin = |client: &mut Client, bytes: usize| {
        client.stream.write_all(&(11 * MIB as u32).to_le_bytes()).unwrap();
        client.stream.write_all(&vec![0; bytes]).unwrap();
    };
    let reason = |client: &mut Client| {
        client.await_message(|m| match m {
            ToPeer::Removed { reason } => Some(reason.to_string()),
            _ => None,
        })
    };
    let (mut honest, mut first, mut second) =
        (clients.pop().unwrap(), clients.pop().unwrap(), clients.pop().unwrap());
    begin(&mut honest, 5 * MIB);
    begin(&mut first, 8 * MIB);
    begin(&mut second, 4 * MIB);
    let why = reason(&mut first);
    assert!(why.contains("the master keeps too much"), "{why}");
    // The honest one goes on, and its message is read to the end.
    honest.stream.write_all(&vec![0; 6 * MIB]).unwrap();
    let why = reason(&mut honest);
    assert!(why.contains("invalid message"), "{why}");
    second.stream.write_all(&vec![0; 7 * MIB]).unwrap();
    let why = reason(&mut second);
    assert!(why.contains("invalid message"), "{why}");
}

#[test]
fn idle_connections_do_not_keep_other_masters_out() {
    let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let list = free.map(|listener| listener.local_addr().unwrap().to_string());
    let timing = Timing { silence_max: Duration::from_secs(1), ..Timing::default() };
    let start = |index: usize| {
        let builder = Master::builder().listen(&list[index]).masters(&list).this_master(index);
        running(builder.timing(timing))
    };
    let (first, address) = start(0);
    let idle: Vec<_> = (0..50)
        .map(|_| {
            let peer = PeerId(random::id().unwrap());
            Client::dial_target(DialTarget::other_master(), peer, address, "", RunId(0)).unwrap()
        })
        .collect();
    let (second, _) = start(1);
    let end = Instant::now() + TIMEOUT;
    while ![&first, &second].iter().any(|master| master.status().unwrap().master.active) {
        assert!(Instant::now() < end, "the masters do not hear each other");
        std::thread::sleep(Duration::from_millis(20));
    }
    idle.iter().for_each(|client| await_end(&client.stream));
}

#[test]
fn stalled_handshakes_are_closed_and_members_are_not_disturbed() {
    let (_master, address) = running(local());
    let mut member = Client::join_first(address);
    let nonce = random::nonce().unwrap();
    let me = Identity::new(PeerId(5), RunId(0));
    let hello = DialerHandshake::new(me, DialTarget::master(), Secret::NONE, nonce).poll_output();
    let mut half = connect(address);
    half.write_all(&hello[..hello.len() / 2]).unwrap();
    let mut unproven = connect(address);
    unproven.write_all(&hello).unwrap();
    let mute = connect(address);
    let mut slow = connect(address);
    // Sending single bytes does not extend the deadline.
    let began = Instant::now();
    let mut bytes = hello.iter();
    while began.elapsed() < Duration::from_secs(6) {
        assert!(member.round_trip() < Duration::from_secs(2));
        std::thread::sleep(Duration::from_millis(200));
        if let Some(byte) = bytes.next() {
            let _ = slow.write_all(&[*byte]);
        }
    }
    for stream in [&half, &unproven, &mute, &slow] {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        await_end(stream);
    }
    member.round_trip();
}

#[test]
fn many_short_connections_do_not_disturb_members() {
    let (_master, address) = running(local());
    let mut member = Client::join_first(address);
    for _ in 0..200 {
        drop(connect(address));
    }
    assert!(member.round_trip() < Duration::from_secs(5));
    // More than the maximum of concurrent handshakes.
    let crowd: Vec<_> = (0..300).map(|_| connect(address)).collect();
    for _ in 0..10 {
        assert!(member.round_trip() < Duration::from_secs(5));
    }
    drop(crowd);
    Client::join(address);
    member.round_trip();
}

#[test]
fn a_connection_without_a_join_is_closed() {
    let brief = Timing { silence_max: Duration::from_millis(200), ..Timing::default() };
    let (_master, address) = running(local().timing(brief));
    let mut silent = Client::dial(address, "", RunId(0)).unwrap();
    let reason = silent.await_message(|m| match m {
        ToPeer::Removed { reason } => Some(reason.clone()),
        _ => None,
    });
    assert!(matches!(reason, Removal::Disconnected(_)), "{reason}");
    assert_eq!(silent.next(), None);
    let mut rash = Client::dial(address, "", RunId(0)).unwrap();
    rash.send_numbered(ToMaster::Leave);
    assert_eq!(rash.next(), None);
}

#[test]
fn a_flooding_peer_does_not_starve_the_others() {
    let (_master, address) = running(local());
    let mut member = Client::join_first(address);
    let mut flooder = Client::join(address);
    let beat = Numbered {
        number: 0,
        acknowledged: 0,
        message: ToMaster::Heartbeat { heard: Vec::new(), ended: Vec::new() },
    };
    let many = encode_control(&beat).unwrap().repeat(20_000);
    flooder.stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    let flood = std::thread::spawn(move || {
        while Instant::now() < end {
            // A partial message is invalid, so the flood ends at the first failed write.
            if flooder.stream.write_all(&many).is_err() {
                break;
            }
        }
    });
    while Instant::now() < end {
        assert!(member.round_trip() < Duration::from_secs(1));
    }
    flood.join().unwrap();
}

#[test]
fn a_master_can_be_started_on_the_same_port_again_and_again() {
    let (first, address) = running(local());
    let mut clients = vec![Client::join_first(address)];
    first.interrupt();
    ends(&first);
    for _ in 0..5 {
        let master = Master::builder().listen(address.to_string()).timing(timing()).build();
        master.run().unwrap();
        clients.push(Client::join_first(address));
        master.interrupt();
        master.interrupt();
        ends(&master);
        ends(&master);
    }
    // All clients have seen the end.
    for client in &clients {
        await_end(&client.stream);
    }
}

#[test]
fn a_master_that_is_dropped_ends_and_frees_its_port() {
    let (master, address) = running(local());
    let client = Client::join_first(address);
    drop(master);
    TcpListener::bind(address).unwrap();
    await_end(&client.stream);
}

#[test]
fn misuse_is_reported() {
    let never = local().build();
    never.interrupt();
    assert!(matches!(never.wait(), Err(Error::Misuse(_))));
    // It was interrupted before it started.
    never.run().unwrap();
    ends(&never);
    let (master, address) = running(local());
    assert!(matches!(master.run(), Err(Error::BadArgument(_))));
    let busy = Master::builder().listen(address.to_string()).build();
    let error = busy.run().unwrap_err();
    assert!(matches!(&error, Error::Bind(why) if why.contains(&address.to_string())), "{error}");
    assert_eq!(busy.addresses(), []);
    drop(master);
    busy.run().unwrap();
    assert_eq!(busy.addresses(), [address]);
    assert!(matches!(local().listen("nowhere").build().run(), Err(Error::BadArgument(_))));
}

#[test]
fn the_master_listens_on_several_addresses() {
    let (master, _) = running(local().listen("127.0.0.1:0").listen("127.0.0.2:0"));
    let addresses = master.addresses();
    assert_eq!(addresses.len(), 3);
    for address in addresses {
        Client::join(address);
    }
}

/// Set in the master process of a test.
const CHILD: &str = "RINGFOLD_TEST_CHILD";

/// A master in its own process: this program, with an ignored test.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(test: &str, limit: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", &format!("{limit} exec \"$0\" --ignored --exact --nocapture {test}")])
            .arg(program)
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            line.split_once("listening on ").map(|(_, address)| address.parse().unwrap())
        });
        Self { child, address: address.unwrap() }
    }

    /// The CPU time that it has used.
    fn busy(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(10 * ticks)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until standard input is closed, in the child process only.
fn serve(builder: MasterBuilder) {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let (master, address) = running(builder);
    println!("\nlistening on {address}");
    let _ = std::io::stdin().read(&mut [0]);
    master.interrupt();
    ends(&master);
}

#[test]
#[ignore = "the other half of without_descriptors_the_master_waits_and_does_not_spin"]
fn child_serves() {
    serve(local());
}

#[test]
#[ignore = "the other half of a_crash_between_two_messages_of_a_commit"]
fn child_crashes_at_the_second_commit() {
    serve(local().crash_after_commits(2));
}

#[test]
fn without_descriptors_the_master_waits_and_does_not_spin() {
    let process = Process::start("master::child_serves", "ulimit -n 40;");
    let mut member = Client::join_first(process.address);
    let crowd: Vec<_> = (0..60).map(|_| connect(process.address)).collect();
    let end = Instant::now() + TIMEOUT;
    while Usage::of(process.child.id()).unwrap().descriptors < 40 {
        assert!(Instant::now() < end, "the master has descriptors left");
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = process.busy();
    for _ in 0..20 {
        assert!(member.round_trip() < Duration::from_secs(1));
        std::thread::sleep(Duration::from_millis(50));
    }
    let spent = process.busy() - before;
    assert!(spent < Duration::from_millis(300), "{spent:?} of a second");
    drop(crowd);
    Client::join(process.address);
}

#[test]
fn a_crash_between_two_messages_of_a_commit() {
    let mut process = Process::start("master::child_crashes_at_the_second_commit", "ulimit -c 0;");
    let (mut first, mut second, epoch) = pair(process.address);
    let mut received = 0;
    for seq in 0..2 {
        let op = OpId { epoch, tag: Tag(0), seq: Seq(seq) };
        for client in [&mut first, &mut second] {
            let descriptor = Descriptor::all_reduce(8, DType::F32, ReduceOp::Sum);
            client.send_numbered(ToMaster::OpVote { op, descriptor, ballot: Ballot::Done { digest: None } });
        }
        for client in [&mut first, &mut second] {
            while let Some(message) = client.next() {
                if let ToPeer::Decided { op: of, outcome: Outcome::Committed { .. }, .. } = message {
                    assert_eq!(of, op);
                    received += 1;
                    break;
                }
            }
        }
    }
    assert_eq!(received, 3, "both received the first commit, one the second");
    let end = Instant::now() + TIMEOUT;
    while process.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the master did not crash");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_vote_is_answered_without_a_sleep() {
    let (_master, address) = running(local());
    let mut member = Client::join_first(address);
    let mut times: Vec<_> = (0..200).map(|_| member.round_trip()).collect();
    times.sort_unstable();
    println!("round trip: median {:?}, 95 % {:?}", times[100], times[190]);
    // Test machines are loaded, so this only asserts that nothing sleeps.
    assert!(times[20] < Duration::from_millis(10), "{:?}", times[20]);
}
