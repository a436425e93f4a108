//! The part of all other ranks: they find rank 0, join, and receive its decisions.

use super::messages::{ArenaOffer, Join, Mapped, Reply};
use super::{Bootstrap, Bootstrapped, LAST_REPLY_MAX, LocalRank, backoff, name_unspecified};
use crate::Error;
use crate::control::ControlConnection;
use crate::group::address_exchange::AddressExchange;
use crate::group::bootstrap_listener::Announcement;
use ringfold_fabric::arena::{Arena, Geometry};
use ringfold_fabric::dialer::{Credentials, DialError, DialTiming, Dialed, dial_while};
use ringfold_fabric::handshake::Rejection;
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_fabric::segment::Ticket;
use ringfold_proto::handshake::{DialTarget, Identity};
use ringfold_proto::id::RunId;
use ringfold_proto::text::Printable;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an address is tried alone, before the next one is tried in parallel.
const HEAD_START: Duration = Duration::from_millis(10);

/// How long a listener at a well-known address may send nothing. Then it is dialled again.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The same for one of several addresses, if others could not be reached: it may be a stranger.
const DOUBTFUL_SILENCE_MAX: Duration = Duration::from_secs(30);

/// How often the address exchange is read again while a listener sends nothing.
const REREAD: Duration = Duration::from_millis(200);

/// The part of all other ranks.
pub(super) fn join(at: &Bootstrap, local: &LocalRank) -> Result<Bootstrapped, Error> {
    if let Bootstrap::Announcement(text) = at {
        text.parse::<Announcement>()
            .map_err(|why| Error::BadArgument(format!("invalid announcement: {why}")))?;
    }
    let exchange = at.exchange();
    let mut last = format!("nobody listens at {at}");
    let mut backoff = backoff();
    loop {
        local.cancel.check()?;
        local.notice.check(|| "rank 0".into(), || last.clone());
        let left = local.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = format!("timed out connecting to rank 0 at {at}: {last}");
            return Err(Error::BootstrapFailed(why));
        }
        last = match attempt(at, exchange.as_ref(), local) {
            Ok(result) => return Ok(result),
            Err(JoinError::Final(error)) => return Err(error),
            Err(JoinError::Retry(why)) => why,
            Err(JoinError::Dial(error)) => error.to_string(),
            Err(JoinError::TimedOut) => "no reply".into(),
        };
        std::thread::sleep(backoff.next_pause().min(left));
    }
}

/// Why an attempt to join failed.
enum JoinError {
    Retry(String),
    Dial(DialError),
    TimedOut,
    Final(Error),
}

impl From<io::Error> for JoinError {
    fn from(error: io::Error) -> Self {
        Self::Retry(error.to_string())
    }
}

impl From<DialError> for JoinError {
    fn from(error: DialError) -> Self {
        Self::Dial(error)
    }
}

fn failed(why: String) -> JoinError {
    JoinError::Final(Error::BootstrapFailed(Printable(why).to_string()))
}

/// Where rank 0 may listen.
struct Candidate<'a> {
    addresses: Vec<SocketAddr>,
    secret: String,
    /// The exchange that it was read from, and the text.
    source: Option<(&'a dyn AddressExchange, String)>,
    /// Whether nobody but rank 0 listens there.
    is_certain: bool,
}

fn find<'a>(
    at: &Bootstrap,
    exchange: Option<&'a Arc<dyn AddressExchange>>,
    local: &LocalRank,
) -> Result<Candidate<'a>, JoinError> {
    let text = match (at, exchange) {
        (Bootstrap::Address(address), _) => {
            let addresses = address.to_socket_addrs()?.collect();
            return Ok(Candidate { addresses, secret: String::new(), source: None, is_certain: true });
        }
        (_, Some(exchange)) => match exchange.read()? {
            Some(text) => text,
            None => return Err(JoinError::Retry(format!("{at} is empty"))),
        },
        (Bootstrap::Listener(place), None) => place.announcement(),
        (Bootstrap::Announcement(text), None) => text.clone(),
        (Bootstrap::File(_) | Bootstrap::Exchange(_), None) => String::new(),
    };
    let invalid = |why| JoinError::Retry(format!("invalid announcement in {at}: {why}"));
    let mut announcement: Announcement = text.parse().map_err(invalid)?;
    announcement.add_hosts(local.known_hosts.iter().copied());
    let Announcement { addresses, secret, .. } = announcement;
    let source = exchange.map(|exchange| (&**exchange, text));
    Ok(Candidate { addresses, secret, source, is_certain: false })
}

