//! A process that has no descriptors left does not spin, and accepts connections again once it has some.

use crate::node::{KEY, LONG, Node, epoch, visit};
use ringfold_fabric::channel::Endpoint;
use ringfold_fabric::dialer::Credentials;
use ringfold_fabric::poller::Readiness;
use ringfold_fabric::rendezvous::{RemoteInvitation, Rendezvous};
use ringfold_proto::handshake::{DialTarget, Identity, Secret};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{PeerId, RunId};
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Set in the process that runs out of descriptors.
const CHILD: &str = "RINGFOLD_TEST_WITHOUT_DESCRIPTORS";

/// How long it is looked at.
const WATCHED: Duration = Duration::from_secs(1);

/// The other process, with few descriptors. It is killed when this is dropped.
struct Other {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(test: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -n 40; exec \"$0\" \"$@\" --exact --nocapture"])
            .args([std::env::current_exe().unwrap().as_os_str(), test.as_ref()])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// What it says behind this word.
    fn says(&mut self, word: &str) -> String {
        let said = self.lines.find_map(|line| Some(line.unwrap().split_once(word)?.1.to_owned()));
        said.expect("the other process has ended")
    }

    /// Lets it go on.
    fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Waits until the first process lets this one go on.
fn await_word() {
    std::io::stdin().lines().next();
}

fn crowd(at: SocketAddr) -> Vec<TcpStream> {
    (0..60).map(|_| TcpStream::connect(at).unwrap()).collect()
}

#[test]
fn a_mesh_waits_for_descriptors() {
    if is_child() {
        return mesh_without_descriptors();
    }
    let mut other = Other::start("descriptors::a_mesh_waits_for_descriptors");
    let at: SocketAddr = other.says("listens at ").parse().unwrap();
    let crowd = crowd(at);
    other.tell();
    let wakeups: usize = other.says("wakeups: ").parse().unwrap();
    assert!(wakeups < 500, "{wakeups} wakeups in {WATCHED:?}");
    drop(crowd);
    let credentials = Credentials {
        identity: Identity::new(PeerId(1), RunId(0)),
        target: DialTarget::member(Purpose::Probe, epoch(1), PeerId(2)),
        secret: Secret::epoch_key(&KEY),
    };
    let _visit = visit(&[at], LONG, &credentials).unwrap();
    assert_eq!(other.says("came: "), "1");
}

fn mesh_without_descriptors() {
    let mut b = Node::new(2, 1, LONG);
    b.mesh.admit(epoch(1), &KEY, vec![PeerId(1), PeerId(2)]);
    println!("\nlistens at {}", b.address());
    await_word();
    let (mut ready, mut wakeups, begun) = (Readiness::default(), 0, Instant::now());
    while begun.elapsed() < WATCHED {
        let due = b.mesh.poll_timeout().map_or(WATCHED, |at| at.since(b.now()));
        b.poller.wait(&mut ready, due.min(WATCHED)).unwrap();
        for token in ready.tokens() {
            b.mesh.handle_ready(b.now(), token);
        }
        b.mesh.handle_timeout(b.now());
        wakeups += 1;
    }
    println!("\nwakeups: {wakeups}");
    let end = Instant::now() + LONG;
    while b.visitors.is_empty() && Instant::now() < end {
        b.turn(Duration::from_millis(1));
    }
    println!("\ncame: {}", b.visitors.len());
}

#[test]
fn a_rendezvous_waits_for_descriptors() {
    if is_child() {
        return rendezvous_without_descriptors();
    }
    let mut other = Other::start("descriptors::a_rendezvous_waits_for_descriptors");
    let at: SocketAddr = other.says("listens at ").parse().unwrap();
    let (host, id) = (other.says("host: ").parse().unwrap(), other.says("invitation: ").parse().unwrap());
    let key: Vec<u8> = other.says("key: ").split(' ').map(|byte| byte.parse().unwrap()).collect();
    let invited = RemoteInvitation { host, addresses: vec![at], id, key: key.try_into().unwrap() };
    let crowd = crowd(at);
    other.tell();
    let busy: u64 = other.says("busy: ").parse().unwrap();
    assert!(busy < 300, "{busy} ms of {WATCHED:?}");
    drop(crowd);
    let here = rendezvous("here");
    let mine = here.invite().unwrap();
    here.connect(&mine, &invited, "there", Instant::now() + LONG).unwrap();
}

fn rendezvous(name: &str) -> Rendezvous {
    let endpoint = Arc::new(Endpoint::new(name).unwrap());
    Rendezvous::open(endpoint, Some(Ipv4Addr::LOCALHOST.into())).unwrap()
}

fn rendezvous_without_descriptors() {
    let there = rendezvous("there");
    let invitation = there.invite().unwrap();
    println!("\nlistens at {}\nhost: {}\ninvitation: {}", there.addresses()[0], there.id(), invitation.id());
    let key: Vec<_> = invitation.key().iter().map(u8::to_string).collect();
    println!("key: {}", key.join(" "));
    await_word();
    let before = busy_ms();
    std::thread::sleep(WATCHED);
    println!("\nbusy: {}", busy_ms() - before);
    await_word();
}

/// The processor time that this process has used.
fn busy_ms() -> u64 {
    // Reading a file would need a descriptor.
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
