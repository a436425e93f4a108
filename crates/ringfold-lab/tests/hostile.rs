//! Hostile input at the ports of a run does not disturb it.

use crate::fixture::{SOON, admit, assert_steps_agree, master_with, peer_with, send_all};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::{Credentials, dial_blocking};
use ringfold_fabric::poller::Poller;
use ringfold_fabric::tls::{Encryption, Security};
use ringfold_lab::PeerReply;
use ringfold_lab::programs::{MasterProcess, PeerProcess};
use ringfold_lab::socket::listening_ports;
use ringfold_lab::usage::descriptors;
use ringfold_proto::handshake::{DialTarget, DialerHandshake, HandshakeError, Identity, Secret};
use ringfold_proto::hello::{Nonce, Purpose};
use ringfold_proto::id::{EpochId, GroupId, Incarnation, PeerId, RunId};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const TOKEN: &str = "sesame";

/// A master and three peers in a loop.
struct LoopRun {
    peers: Vec<PeerProcess>,
    master: MasterProcess,
    /// The descriptors of each process at the start.
    held: Vec<usize>,
}

impl LoopRun {
    fn start() -> Self {
        let master = master_with(&["--listen", "127.0.0.1:0", "--token", TOKEN]);
        let start = |number| peer_with(number, master.address(), &["--token", TOKEN]);
        let mut peers: Vec<PeerProcess> = (0..3).map(start).collect();
        admit(&mut peers);
        send_all(&mut peers, "loop pause=2 count=20000");
        let mut run = Self { peers, master, held: Vec::new() };
        run.make_steps();
        run.held = run.holds();
        run
    }

    /// The addresses of the master and the peers.
    fn addresses(&self) -> Vec<SocketAddr> {
        let ports = self.peers.iter().flat_map(|peer| listening_ports(peer.pid()).expect("ports"));
        let peers = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let all: Vec<_> = std::iter::once(self.master.address()).chain(peers).collect();
        assert_eq!(all.len(), 4, "one for each: {all:?}");
        all
    }

    fn holds(&self) -> Vec<usize> {
        let processes = std::iter::once(&*self.master).chain(self.peers.iter().map(|peer| &**peer));
        // A poller has one timer, from when it first needs it.
        let is_counted = |name: &&String| !name.contains("timerfd");
        let count = |names: Vec<String>| names.iter().filter(is_counted).count();
        processes.map(|process| count(descriptors(process.pid()).expect("descriptors"))).collect()
    }

    /// Waits for twenty more steps on each peer.
    fn make_steps(&mut self) {
        for peer in &mut self.peers {
            peer.take_lines();
            let first = peer.step(SOON, |_| true).expect("a step").number("n");
            peer.step(SOON, |step| step.number("n") >= first + 20).expect("steps");
        }
    }

    /// Asserts that no call failed and no descriptor leaked.
    fn assert_undisturbed(mut self) {
        self.make_steps();
        for peer in &self.peers {
            for line in peer.lines().iter().filter(|line| line.contains(" loop ")) {
                let step: PeerReply = line.parse().expect("an reply");
                let seen = ["aborts", "retries", "world"].map(|name| step.number(name));
                assert_eq!(seen, [0, 0, 3], "{step}");
            }
        }
        assert_steps_agree(&self.peers);
        let deadline = Instant::now() + SOON;
        while self.holds().iter().zip(&self.held).any(|(now, before)| now > before) {
            let pids = std::iter::once(self.master.pid()).chain(self.peers.iter().map(|peer| peer.pid()));
            let open: Vec<_> = pids.map(descriptors).collect();
            assert!(Instant::now() < deadline, "{:?} became {:?}: {open:#?}", self.held, self.holds());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, SOON).expect("connected");
    stream.set_read_timeout(Some(SOON)).expect("a deadline");
    stream.set_write_timeout(Some(SOON)).expect("a deadline");
    stream
}

/// Waits until the other end closes the connection.
fn await_end(mut stream: impl Read) {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("still open: {error}"),
        }
    }
}

fn target(of_master: bool, purpose: Purpose) -> DialTarget {
    let epoch = EpochId { group: GroupId(0), incarnation: Incarnation(7), counter: 1 };
    if of_master { DialTarget::master() } else { DialTarget::member(purpose, epoch, PeerId(1)) }
}

/// A dialer for the master or a member of an epoch, that does not encrypt.
fn dialler(of_master: bool, purpose: Purpose, secret: Secret) -> DialerHandshake {
    let identity = Identity::new(PeerId(0xbad), RunId(0));
    DialerHandshake::new(identity, target(of_master, purpose), secret, Nonce([5; 32]))
}

/// Dials as a peer does.
fn dial_encrypted(
    to: SocketAddr,
    target: DialTarget,
    secret: Secret,
    timeout: Duration,
) -> std::io::Result<BlockingConnection> {
    let security = Arc::new(Security::new(Encryption::Always).expect("keys"));
    let credentials = Credentials { identity: Identity::new(security.peer(), RunId(0)), target, secret };
    let poller = Poller::new().expect("a poller").with_security(security);
    let connection = dial_blocking(&[to], timeout, &credentials, &poller)?;
    connection.set_read_timeout(Some(SOON))?;
    connection.set_write_timeout(Some(SOON))?;
    Ok(connection)
}

