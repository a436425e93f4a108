//! Many connections of one address to a master that never authenticate: `ringfold bench --master --silent 10000`.

use super::{cpu_ns, memory_peak_bytes, percentile};
use crate::bench::interrupt::Interrupt;
use crate::bench::output::print;
use crate::demo::start_master;
use crate::invocation::Invocation;
use crate::serving::raise_descriptor_limit;
use anyhow::{Context, Result};
use ringfold::settings::{Given, Settings, User};
use ringfold::{Communicator, JoinToken};
use ringfold_fabric::clock::Clock;
use ringfold_fabric::dialer::{Credentials, DialTiming, Dialer};
use ringfold_fabric::poller::Poller;
use ringfold_fabric::random;
use ringfold_fabric::tls::{Encryption, Security};
use ringfold_proto::handshake::{DialTarget, Identity};
use ringfold_proto::id::{PeerId, RunId};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send, socket_with,
};
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time between two bytes of a slow connection. So often dropped connections are made again, too.
const INTERVAL: Duration = Duration::from_secs(1);

/// The pause between two joins.
const JOIN_PAUSE: Duration = Duration::from_millis(230);

/// The pause before another attempt to join.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How long a join may take.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the first bytes of a peer may take.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(5);

/// Where peers connect from.
const PEERS_FROM: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

const HEADER: &str = "\
# connections  they send  address    joins    p50 ms    max ms   connections/s   master cpu s/s   peak memory MiB";

/// What the connections of a crowd send.
#[derive(Clone, Copy)]
enum Conduct {
    Nothing,
    /// The first message of a peer, a byte each second.
    Slow,
    /// The first message of a peer.
    Begin,
}

/// Measures joins, without a crowd and with each kind of one.
pub(super) fn run(count: usize, joins: u32, invocation: &Invocation, interrupt: &Interrupt) -> Result<()> {
    raise_descriptor_limit();
    let token = ringfold::settings::join_token(&Settings::load(User::Peer, &Given::default())?)?;
    let first_bytes = first_bytes(&token).context("cannot make the first message of a peer")?;
    let kind = if token.is_none() { "plain" } else { "by TLS" };
    print(&format!("# joins of one peer, {kind}\n{HEADER}"))?;
    let case = |crowd: Option<(Conduct, Ipv4Addr)>| {
        let name = match crowd {
            None => "-",
            Some((Conduct::Nothing, _)) => "nothing",
            Some((Conduct::Slow, _)) => "1 byte/s",
            Some((Conduct::Begin, _)) => "hello",
        };
        let address = match crowd {
            None => "-",
            Some((_, PEERS_FROM)) => "the same",
            Some(_) => "another",
        };
        let (master, master_address) = start_master(invocation)?;
        let (at, pid) = (master_address.parse().context("invalid address of the master")?, master.id());
        let crowd = crowd.map(|(conduct, from)| Crowd::start(at, from, conduct, count, &first_bytes));
        let crowd = crowd.transpose()?;
        let (began, cpu) = (Instant::now(), cpu_ns(&pid.to_string()));
        let mut times = Vec::new();
        for _ in 0..joins {
            interrupt.check()?;
            thread::sleep(JOIN_PAUSE);
            times.push(join(&master_address, &token)?.as_secs_f64() * 1e3);
        }
        let seconds = began.elapsed().as_secs_f64();
        let cpu = cpu_ns(&pid.to_string()).saturating_sub(cpu) as f64 / 1e9 / seconds;
        let made = crowd.as_ref().map_or(0.0, |crowd| crowd.made.load(Ordering::Relaxed) as f64 / seconds);
        let memory = memory_peak_bytes(pid) as f64 / f64::from(1 << 20);
        times.sort_by(f64::total_cmp);
        let (p50, max, all) = (percentile(&times, 50), percentile(&times, 100), crowd.map_or(0, |_| count));
        print(&format!(
            "{all:13}  {name:9}  {address:8} {joins:7}  {p50:8.2}  {max:8.2}  {made:14.0}  {cpu:15.2}  {memory:16.1}"
        ))
    };
    case(None)?;
    for conduct in [Conduct::Nothing, Conduct::Slow, Conduct::Begin] {
        case(Some((conduct, PEERS_FROM)))?;
        case(Some((conduct, ELSEWHERE)))?;
    }
    Ok(())
}

