//! Waiting for many sockets at once, and being woken from that.
//!
//! It is level-triggered: unread input is reported again, so every turn can be bounded. Any number of threads may wait
//! at the same time; the thread that handles the sockets needs a lock of its own.

mod pauses;

use crate::connection_limits::ConnectionLimits;
use crate::limits;
use crate::tls::Security;
use crate::traffic::{BandwidthCaps, Direction, Network};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use parking_lot::Mutex;
use pauses::Pauses;
use ringfold_settings::Settings;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Instant;

/// The number of a socket in a poller. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(u64);

/// The token of the kick; sockets have others.
const KICK: Token = Token(0);

/// The token of the timer of pauses.
const TIMER: Token = Token(u64::MAX);

/// Sockets that one wait tells of at most.
const READY_MAX: usize = 64;

/// The poller.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    kick: OwnedFd,
    next: AtomicU64,
    limits: Mutex<ConnectionLimits>,
    checks: Mutex<HealthChecks>,
    /// Accounts and caps of its connections.
    network: Arc<Network>,
    /// How its connections are protected.
    security: Mutex<Option<Arc<Security>>>,
    /// Connections that may move nothing until a time.
    pauses: Mutex<Option<Pauses>>,
    /// Connections with input that the system does not know of.
    buffered: Mutex<BTreeSet<Token>>,
    /// Whether there are any, which every look at the sockets asks.
    any_buffered: AtomicBool,
}

/// A connection whose other host is checked regularly.
pub(crate) trait Health: Send + Sync + core::fmt::Debug {
    /// Ends the connection if its other host does not answer any more.
    fn check(&self, now: Instant);
}

#[derive(Default, Debug)]
struct HealthChecks {
    connections: Vec<Weak<dyn Health>>,
    /// How often they are checked, and when next.
    interval: Duration,
    next: Option<Instant>,
}

/// The sockets that [`Poller::wait`] found ready. Kept between calls, so that nothing is allocated.
#[derive(Default)]
pub struct Readiness {
    events: Vec<epoll::Event>,
}

// SAFETY: what is kept are tokens, which are numbers; only the type that the system fills has room for pointers.
unsafe impl Send for Readiness {}

impl Readiness {
    /// Forgets the answers.
    pub fn clear(&mut self) {
        self.events.clear();
    }

    /// Whether there is no answer: no socket, and no kick either.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether the wait took a [kick](Poller::kick).
    pub fn has_kick(&self) -> bool {
        self.events.iter().any(|event| event.data.u64() == KICK.0)
    }

    /// The sockets that something can be done with.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.events.iter().map(|event| Token(event.data.u64())).filter(|token| *token != KICK)
    }
}

impl Poller {
    /// A poller without sockets.
    /// It has the settings of variables and files.
    pub fn new() -> io::Result<Self> {
        Self::with_settings(&Settings::without_builder().map_err(io::Error::other)?)
    }

    /// A poller with these settings.
    pub fn with_settings(settings: &Settings) -> io::Result<Self> {
        let network = Network::of(settings, BandwidthCaps::default());
        Self::on(Arc::new(network), ConnectionLimits::of(settings))
    }

