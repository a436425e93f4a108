//! Dialers, listeners and connections, between each other and with strangers.

use crate::node::{KEY, LONG, dial, epoch};
use ringfold_fabric::clock::Clock;
use ringfold_fabric::connection::{CloseReason, Connection, Intake};
use ringfold_fabric::dialer::{Credentials, DialTiming, Dialer};
use ringfold_fabric::limits;
use ringfold_fabric::listener::{Listener, Outcome};
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_fabric::random;
use ringfold_fabric::tls::{Encryption, Security};
use ringfold_proto::handshake::{DialTarget, DialerHandshake, Established, Identity, Secret};
use ringfold_proto::hello::{ConnectionRejection, Hello, Purpose, Welcome};
use ringfold_proto::id::{PeerId, RunId};
use ringfold_proto::time::Time;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn credentials() -> Credentials {
    Credentials {
        identity: Identity::new(PeerId(1), RunId(0)),
        target: DialTarget::member(Purpose::State, epoch(1), PeerId(2)),
        secret: Secret::epoch_key(&KEY),
    }
}

/// A listener that gives everyone the same answer.
struct Server {
    poller: Arc<Poller>,
    listener: Listener,
    answer: Result<Secret, ConnectionRejection>,
    established: Vec<(Established, Connection)>,
    rejected: usize,
}

impl Server {
    fn new(answer: Result<Secret, ConnectionRejection>) -> Self {
        let poller = Arc::new(Poller::new().unwrap());
        let listener = Listener::bind_one("0.0.0.0:0".parse().unwrap(), &poller).unwrap();
        Self { poller, listener, answer, established: Vec::new(), rejected: 0 }
    }

    fn address(&self, host: [u8; 4]) -> SocketAddr {
        SocketAddr::from((host, self.listener.address().port()))
    }

    fn turn(&mut self, now: Time) {
        let mut ready = Readiness::default();
        self.poller.wait(&mut ready, Duration::from_millis(1)).unwrap();
        let identity = Identity::new(PeerId(2), RunId(0));
        for token in ready.tokens() {
            self.listener.handle_ready(now, token, identity, &|_: &Hello| self.answer.clone());
        }
        self.listener.handle_timeout(now);
        while let Some(outcome) = self.listener.poll_outcome() {
            match outcome {
                Outcome::Established(established, connection, _) => {
                    self.established.push((established, connection));
                }
                Outcome::Rejected(..) => self.rejected += 1,
            }
        }
    }
}

#[test]
fn of_parallel_attempts_only_one_authenticates() {
    for _ in 0..20 {
        let mut server = Server::new(Ok(Secret::epoch_key(&KEY)));
        let (clock, poller) = (Clock::start(), Arc::new(Poller::new().unwrap()));
        let addresses = [1, 2, 3].map(|host| server.address([127, 0, 0, host]));
        let timing = DialTiming { head_start: Duration::ZERO, ..DialTiming::of(&poller) };
        let mut dialer = Dialer::new(clock.now(), addresses, credentials(), timing, &poller);
        let end = Instant::now() + LONG;
        let mut dialed = None;
        // All attempts of the dialer have come to their end when the server has answered three times.
        while dialed.is_none() || server.established.len() + server.rejected < 3 {
            assert!(Instant::now() < end, "{} established", server.established.len());
            if dialed.is_none() {
                dialed = dialer.advance(clock.now()).unwrap();
            }
            server.turn(clock.now());
        }
        assert_eq!(server.established.len(), 1);
    }
}