/// Dials rank 0. It listens before it accepts, so a connection without an answer is kept while nothing else is announced.
fn dial(to: &Candidate<'_>, local: &LocalRank, poller: &Arc<Poller>) -> Result<Dialed, JoinError> {
    let begun = Instant::now();
    let credentials = Credentials {
        identity: Identity::new(local.member.peer, RunId(0)),
        target: DialTarget::rank_0(),
        secret: local.token.secret_after(&to.secret),
    };
    let timing =
        DialTiming { head_start: HEAD_START, answer_max: local.deadline.saturating_duration_since(begun) };
    let mut next_read = begun + REREAD;
    let dialed = dial_while(&to.addresses, &credentials, timing, poller, |dialer| {
        local.cancel.check().map_err(JoinError::Final)?;
        local.notice.check(|| "rank 0".into(), || "it does not answer".into());
        let now = Instant::now();
        let is_late = now >= local.deadline
            || to.is_certain && begun.elapsed() >= SILENCE_MAX
            || !dialer.failures().is_empty() && begun.elapsed() >= DOUBTFUL_SILENCE_MAX;
        if is_late {
            return Err(JoinError::TimedOut);
        }
        let mut wait = local.cancel.interval().min(local.deadline - now);
        if let Some((exchange, text)) = &to.source {
            if now >= next_read {
                next_read = now + REREAD;
                if exchange.read().is_ok_and(|found| found.as_ref().is_some_and(|found| found != text)) {
                    return Err(JoinError::Retry("rank 0 has announced another address".into()));
                }
            }
            wait = wait.min(next_read - now);
        }
        Ok(wait)
    });
    match dialed {
        Err(JoinError::Dial(error))
            if to.is_certain && error.failures.iter().any(|(_, rejection)| is_hopeless(rejection)) =>
        {
            Err(failed(error.to_string()))
        }
        dialed => dialed,
    }
}

/// Whether rank 0 and this rank belong to different groups.
fn is_hopeless(rejection: &Rejection) -> bool {
    rejection.is_about_secret() || rejection.is_about_certificate()
}

/// Waits for a message of rank 0.
fn receive(
    rank_0: &mut ControlConnection<Reply>,
    poller: &Poller,
    local: &LocalRank,
    deadline: Instant,
) -> Result<Reply, JoinError> {
    let mut ready = Readiness::default();
    loop {
        rank_0.flush()?;
        if let Some(reply) = rank_0.receive()? {
            return Ok(reply);
        }
        local.cancel.check().map_err(JoinError::Final)?;
        local.notice.check(|| "other ranks".into(), || "they have not connected to rank 0".into());
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(JoinError::TimedOut);
        }
        poller.wait(&mut ready, left.min(local.cancel.interval()))?;
    }
}

fn attempt(
    at: &Bootstrap,
    exchange: Option<&Arc<dyn AddressExchange>>,
    local: &LocalRank,
) -> Result<Bootstrapped, JoinError> {
    let poller = Poller::new()?;
    poller.set_limits(local.limits);
    let poller = Arc::new(poller.with_security(local.security.clone()));
    let Dialed { connection, address, .. } = dial(&find(at, exchange, local)?, local, &poller)?;
    let mut rank_0 = ControlConnection::<Reply>::new(connection);
    let LocalRank { name, rank, world, member, may_share, integrity, .. } = local;
    rank_0.send(&Join {
        group: name.clone(),
        rank: rank.0,
        world: *world as u16,
        member: member.clone(),
        may_share: *may_share,
        integrity: integrity.bits(),
    })?;
    let unexpected = || JoinError::Retry("unexpected message".into());
    match receive(&mut rank_0, &poller, local, local.deadline)? {
        Reply::Joined => {}
        Reply::Rejected { why, retryable: true } => return Err(JoinError::Retry(Printable(why).to_string())),
        Reply::Rejected { why, retryable: false } => return Err(failed(why)),
        Reply::Welcome { .. } | Reply::Begin { .. } => return Err(unexpected()),
    }
    // Rank 0 counts this rank from here on: another attempt would find it taken.
    let lost = |error: JoinError| match error {
        JoinError::TimedOut => failed(format!("timed out at {at}: not all ranks have joined")),
        JoinError::Retry(why) => failed(format!("lost rank 0: {why}")),
        error => error,
    };
    let deadline = local.deadline + LAST_REPLY_MAX;
    let (mut description, offer) = match receive(&mut rank_0, &poller, local, deadline).map_err(lost)? {
        Reply::Welcome { description, arena } => (*description, arena),
        Reply::Rejected { why, .. } => return Err(failed(why)),
        Reply::Begin { .. } | Reply::Joined => return Err(lost(unexpected())),
    };
    let is_valid = description.is_valid_for(member.peer)
        && description.rank_of(member.peer) == Some(*rank)
        && description.members.len() == *world;
    if !is_valid {
        return Err(failed("invalid description of the group from rank 0".into()));
    }
    name_unspecified(&mut Arc::make_mut(&mut description.members)[0], address.ip());
    description.tuning = description.tuning.bounded();
    let arena = offer.and_then(|offer| map(&offer, *world));
    rank_0.send(&Mapped(arena.is_some())).map_err(|error| lost(error.into()))?;
    match receive(&mut rank_0, &poller, local, deadline).map_err(lost)? {
        Reply::Begin { shares } => Ok(Bootstrapped { description, arena: arena.filter(|_| shares) }),
        Reply::Rejected { why, .. } => Err(failed(why)),
        Reply::Welcome { .. } | Reply::Joined => Err(lost(unexpected())),
    }
}

fn map(offer: &ArenaOffer, world: usize) -> Option<Arena> {
    let ticket = offer.ticket.as_slice().try_into().ok().and_then(Ticket::decode)?;
    let geometry = Geometry { world, slot_bytes: offer.slot_bytes as usize, depth: usize::from(offer.depth) };
    if !geometry.is_sound() {
        return None;
    }
    let opened = Arena::open(&ticket, geometry);
    opened.inspect_err(|error| tracing::debug!(%error, "failed to open the group's shared memory")).ok()
}
