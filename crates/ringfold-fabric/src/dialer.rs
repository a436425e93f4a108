//! Connecting to a peer that may have several addresses.
//!
//! They are tried in turn, each with a head start before the next one is tried beside it. The first handshake that
//! succeeds wins; all others are dropped.

use crate::clock::Clock;
use crate::connection::{BlockingConnection, Connection};
use crate::handshake::{Handshake, Rejection};
use crate::limits;
use crate::poller::{Poller, Readiness, Token};
use crate::random;
use core::fmt;
use ringfold_proto::handshake::{Dialler, Established, Identity, Secret, Target};
use ringfold_proto::time::Time;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who dials whom, and how it is proven.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// This end.
    pub identity: Identity,
    /// The other end.
    pub target: Target,
    /// What both know.
    pub secret: Secret,
}

/// How a dialer goes about it.
#[derive(Clone, Copy, Debug)]
pub struct DialTiming {
    /// How long an address is tried alone.
    pub head_start: Duration,
    /// How long the other end may take to send its first byte, if its system accepts the connection in time.
    pub answer_max: Duration,
}

impl Default for DialTiming {
    fn default() -> Self {
        Self { head_start: limits::DIAL_HEAD_START, answer_max: limits::CONNECT_MAX }
    }
}

/// Connects to the first of some addresses where the right peer answers. Dropping it cancels all attempts.
#[derive(Debug)]
pub struct Dialer {
    credentials: Credentials,
    timing: DialTiming,
    poller: Arc<Poller>,
    untried: VecDeque<SocketAddr>,
    /// When the next address is tried, if no attempt fails before.
    next_at: Time,
    attempts: Vec<(SocketAddr, Handshake)>,
    failures: Vec<(SocketAddr, Rejection)>,
}

/// A connection that was made.
#[derive(Debug)]
pub struct Dialed {
    /// What the two ends know of each other.
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
    /// Whether dialling again may succeed.
    pub fn is_retryable(&self) -> bool {
        self.failures.iter().all(|(_, rejection)| rejection.retryable)
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failures[..] {
            [] => f.write_str("it has no address"),
            [(_, rejection)] => rejection.fmt(f),
            all => all.iter().enumerate().try_for_each(|(index, (address, rejection))| {
                write!(f, "{}{address}: {rejection}", if index == 0 { "" } else { "; " })
            }),
        }
    }
}

impl std::error::Error for DialError {}

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
            untried: addresses.into_iter().collect(),
            next_at: now,
            attempts: Vec::new(),
            failures: Vec::new(),
        };
        dialer.dial_due(now);
        dialer
    }

    /// Whether a token is of one of its attempts.
    pub fn owns(&self, token: Token) -> bool {
        self.attempts.iter().any(|(_, handshake)| handshake.token() == token)
    }

    /// When to call [`Dialer::advance`] even if nothing is ready.
    pub fn poll_timeout(&self) -> Option<Time> {
        let deadlines = self.attempts.iter().map(|(_, handshake)| handshake.deadline());
        // Without an attempt there is nothing to wait for.
        let due = if self.attempts.is_empty() { Some(Time::ZERO) } else { None };
        deadlines.chain((!self.untried.is_empty()).then_some(self.next_at)).chain(due).min()
    }

    /// What failed so far.
    pub fn failures(&self) -> &[(SocketAddr, Rejection)] {
        &self.failures
    }

    /// Moves all attempts on; there are few. After an answer or an error it has nothing more to do.
    pub fn advance(&mut self, now: Time) -> Result<Option<Dialed>, DialError> {
        loop {
            let mut index = 0;
            while let Some((address, handshake)) = self.attempts.get_mut(index) {
                match handshake.advance_dialled(now) {
                    Ok(None) => index += 1,
                    Ok(Some(established)) => {
                        let (address, handshake) = (*address, self.attempts.swap_remove(index).1);
                        self.attempts.clear();
                        let connection = handshake.into_connection();
                        return Ok(Some(Dialed { established, connection, address }));
                    }
                    Err(rejection) => {
                        tracing::debug!(%address, %rejection, "an attempt to connect failed");
                        self.failures.push((*address, rejection));
                        self.attempts.swap_remove(index);
                        self.next_at = now;
                    }
                }
            }
            if !self.dial_due(now) {
                break;
            }
        }
        if self.attempts.is_empty() && self.untried.is_empty() {
            return Err(DialError { failures: core::mem::take(&mut self.failures) });
        }
        Ok(None)
    }

    /// Tries the next address if it is time. Says whether it did.
    fn dial_due(&mut self, now: Time) -> bool {
        if now < self.next_at && !self.attempts.is_empty() {
            return false;
        }
        let Some(address) = self.untried.pop_front() else { return false };
        let Credentials { identity, target, secret } = self.credentials.clone();
        let handshake = random::nonce().and_then(|nonce| {
            let dialler = Dialler::new(identity, target, secret, nonce);
            Handshake::dial(now, address, &self.poller, dialler, now + self.timing.answer_max)
        });
        match handshake {
            Ok(handshake) => {
                self.attempts.push((address, handshake));
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

/// Dials and waits until the connection is made; again, if the other end does not know of us yet. For threads that have
/// nothing else to do.
pub fn dial_blocking(
    addresses: &[SocketAddr],
    timeout: Duration,
    credentials: &Credentials,
) -> io::Result<BlockingConnection> {
    let (clock, poller) = (Clock::start(), Arc::new(Poller::new()?));
    let end = Instant::now() + timeout;
    let mut ready = Readiness::default();
    loop {
        let timing = DialTiming { answer_max: timeout, ..DialTiming::default() };
        let addresses = addresses.iter().copied();
        let mut dialer = Dialer::new(clock.now(), addresses, credentials.clone(), timing, &poller);
        let error = loop {
            match dialer.advance(clock.now()) {
                Ok(Some(dialed)) => return dialed.connection.into_blocking(),
                Ok(None) => {}
                Err(error) => break error,
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time"));
            }
            let due = dialer.poll_timeout().map_or(left, |at| at.since(clock.now()));
            poller.wait(&mut ready, due.min(left).max(Duration::from_micros(100)))?;
        };
        // The other end may be about to hear of the epoch that we speak of.
        let is_early = |(_, rejection): &(_, Rejection)| rejection.retryable && rejection.error.is_some();
        if !error.failures.iter().any(is_early) || Instant::now() + limits::REDIAL_PAUSE >= end {
            return Err(io::Error::other(error));
        }
        std::thread::sleep(limits::REDIAL_PAUSE);
    }
}