#[test]
fn a_peer_that_refuses_for_now_is_dialled_again_and_a_stranger_is_not() {
    // A stranger that begins like a peer, and closes.
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let at_stranger = stranger.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in stranger.incoming() {
            let mut stream = stream.unwrap();
            stream.read_exact(&mut [0; Hello::BYTES]).unwrap();
            stream.write_all(&Welcome::MAGIC[..4]).unwrap();
        }
    });
    for (answer, is_retried) in
        [(ConnectionRejection::NotAMember, false), (ConnectionRejection::UnknownEpoch, true)]
    {
        let mut server = Server::new(Err(answer));
        let addresses = [at_stranger, server.address([127, 0, 0, 1])];
        let clock = Clock::start();
        let dialing = std::thread::spawn(move || dial(&addresses, LONG, &credentials()));
        let begun = Instant::now();
        while !dialing.is_finished() {
            server.turn(clock.now());
            if server.rejected == 3 {
                server.answer = Ok(Secret::epoch_key(&KEY));
            }
        }
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        assert_eq!(dialing.join().unwrap().is_ok(), is_retried);
        assert_eq!(server.rejected, if is_retried { 3 } else { 1 });
    }
}

/// Serves until the whole welcome lies there to be read.
fn await_welcome(server: &mut Server, now: Time, stream: &TcpStream) {
    let end = Instant::now() + LONG;
    stream.set_nonblocking(true).unwrap();
    while !stream.peek(&mut [0; Welcome::BYTES]).is_ok_and(|bytes| bytes == Welcome::BYTES) {
        server.turn(now);
        assert!(Instant::now() < end, "no welcome");
    }
    stream.set_nonblocking(false).unwrap();
}

const HOST: [u8; 4] = [127, 0, 0, 1];

fn connect_from(at: SocketAddr, from: [u8; 4]) -> TcpStream {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((from, 0))).unwrap();
    rustix::net::connect(&socket, &at).unwrap();
    TcpStream::from(socket)
}

/// A connection from an address, which has sent its hello.
fn begin(at: SocketAddr, from: [u8; 4]) -> (TcpStream, DialerHandshake) {
    let Credentials { identity, target, secret } = credentials();
    let mut dialler = DialerHandshake::new(identity, target, secret, random::nonce().unwrap());
    let mut stream = connect_from(at, from);
    stream.write_all(&dialler.poll_output()).unwrap();
    (stream, dialler)
}

/// The first message of TLS, as a dialler sends it.
fn first_tls_message() -> Vec<u8> {
    let security = Arc::new(Security::new(Encryption::Always).unwrap());
    let poller = Arc::new(Poller::new().unwrap().with_security(security));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (clock, at) = (Clock::start(), listener.local_addr().unwrap());
    let mut dialer = Dialer::new(clock.now(), [at], credentials(), DialTiming::of(&poller), &poller);
    let mut stream = listener.accept().unwrap().0;
    assert!(dialer.advance(clock.now()).unwrap().is_none());
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut bytes = vec![0; 1 << 16];
    let length = stream.read(&mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn an_address_cannot_have_keys_computed_without_end() {
    let mut server = Server::new(Ok(Secret::epoch_key(&KEY)));
    let (at, now, message) = (server.address(HOST), Clock::start().now(), first_tls_message());
    // Whether a connection gets an answer. Then it is closed.
    let mut is_answered = |now, from| {
        let (mut stream, before) = (connect_from(at, from), server.rejected);
        let _ = stream.write_all(&message);
        stream.set_nonblocking(true).unwrap();
        let end = Instant::now() + LONG;
        let mut stream = Some(stream);
        let mut is_answered = false;
        while server.rejected == before {
            server.turn(now);
            assert!(Instant::now() < end, "no end of the handshake");
            if stream.as_ref().is_some_and(|stream| stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0)) {
                (stream, is_answered) = (None, true);
            }
        }
        is_answered
    };
    for _ in 0..limits::handshakes_max() {
        assert!(is_answered(now, HOST));
    }
    assert!(!is_answered(now, HOST));
    assert!(is_answered(now, [127, 0, 0, 2]));
    assert!(is_answered(now + limits::WASTED_PERIOD, HOST));
}

#[test]
fn the_address_with_most_handshakes_gives_way_to_others() {
    let mut server = Server::new(Ok(Secret::epoch_key(&KEY)));
    let (at, now) = (server.address(HOST), Clock::start().now());
    let elsewhere = [127, 0, 0, 2];
    let mut crowd = vec![begin(at, elsewhere).0];
    while crowd.len() <= limits::handshakes_max() {
        await_welcome(&mut server, now, &crowd[crowd.len() - 1]);
        crowd.push(begin(at, HOST).0);
    }
    // All have sent their hello a moment ago, so the last one waits.
    for _ in 0..10 {
        server.turn(now);
    }
    assert_eq!(server.rejected, 0);
    let later = now + limits::CROWDING_MAX;
    await_welcome(&mut server, later, &crowd[crowd.len() - 1]);
    await_welcome(&mut server, later, &begin(at, elsewhere).0);
    assert!((1..=limits::handshakes_max() / 8).contains(&server.rejected), "{}", server.rejected);
    let welcome = &mut [0; Welcome::BYTES];
    crowd[0].read_exact(welcome).unwrap();
    crowd[0].set_nonblocking(true).unwrap();
    let error = crowd[0].read(welcome).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "the older one of the other address stays");
}

