//! Connecting to a peer that may have several addresses.
//!
//! Addresses are tried in turn, each with a head start before the next one is tried in parallel. Only one attempt at a
//! time sends its proof: the other end counts a connection when it has the proof, and must not count two. Relays come last.

use crate::clock::Clock;
use crate::connection::{BlockingConnection, Connection};
use crate::handshake::{Handshake, Rejection};
use crate::limits;
use crate::poller::{Poller, Readiness, Token};
use crate::quic::QuicEndpoint;
use crate::random;
use crate::relay::{RelayLeg, RelayRequest, RelayRole, Relays};
use crate::transport::Transport;
use core::fmt;
use ringfold_proto::handshake::{DialTarget, DialerHandshake, Established, HandshakeError, Identity, Secret};
use ringfold_proto::time::Time;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who dials whom, and the secret that both know.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// This end.
    pub identity: Identity,
    /// The other end.
    pub target: DialTarget,
    /// The shared secret.
    pub secret: Secret,
}

/// Times of a dialer.
#[derive(Clone, Copy, Debug)]
pub struct DialTiming {
    /// How long an address is tried alone.
    pub head_start: Duration,
    /// How long the other end may take to send its first byte, once its system has accepted the connection.
    pub answer_max: Duration,
}

impl DialTiming {
    /// The times of a poller.
    pub fn of(poller: &Poller) -> Self {
        Self { head_start: limits::DIAL_HEAD_START, answer_max: poller.limits().connect_max }
    }
}

/// Connects to the first of some addresses where the right peer answers. Dropping it cancels all attempts.
#[derive(Debug)]
pub struct Dialer {
    credentials: Credentials,
    timing: DialTiming,
    poller: Arc<Poller>,
    /// Dials by QUIC, with this round-trip time as the first estimate.
    quic: Option<(Arc<QuicEndpoint>, Duration)>,
    untried: VecDeque<SocketAddr>,
    /// When the next address is tried, if no attempt fails before.
    next_at: Time,
    attempts: Vec<(SocketAddr, DialAttempt)>,
    /// Relays that are tried when all addresses were, in turn.
    relays: Option<RelayRoute>,
    /// The attempt that may send its proof.
    proving: Option<Token>,
    failures: Vec<(SocketAddr, Rejection)>,
}

/// An attempt to connect.
#[derive(Debug)]
enum DialAttempt {
    Handshake(Handshake),
    /// To a relay, where the peer has not come yet.
    Relay(RelayLeg),
}

impl DialAttempt {
    fn owns(&self, token: Token) -> bool {
        match self {
            Self::Handshake(handshake) => handshake.token() == token,
            Self::Relay(leg) => leg.owns(token),
        }
    }

    fn deadline(&self) -> Time {
        match self {
            Self::Handshake(handshake) => handshake.deadline(),
            Self::Relay(leg) => leg.deadline(),
        }
    }
}

/// Relays that a dialer may use.
#[derive(Debug)]
struct RelayRoute {
    relays: Relays,
    untried: VecDeque<SocketAddr>,
    /// The next one is not tried before.
    next_at: Time,
}

/// A connection that was made.
#[derive(Debug)]
pub struct Dialed {
    /// The result of the handshake.
    pub established: Established,
    /// The connection.
    pub connection: Connection,
    /// The address that was dialled.
    pub address: SocketAddr,
}

/// Why no connection was made: what happened at each address.
#[derive(Debug)]
pub struct DialError {
    /// In the order in which they failed.
    pub failures: Vec<(SocketAddr, Rejection)>,
}

impl DialError {
    /// Whether dialling again may succeed: the right peer has not answered, or has refused only for now.
    pub fn is_retryable(&self) -> bool {
        let mut rejections = self.failures.iter().map(|(_, rejection)| rejection);
        !rejections.clone().any(Rejection::is_final) && rejections.any(|rejection| rejection.retryable)
    }

