//! The part of all other ranks: they find rank 0, say who they are, and hear what it decided.

use super::reach::{Reached, reach};
use super::wire::{ArenaOffer, Join, Mapped, Reply, Wire, WireError};
use super::{Arrival, Bootstrap, LAST_WORDS_MAX, Met, backoff, name_unspecified};
use crate::Error;
use crate::group::notice::Notice;
use crate::group::place::Announcement;
use ringfold_fabric::arena::{Arena, Geometry};
use ringfold_fabric::segment::Ticket;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

/// The part of all other ranks.
pub(super) fn join(at: &Bootstrap, arrival: &Arrival) -> Result<Met, Error> {
    if let Bootstrap::Told(text) = at {
        read(text).map_err(|why| Error::BadArgument(format!("what was told is no announcement: {why}")))?;
    }
    let notice = at.notice();
    let mut trouble = format!("nobody listens at {at}");
    let mut backoff = backoff();
    loop {
        arrival.vigil.check()?;
        if Instant::now() >= arrival.until {
            return Err(Error::NoGroup(format!("rank 0 was not found at {at} in time: {trouble}")));
        }
        match attempt(at, notice.as_ref(), arrival) {
            Ok(met) => return Ok(met),
            Err(Failed::Retry(why)) => trouble = why,
            Err(Failed::Final(error)) => return Err(error),
        }
        std::thread::sleep(backoff.next_pause().min(arrival.until.saturating_duration_since(Instant::now())));
    }
}

/// What a text announces.
pub(super) fn read(text: &str) -> Result<Announcement, &'static str> {
    text.parse()
}

/// Why an attempt to join came to nothing.
pub(super) enum Failed {
    Retry(String),
    Final(Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Retry(error.to_string())
    }
}

impl From<WireError> for Failed {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Io(error) => error.into(),
            WireError::Ended(error) => Self::Final(error),
        }
    }
}

fn refused(why: String) -> Failed {
    Failed::Final(Error::NoGroup(why))
}

/// Where rank 0 is said to listen.
pub(super) struct Lead<'a> {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) secret: String,
    /// Where it was read, and what.
    pub(super) source: Option<(&'a dyn Notice, String)>,
    /// Whether there is nobody else that could be meant.
    pub(super) is_certain: bool,
}

fn find<'a>(
    at: &Bootstrap,
    notice: Option<&'a Arc<dyn Notice>>,
    arrival: &Arrival,
) -> Result<Lead<'a>, Failed> {
    let text = match (at, notice) {
        (Bootstrap::Address(address), _) => {
            let addresses = address.to_socket_addrs()?.collect();
            return Ok(Lead { addresses, secret: String::new(), source: None, is_certain: true });
        }
        (_, Some(notice)) => match notice.read()? {
            Some(text) => text,
            None => return Err(Failed::Retry(format!("{at} says nothing yet"))),
        },
        (Bootstrap::Place(place), None) => place.announcement(),
        (Bootstrap::Told(text), None) => text.clone(),
        (Bootstrap::File(_) | Bootstrap::Notice(_), None) => String::new(),
    };
    let mut announcement = read(&text).map_err(|why| Failed::Retry(format!("{at} misleads: {why}")))?;
    announcement.add_hosts(arrival.known_hosts.iter().copied());
    let Announcement { addresses, secret, .. } = announcement;
    let source = notice.map(|notice| (&**notice, text));
    Ok(Lead { addresses, secret, source, is_certain: false })
}

fn attempt(at: &Bootstrap, notice: Option<&Arc<dyn Notice>>, arrival: &Arrival) -> Result<Met, Failed> {
    let Reached { connection, seen } = reach(&find(at, notice, arrival)?, arrival)?;
    let mut wire = Wire { connection, vigil: &arrival.vigil };
    let Arrival { rank, member, may_share, .. } = arrival;
    let (group, world) = (arrival.name.clone(), arrival.world as u16);
    let join = Join { group, rank: rank.0, world, member: member.clone(), may_share: *may_share };
    wire.send(&join, arrival.until)?;
    let out_of_turn = || WireError::Io(io::Error::other("it spoke out of turn"));
    match wire.receive(arrival.until)? {
        Reply::Counted => {}
        Reply::Refused { why, retryable: true } => return Err(Failed::Retry(why)),
        Reply::Refused { why, retryable: false } => return Err(refused(why)),
        Reply::Welcome { .. } | Reply::Begin { .. } => return Err(out_of_turn().into()),
    }
    // From here on rank 0 counts on us: another attempt would find our place taken.
    let lost = |error: WireError| match error {
        WireError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
            refused(format!("not all ranks came to {at} in time"))
        }
        WireError::Io(error) => refused(format!("rank 0 is lost: {error}")),
        WireError::Ended(error) => Failed::Final(error),
    };
    let until = arrival.until + LAST_WORDS_MAX;
    let (mut description, offer) = match wire.receive(until).map_err(lost)? {
        Reply::Welcome { description, arena } => (*description, arena),
        Reply::Refused { why, .. } => return Err(refused(why)),
        Reply::Begin { .. } | Reply::Counted => return Err(lost(out_of_turn())),
    };
    let is_ours = description.is_sound(member.peer)
        && description.rank_of(member.peer) == Some(*rank)
        && description.members.len() == arrival.world;
    if !is_ours {
        return Err(refused("rank 0 is lost: the group it describes makes no sense".into()));
    }
    name_unspecified(&mut description.members[0], seen);
    description.tuning = description.tuning.bounded();
    let arena = offer.and_then(|offer| map(&offer, arrival.world));
    wire.send(&Mapped(arena.is_some()), until).map_err(lost)?;
    match wire.receive(until).map_err(lost)? {
        Reply::Begin { shares } => Ok(Met { description, arena: arena.filter(|_| shares) }),
        Reply::Refused { why, .. } => Err(refused(why)),
        Reply::Welcome { .. } | Reply::Counted => Err(lost(out_of_turn())),
    }
}

fn map(offer: &ArenaOffer, world: usize) -> Option<Arena> {
    let ticket = offer.ticket.as_slice().try_into().ok().and_then(Ticket::decode)?;
    let geometry = Geometry { world, slot_bytes: offer.slot_bytes as usize, depth: usize::from(offer.depth) };
    if !geometry.is_sound() {
        return None;
    }
    match Arena::open(&ticket, geometry) {
        Ok(arena) => Some(arena),
        Err(error) => {
            tracing::debug!(%error, "the group's memory can't be shared");
            None
        }
    }
}