    /// A poller whose connections have these accounts and caps, and these limits.
    pub fn on(network: Arc<Network>, limits: ConnectionLimits) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &kick, epoll::EventData::new_u64(KICK.0), epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            kick,
            next: AtomicU64::new(KICK.0 + 1),
            limits: Mutex::new(limits),
            checks: Mutex::default(),
            network,
            security: Mutex::new(None),
            pauses: Mutex::new(None),
            buffered: Mutex::default(),
            any_buffered: AtomicBool::new(false),
        })
    }

    /// Sets how its connections are protected.
    pub fn with_security(self, security: Arc<Security>) -> Self {
        self.set_security(security);
        self
    }

    /// Sets how its new connections are protected.
    pub fn set_security(&self, security: Arc<Security>) {
        *self.security.lock() = Some(security);
    }

    /// How its connections are protected: if nothing was set, with keys of the whole process.
    pub fn security(&self) -> io::Result<Arc<Security>> {
        static PROCESS: LazyLock<Result<Arc<Security>, String>> =
            LazyLock::new(|| Security::by_default().map(Arc::new).map_err(|error| error.to_string()));
        match &*self.security.lock() {
            Some(security) => Ok(security.clone()),
            None => PROCESS.clone().map_err(io::Error::other),
        }
    }

    /// A poller with the settings, accounts and caps of another one.
    pub(crate) fn like(other: &Self) -> io::Result<Self> {
        Ok(Self::on(other.network.clone(), other.limits())?.with_security(other.security()?))
    }

    /// A poller with the settings and caps of another one, and accounts of its own.
    pub fn beside(other: &Self) -> io::Result<Self> {
        let network = Network::beside(&other.network);
        Ok(Self::on(Arc::new(network), other.limits())?.with_security(other.security()?))
    }

    /// The limits of its connections.
    pub fn limits(&self) -> ConnectionLimits {
        *self.limits.lock()
    }

    /// Sets the limits of its new connections.
    pub fn set_limits(&self, limits: ConnectionLimits) {
        *self.limits.lock() = limits;
    }

    /// The accounts and caps of its connections.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Reports a socket at this time, and from then on, until [`Poller::resume`].
    pub(crate) fn pause(&self, token: Token, direction: Direction, until: Instant) -> io::Result<()> {
        let mut pauses = self.pauses.lock();
        let pauses = match &mut *pauses {
            Some(pauses) => pauses,
            none => none.insert(Pauses::new(&self.epoll)?),
        };
        pauses.insert((token, direction), until)
    }

    /// Ends a pause.
    pub(crate) fn resume(&self, token: Token, direction: Direction) {
        if let Some(pauses) = &mut *self.pauses.lock() {
            pauses.remove((token, direction));
        }
    }

    /// Sets whether a connection has input that its socket does not show. It is reported by every wait that begins then; a thread
    /// that waits already is not woken.
    pub(crate) fn set_buffered(&self, token: Token, is_buffered: bool) {
        let mut buffered = self.buffered.lock();
        match is_buffered {
            true => buffered.insert(token),
            false => buffered.remove(&token),
        };
        self.any_buffered.store(!buffered.is_empty(), Ordering::Release);
    }

    /// Whether a wait would report input that no socket shows.
    pub(crate) fn has_buffered(&self) -> bool {
        self.any_buffered.load(Ordering::Acquire)
    }

    /// Sets how long the other host of a connection may answer nothing, for connections that are registered from now on. A
    /// connection keeps the setting of its first poller. At least 3 s.
    pub fn set_unreachable_after(&self, limit: Duration) {
        self.limits.lock().unreachable_after = limit.max(limits::UNREACHABLE_AFTER_MIN);
    }

    /// How long the other host of a connection may answer nothing.
    pub fn unreachable_after(&self) -> Duration {
        self.limits.lock().unreachable_after
    }

    /// Checks a connection regularly while someone waits.
    pub(crate) fn check_health(&self, connection: Weak<dyn Health>, limit: Duration) {
        let mut checks = self.checks.lock();
        let interval = (limit / limits::HEALTH_CHECKS).min(Duration::from_secs(60));
        if checks.next.is_none() || interval < checks.interval {
            (checks.interval, checks.next) = (interval, Some(Instant::now() + interval));
            // A thread may sleep without a time for the next check.
            self.kick();
        }
        checks.connections.push(connection);
    }

    /// Checks the connections if it is time. Returns how long there is until the next time.
    fn run_checks(&self, now: Instant) -> Option<Duration> {
        // Another thread that has the lock does it, and may not wait again.
        let Some(mut checks) = self.checks.try_lock() else { return Some(Duration::from_millis(100)) };
        let next = checks.next?;
        if now < next {
            return Some(next - now);
        }
        checks.connections.retain(|connection| {
            let connection = connection.upgrade();
            connection.inspect(|connection| connection.check(now)).is_some()
        });
        checks.next = (!checks.connections.is_empty()).then_some(now + checks.interval);
        checks.next.map(|_| checks.interval)
    }

    /// A new token.
    pub fn token(&self) -> Token {
        Token(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a socket for input.
    pub fn add(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token.0), epoll::EventFlags::IN)?)
    }

    /// Changes whether input and room to write are reported. The end of a connection always is.
    pub fn modify(&self, socket: impl AsFd, token: Token, input: bool, room: bool) -> io::Result<()> {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, input);
        flags.set(epoll::EventFlags::OUT, room);
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token.0), flags)?)
    }

    /// Removes a socket. A closed one is removed by itself.
    pub fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits until a socket is ready, someone kicks, or the time is over.
    pub fn wait(&self, ready: &mut Readiness, timeout: Duration) -> io::Result<()> {
        if timeout.is_zero() {
            // A thread that spins; it waits, and checks, once nothing arrives any more.
            return self.wait_once(ready, timeout);
        }
        let begun = Instant::now();
        let mut now = begun;
        loop {
            let left = timeout.saturating_sub(now - begun);
            let next_check = self.run_checks(now).unwrap_or(Duration::MAX);
            self.wait_once(ready, left.min(next_check))?;
            if !ready.is_empty() || left <= next_check {
                return Ok(());
            }
            now = Instant::now();
        }
    }

    fn wait_once(&self, ready: &mut Readiness, timeout: Duration) -> io::Result<()> {
        let timeout = if self.has_buffered() { Duration::ZERO } else { timeout };
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        ready.events.clear();
        ready.events.reserve(READY_MAX);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if ready.has_kick() {
            // One read takes the kick for all threads.
            let _ = rustix::io::read(&self.kick, &mut [0; 8]);
        }
        let reported = ready.events.len();
        ready.events.retain(|event| event.data.u64() != TIMER.0);
        if ready.events.len() < reported
            && let Some(pauses) = &*self.pauses.lock()
        {
            // Level-triggered, too: they are reported until they are resumed.
            ready.events.extend(pauses.due(Instant::now()).map(input_of));
        }
        if self.has_buffered() {
            ready.events.extend(self.buffered.lock().iter().copied().map(input_of));
        }
        Ok(())
    }

    /// Ends a wait of another thread, or the next wait if there is none now.
    pub fn kick(&self) {
        // It can only fail because it has been kicked 2^64 times.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }
}

fn input_of(token: Token) -> epoll::Event {
    epoll::Event { flags: epoll::EventFlags::IN, data: epoll::EventData::new_u64(token.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_that_no_socket_shows_is_reported_at_once_and_until_it_is_taken() {
        let poller = Poller::new().unwrap();
        let token = poller.token();
        let mut ready = Readiness::default();
        poller.set_buffered(token, true);
        for _ in 0..2 {
            let begun = Instant::now();
            poller.wait(&mut ready, Duration::from_secs(60)).unwrap();
            assert!(ready.tokens().eq([token]) && begun.elapsed() < Duration::from_secs(30));
        }
        poller.set_buffered(token, false);
        poller.wait(&mut ready, Duration::from_millis(1)).unwrap();
        assert!(ready.is_empty());
    }
}