    /// Whether the right peer has refused the connection for now.
    fn is_early(&self) -> bool {
        let is_refused = |error| matches!(error, Some(HandshakeError::Rejected(_)));
        self.failures.iter().any(|(_, rejection)| rejection.retryable && is_refused(rejection.error))
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failures[..] {
            [] => f.write_str("no address to dial"),
            [(_, rejection)] => rejection.fmt(f),
            all => all.iter().enumerate().try_for_each(|(index, (address, rejection))| {
                write!(f, "{}{address}: {rejection}", if index == 0 { "" } else { "; " })
            }),
        }
    }
}

impl std::error::Error for DialError {}

impl From<DialError> for io::Error {
    fn from(error: DialError) -> Self {
        Self::other(error)
    }
}

impl Dialer {
    /// Begins to dial.
    pub fn new(
        now: Time,
        addresses: impl IntoIterator<Item = SocketAddr>,
        credentials: Credentials,
        timing: DialTiming,
        poller: &Arc<Poller>,
    ) -> Self {
        let mut dialer = Self {
            credentials,
            timing,
            poller: poller.clone(),
            quic: None,
            untried: addresses.into_iter().collect(),
            next_at: now,
            attempts: Vec::new(),
            relays: None,
            proving: None,
            failures: Vec::new(),
        };
        dialer.dial_due(now);
        dialer
    }

    /// Dials one address by QUIC.
    pub(crate) fn by_quic(
        now: Time,
        address: SocketAddr,
        credentials: Credentials,
        endpoint: (Arc<QuicEndpoint>, Duration),
        poller: &Arc<Poller>,
    ) -> Self {
        let mut dialer = Self::new(now, [], credentials, DialTiming::of(poller), poller);
        dialer.quic = Some(endpoint);
        dialer.untried.push_back(address);
        dialer.dial_due(now);
        dialer
    }

    /// Uses relays from this time on, if no address has answered. Without a peer to meet there they are not used.
    pub fn through(mut self, relays: &Relays, not_before: Time) -> Self {
        if let Some(peer) = self.credentials.target.peer {
            let untried = relays.between(self.credentials.identity.peer, peer).collect();
            self.relays = Some(RelayRoute { relays: relays.clone(), untried, next_at: not_before });
        }
        self
    }

    /// Whether a token belongs to one of its attempts.
    pub fn owns(&self, token: Token) -> bool {
        self.attempts.iter().any(|(_, attempt)| attempt.owns(token))
    }

    /// When to call [`Dialer::advance`] even if nothing is ready.
    pub fn poll_timeout(&self) -> Option<Time> {
        let deadlines = self.attempts.iter().map(|(_, attempt)| attempt.deadline());
        // Without an attempt there is nothing to wait for.
        let due = if self.attempts.is_empty() { Some(Time::ZERO) } else { None };
        let next = (!self.untried.is_empty()).then_some(self.next_at).or_else(|| self.next_relay_at());
        deadlines.chain(next).chain(due).min()
    }

    /// An address whose system has accepted the connection, and the round-trip time to it.
    pub(crate) fn accepted(&self) -> Option<(SocketAddr, Duration)> {
        self.attempts.iter().find_map(|(address, attempt)| match attempt {
            DialAttempt::Handshake(handshake) if !handshake.is_relayed() => {
                let round_trip = handshake.round_trip().ok().filter(|round_trip| !round_trip.is_zero())?;
                Some((*address, round_trip))
            }
            _ => None,
        })
    }

    /// The attempts that have failed so far.
    pub fn failures(&self) -> &[(SocketAddr, Rejection)] {
        &self.failures
    }