/// Runs the handshake as far as the other end allows.
fn shake(mut stream: &TcpStream, mut dialler: DialerHandshake) -> Result<(), HandshakeError> {
    let mut input = Vec::new();
    loop {
        // The other end may close at any time.
        let _ = stream.write_all(&dialler.poll_output());
        let mut rest = &input[..];
        let established = dialler.handle_bytes(&mut rest)?;
        input = rest.to_vec();
        if established.is_some() {
            return Ok(());
        }
        let _ = stream.write_all(&dialler.poll_output());
        let mut bytes = [0; 256];
        match stream.read(&mut bytes) {
            Ok(read @ 1..) => input.extend_from_slice(&bytes[..read]),
            _ => return Err(dialler.handle_end()),
        }
    }
}

/// Pseudo-random bytes, the same in every run.
fn noise(count: usize) -> Vec<u8> {
    let next = |word: &mut u64| {
        *word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        Some((*word >> 56) as u8)
    };
    let mut word = 42;
    std::iter::from_fn(|| next(&mut word)).take(count).collect()
}

#[test]
fn garbage_and_oversized_frames_at_every_port_have_no_effect() {
    let run = LoopRun::start();
    for (index, address) in run.addresses().into_iter().enumerate() {
        let hello = dialler(index == 0, Purpose::Data, Secret::NONE).poll_output();
        let oversized = [&u32::MAX.to_le_bytes()[..], &noise(1 << 20)].concat();
        let behind_a_hello = [&hello[..], &oversized].concat();
        let http = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
        for bytes in [http, vec![0; 3000], vec![255; 70_000], noise(1 << 20), oversized, behind_a_hello] {
            let mut stream = connect(address);
            // It may be closed before all is written.
            let _ = stream.write_all(&bytes);
            await_end(&stream);
        }
    }
    run.assert_undisturbed();
}

#[test]
fn incomplete_handshakes_time_out_and_have_no_effect() {
    let run = LoopRun::start();
    let mut open = Vec::new();
    let mut slow = Vec::new();
    for (index, address) in run.addresses().into_iter().enumerate() {
        let hello = dialler(index == 0, Purpose::State, Secret::NONE).poll_output();
        let (mute, mut half, drop_by_drop) = (connect(address), connect(address), connect(address));
        half.write_all(&hello[..hello.len() / 2]).expect("written");
        open.extend([mute, half]);
        slow.push((drop_by_drop, hello.into_iter()));
    }
    // One byte per second does not extend the timeout of 5 s.
    for _ in 0..7 {
        for (stream, bytes) in &mut slow {
            let _ = stream.write_all(&[bytes.next().expect("a hello is longer")]);
        }
        thread::sleep(Duration::from_secs(1));
    }
    open.iter().chain(slow.iter().map(|(stream, _)| stream)).for_each(await_end);
    run.assert_undisturbed();
}

#[test]
fn many_connections_that_close_at_once_have_no_effect() {
    let run = LoopRun::start();
    for address in run.addresses() {
        for _ in 0..200 {
            drop(connect(address));
        }
        // And all at once.
        let crowd: Vec<TcpStream> = (0..200).map(|_| connect(address)).collect();
        drop(crowd);
    }
    run.assert_undisturbed();
}

#[test]
fn a_peer_without_the_secret_fails_the_handshake() {
    let run = LoopRun::start();
    for (index, address) in run.addresses().into_iter().enumerate() {
        let secrets =
            [Secret::NONE, Secret::token("sesam"), Secret::token(TOKEN), Secret::epoch_key(&[9; 32])];
        for secret in secrets {
            for purpose in [Purpose::Control, Purpose::Data, Purpose::State, Purpose::Probe] {
                // Only the master accepts the token.
                if index == 0 && secret == Secret::token(TOKEN) {
                    continue;
                }
                let stream = connect(address);
                let outcome = shake(&stream, dialler(index == 0, purpose, secret.clone()));
                assert!(outcome.is_err(), "{address} let in {purpose:?}");
                let _ = (&stream).write_all(&noise(10_000));
                await_end(&stream);
                let soon = Duration::from_millis(200);
                let outcome = dial_encrypted(address, target(index == 0, purpose), secret.clone(), soon);
                assert!(outcome.is_err(), "{address} let in {purpose:?}");
            }
        }
    }
    run.assert_undisturbed();
}

#[test]
fn garbage_after_an_authenticated_handshake_has_no_effect() {
    let run = LoopRun::start();
    let address = run.master.address();
    let oversized = [&u32::MAX.to_le_bytes()[..], &noise(1 << 20)].concat();
    let not_a_message = [3, 0, 0, 0, 255, 255, 255].to_vec();
    for bytes in [oversized, not_a_message, noise(1 << 20), vec![0; 1 << 20]] {
        let stream = dial_encrypted(address, DialTarget::master(), Secret::token(TOKEN), SOON);
        let stream = stream.expect("accepted");
        // It may be closed before all is written.
        let _ = (&stream).write_all(&bytes);
        await_end(&stream);
    }
    run.assert_undisturbed();
}