#[test]
fn handshakes_that_have_begun_are_not_evicted() {
    let mut server = Server::new(Ok(Secret::epoch_key(&KEY)));
    let (at, clock) = (server.address([127, 0, 0, 1]), Clock::start());
    // All but one have sent their hello, and take their time with the rest.
    let mut begun = Vec::new();
    for _ in 1..limits::handshakes_max() {
        begun.push(begin(at, HOST));
        await_welcome(&mut server, clock.now(), &begun[begun.len() - 1].0);
    }
    let mut silent = TcpStream::connect(at).unwrap();
    let late = begin(at, HOST);
    let end = Instant::now() + LONG;
    while server.rejected == 0 {
        server.turn(clock.now());
        assert!(Instant::now() < end, "nobody was evicted");
    }
    silent.set_read_timeout(Some(LONG)).unwrap();
    assert!(!silent.read(&mut [0]).is_ok_and(|bytes| bytes > 0), "the silent one was evicted");
    begun.push(late);
    for (mut stream, mut dialler) in begun {
        await_welcome(&mut server, clock.now(), &stream);
        let mut welcome = [0; Welcome::BYTES];
        stream.read_exact(&mut welcome).unwrap();
        dialler.handle_bytes(&mut &welcome[..]).unwrap();
        stream.write_all(&dialler.poll_output()).unwrap();
        let before = server.established.len();
        while server.established.len() == before {
            server.turn(clock.now());
            assert!(Instant::now() < end, "{before} established");
        }
    }
    assert_eq!(server.established.len(), limits::handshakes_max());
}

/// A connection with what it sends until its peer's window is full, and the peer.
fn full_window(poller: &Arc<Poller>) -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    let mut connection = Connection::new(stream, poller, Intake::Frames).unwrap();
    connection.send(&vec![7; 64 << 20]);
    connection.flush(&mut Vec::new()).unwrap();
    assert!(connection.queued_bytes() > 0);
    (connection, peer)
}

#[test]
fn a_peer_that_does_not_read_is_waited_for() {
    let limit = Duration::from_secs(3);
    let poller = Arc::new(Poller::new().unwrap());
    poller.set_unreachable_after(limit);
    let (mut connection, mut peer) = full_window(&poller);
    let (begun, mut ready) = (Instant::now(), Readiness::default());
    while begun.elapsed() < limit * 3 {
        poller.wait(&mut ready, limit / 10).unwrap();
        connection.flush(&mut Vec::new()).unwrap();
        connection.fill().unwrap();
    }
    let reader = std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()).unwrap());
    while !connection.poll_finish() {
        poller.wait(&mut ready, limit / 10).unwrap();
    }
    assert_eq!(reader.join().unwrap(), 64 << 20);
    assert_eq!(CloseReason::of(&connection.fill().unwrap_err()), Some(CloseReason::Ended));
}