    /// Advances all attempts; there are few. After a connection or an error it has nothing more to do.
    pub fn advance(&mut self, now: Time) -> Result<Option<Dialed>, DialError> {
        loop {
            let mut index = 0;
            while let Some((address, attempt)) = self.attempts.get_mut(index) {
                let handshake = match attempt {
                    DialAttempt::Handshake(handshake) => handshake,
                    DialAttempt::Relay(leg) => match leg.advance(now) {
                        Ok(None) => {
                            index += 1;
                            continue;
                        }
                        Ok(Some(transport)) => {
                            self.meet(now, index, transport);
                            continue;
                        }
                        Err(rejection) => {
                            self.fail(now, index, rejection);
                            continue;
                        }
                    },
                };
                let token = handshake.token();
                if handshake.is_ready_to_prove() && *self.proving.get_or_insert(token) == token {
                    handshake.send_proof();
                }
                match handshake.advance_dialled(now) {
                    // Its welcome has just arrived.
                    Ok(None) if handshake.is_ready_to_prove() && self.proving.is_none() => {}
                    Ok(None) => index += 1,
                    Ok(Some(established)) => {
                        let address = *address;
                        let DialAttempt::Handshake(handshake) = self.attempts.swap_remove(index).1 else {
                            continue;
                        };
                        self.attempts.clear();
                        let connection = handshake.into_connection();
                        return Ok(Some(Dialed { established, connection, address }));
                    }
                    Err(rejection) => {
                        self.fail(now, index, rejection);
                        if self.proving.take_if(|proving| *proving == token).is_some() {
                            // Another attempt may be waiting to send its proof.
                            index = 0;
                        }
                    }
                }
            }
            if !self.dial_due(now) && !self.dial_relay_due(now) {
                break;
            }
        }
        if self.attempts.is_empty() && self.untried.is_empty() {
            return Err(DialError { failures: core::mem::take(&mut self.failures) });
        }
        Ok(None)
    }

    fn fail(&mut self, now: Time, index: usize, rejection: Rejection) {
        let (address, attempt) = self.attempts.swap_remove(index);
        if let (DialAttempt::Relay(_), Some(route)) = (attempt, &mut self.relays) {
            route.next_at = now;
        }
        tracing::debug!(%address, %rejection, "an attempt to connect failed");
        self.failures.push((address, rejection));
        self.next_at = now;
    }

    /// The peer has come to a relay: begins the handshake with it.
    fn meet(&mut self, now: Time, index: usize, transport: Arc<Transport>) {
        let Credentials { identity, target, secret } = self.credentials.clone();
        let handshake = random::nonce().and_then(|nonce| {
            let security = self.poller.security()?;
            if transport.must_be_encrypted(&security) {
                transport.encrypt(&security)?;
            }
            let dialler = DialerHandshake::new(identity, target, secret, nonce);
            Handshake::dial(now, transport, &self.poller, dialler, now + self.poller.limits().handshake_max)
        });
        match handshake {
            Ok(handshake) => self.attempts[index].1 = DialAttempt::Handshake(handshake),
            Err(error) => self.fail(now, index, Rejection::retryable(error)),
        }
    }

    /// When the next relay is tried, if there is one. None is while the peer answers at one of its addresses.
    fn next_relay_at(&self) -> Option<Time> {
        let answers =
            |attempt: &DialAttempt| matches!(attempt, DialAttempt::Handshake(h) if h.has_answered());
        let route = self.relays.as_ref().filter(|route| !route.untried.is_empty())?;
        let is_answered = self.attempts.iter().any(|(_, attempt)| answers(attempt));
        (self.untried.is_empty() && !is_answered).then_some(route.next_at)
    }

    /// Tries the next relay if it is time. Returns whether it did.
    fn dial_relay_due(&mut self, now: Time) -> bool {
        if self.next_relay_at().is_none_or(|at| now < at) {
            return false;
        }
        let (Some(route), Some(peer)) = (&mut self.relays, self.credentials.target.peer) else {
            return false;
        };
        let Some(address) = route.untried.pop_front() else { return false };
        let request = RelayRequest { role: RelayRole::Dial, other: peer };
        let identity = self.credentials.identity;
        match RelayLeg::dial(now, address, identity, &route.relays, request, &self.poller) {
            Ok(leg) => {
                self.attempts.push((address, DialAttempt::Relay(leg)));
                route.next_at = now + limits::RELAY_NEXT_AFTER;
            }
            Err(error) => self.failures.push((address, Rejection::retryable(error))),
        }
        true
    }