/// A peer joins and leaves. Returns how long it took until it was connected, with further attempts after failures that
/// may pass.
fn join(master: &str, token: &JoinToken) -> Result<Duration> {
    let began = Instant::now();
    loop {
        let communicator =
            Communicator::builder(master).token(token.clone()).bind(PEERS_FROM.into()).build()?;
        match communicator.connect() {
            Ok(()) => {
                let elapsed = began.elapsed();
                communicator.leave();
                return Ok(elapsed);
            }
            Err(error) if error.is_retryable() && began.elapsed() < JOIN_TIMEOUT => {
                thread::sleep(RETRY_PAUSE)
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a peer sends first: the hello, or that of TLS.
fn first_bytes(token: &JoinToken) -> Result<Vec<u8>> {
    let encryption = if token.is_none() { Encryption::Never } else { Encryption::Always };
    let poller = Arc::new(Poller::new()?.with_security(Arc::new(Security::new(encryption)?)));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let credentials = Credentials {
        identity: Identity::new(PeerId(random::id()?), RunId(0)),
        target: DialTarget::master(),
        secret: token.secret(),
    };
    let clock = Clock::start();
    let timing = DialTiming::of(&poller);
    let mut dialer = Dialer::new(clock.now(), [listener.local_addr()?], credentials, timing, &poller);
    let (mut stream, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    let end = Instant::now() + FIRST_BYTES_TIMEOUT;
    let mut bytes = vec![0; 1 << 16];
    while Instant::now() < end {
        dialer.advance(clock.now())?;
        match stream.read(&mut bytes) {
            Ok(length) if length > 0 => {
                bytes.truncate(length);
                return Ok(bytes);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(1)),
            ended => anyhow::bail!("the connection ended: {ended:?}"),
        }
    }
    anyhow::bail!("timed out after {FIRST_BYTES_TIMEOUT:?}")
}

/// Connections of one address. Those that the master closes are made again.
struct Crowd {
    /// Connections that were made again.
    made: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Returns when all have been made once.
    fn start(at: SocketAddr, from: Ipv4Addr, conduct: Conduct, count: usize, bytes: &[u8]) -> Result<Self> {
        let (made, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut crowd = Self { made: made.clone(), ends: ends.clone(), thread: None };
        let bytes = bytes.to_vec();
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(Intruder::new(at, from, conduct, &bytes).context("cannot make a connection")?);
        }
        crowd.thread = Some(thread::Builder::new().name("crowd".into()).spawn(move || {
            let mut next = Instant::now() + INTERVAL;
            while !ends.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
                if Instant::now() < next {
                    continue;
                }
                next = Instant::now() + INTERVAL;
                for intruder in &mut connections {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    if intruder.advance(conduct, &bytes) {
                        continue;
                    }
                    // Without a descriptor or a port it is tried again.
                    if let Ok(new) = Intruder::new(at, from, conduct, &bytes) {
                        *intruder = new;
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        })?);
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection of a crowd.
struct Intruder {
    socket: OwnedFd,
    /// Bytes that it has sent, and that it should have sent.
    sent: usize,
    due: usize,
}

impl Intruder {
    fn new(at: SocketAddr, from: Ipv4Addr, conduct: Conduct, bytes: &[u8]) -> rustix::io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddr::from((from, 0)))?;
        match connect(&socket, &at) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let mut intruder = Self { socket, sent: 0, due: 0 };
        intruder.advance(conduct, bytes);
        Ok(intruder)
    }

    /// Sends what is due. Returns whether the connection is open.
    fn advance(&mut self, conduct: Conduct, bytes: &[u8]) -> bool {
        self.due = match conduct {
            Conduct::Nothing => 0,
            Conduct::Slow => (self.due + 1).min(bytes.len()),
            Conduct::Begin => bytes.len(),
        };
        if self.sent < self.due {
            match send(&self.socket, &bytes[self.sent..self.due], SendFlags::NOSIGNAL) {
                Ok(length) => self.sent += length,
                Err(rustix::io::Errno::AGAIN) => {}
                Err(_) => return false,
            }
        }
        match recv(&self.socket, &mut [0; 1024][..], RecvFlags::empty()) {
            Ok((_, length)) => length > 0,
            Err(error) => error == rustix::io::Errno::AGAIN,
        }
    }
}