    /// Tries the next address if it is time. Returns whether it did.
    fn dial_due(&mut self, now: Time) -> bool {
        if now < self.next_at && !self.attempts.is_empty() {
            return false;
        }
        let Some(address) = self.untried.pop_front() else { return false };
        let Credentials { identity, target, secret } = self.credentials.clone();
        let handshake = random::nonce().and_then(|nonce| {
            let dialler = DialerHandshake::new(identity, target, secret, nonce);
            let transport = match &self.quic {
                Some((endpoint, round_trip)) => endpoint.dial(address, *round_trip)?.into(),
                None => Transport::dial(address, &*self.poller.security()?)?,
            };
            Handshake::dial(now, transport, &self.poller, dialler, now + self.timing.answer_max)
        });
        match handshake {
            Ok(handshake) => {
                self.attempts.push((address, DialAttempt::Handshake(handshake)));
                self.next_at = now + self.timing.head_start;
            }
            Err(error) => {
                self.failures.push((address, Rejection::retryable(error)));
                self.next_at = now;
            }
        }
        true
    }
}

/// Pauses between attempts, each twice as long as the one before.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// From the shortest pause to the longest.
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        Self { next: shortest, longest }
    }

    /// The pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }
}

/// Dials once, for a thread that has nothing else to do. `may_wait` is called regularly; it returns how long to wait at
/// most until it is called again, or an error that ends the attempt.
pub fn dial_while<E: From<io::Error> + From<DialError>>(
    addresses: &[SocketAddr],
    credentials: &Credentials,
    timing: DialTiming,
    poller: &Arc<Poller>,
    may_wait: impl FnMut(&Dialer) -> Result<Duration, E>,
) -> Result<Dialed, E> {
    let clock = Clock::start();
    let dialer = Dialer::new(clock.now(), addresses.iter().copied(), credentials.clone(), timing, poller);
    wait_while(dialer, clock, poller, may_wait)
}

fn wait_while<E: From<io::Error> + From<DialError>>(
    mut dialer: Dialer,
    clock: Clock,
    poller: &Poller,
    mut may_wait: impl FnMut(&Dialer) -> Result<Duration, E>,
) -> Result<Dialed, E> {
    let mut ready = Readiness::default();
    loop {
        if let Some(dialed) = dialer.advance(clock.now())? {
            return Ok(dialed);
        }
        let longest = may_wait(&dialer)?;
        let due = dialer.poll_timeout().map_or(longest, |at| at.since(clock.now()));
        poller.wait(&mut ready, due.min(longest).max(Duration::from_micros(100)))?;
    }
}

/// Dials until the connection is made, and again if the peer refuses it only for now. Takes the settings of `owner`, which
/// also checks whether the peer's host answers as long as the connection is open.
pub fn dial_blocking(
    addresses: &[SocketAddr],
    timeout: Duration,
    credentials: &Credentials,
    owner: &Poller,
) -> io::Result<BlockingConnection> {
    let poller = Arc::new(Poller::like(owner)?);
    let timing = DialTiming { answer_max: timeout, ..DialTiming::of(owner) };
    dial_again(timeout, |end| {
        let dialed: io::Result<Dialed> =
            dial_while(addresses, credentials, timing, &poller, |_| time_left(end, timeout));
        dialed?.connection.into_blocking()?.check_health_in(owner)
    })
}

/// The time until `end`, or an error if it has passed.
pub(crate) fn time_left(end: Instant, timeout: Duration) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    let timed_out = || io::Error::new(ErrorKind::TimedOut, format!("no answer within {timeout:?}"));
    if left.is_zero() { Err(timed_out()) } else { Ok(left) }
}

/// Dials until that succeeds, as long as the peer refuses only for now.
pub(crate) fn dial_again<T>(
    timeout: Duration,
    mut dial: impl FnMut(Instant) -> io::Result<T>,
) -> io::Result<T> {
    let end = Instant::now() + timeout;
    let mut backoff = Backoff::new(Duration::from_millis(1), limits::REDIAL_PAUSE);
    loop {
        let error = match dial(end) {
            Ok(dialed) => return Ok(dialed),
            Err(error) => error,
        };
        let pause = backoff.next_pause();
        let dial_error = error.get_ref().and_then(|error| error.downcast_ref::<DialError>());
        if !dial_error.is_some_and(DialError::is_early) || Instant::now() + pause >= end {
            return Err(error);
        }
        std::thread::sleep(pause);
    }
}
