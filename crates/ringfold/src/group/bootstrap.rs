//! How the ranks of a group find each other.
//!
//! Rank 0 listens, the others come to it and say who they are. When all are there it tells everyone who is in the
//! group, and what it has decided for all of them: order, key, tuning, and the memory that they share if they can.

mod host;
mod join;
mod reach;
mod vigil;
mod wire;

pub(super) use vigil::{Doubt, Vigil};

use super::notice::{FileNotice, Notice};
use super::place::MeetingPlace;
use crate::Error;
use core::fmt;
use ringfold_fabric::arena::{Arena, Geometry};
use ringfold_fabric::dialer::Backoff;
use ringfold_fabric::random;
use ringfold_proto::epoch::{EpochDescription, Member};
use ringfold_proto::id::{EpochId, GroupId, Incarnation, Rank};
use ringfold_proto::tuning::Tuning;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the ranks of a group meet.
#[derive(Clone)]
pub enum Bootstrap {
    /// Rank 0 listens at this address, `host:port`, and the others dial it.
    Address(String),
    /// Rank 0 listens wherever it can and writes that into this file, which all ranks can read. Whatever is in the
    /// file before is overwritten, and rank 0 removes it when all have come.
    File(PathBuf),
    /// The same, with a notice board of the caller's own.
    Notice(Arc<dyn Notice>),
    /// At a place that rank 0 has opened. Only ranks of the same process can say it so; all others are told.
    Place(MeetingPlace),
    /// At the place that this announcement tells of. Not for rank 0.
    Told(String),
}

impl PartialEq for Bootstrap {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Address(one), Self::Address(other)) | (Self::Told(one), Self::Told(other)) => one == other,
            (Self::File(one), Self::File(other)) => one == other,
            (Self::Notice(one), Self::Notice(other)) => Arc::ptr_eq(one, other),
            (Self::Place(one), Self::Place(other)) => one.is(other),
            _ => false,
        }
    }
}

impl Eq for Bootstrap {}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Address(_) => "Address",
            Self::File(_) => "File",
            Self::Notice(_) => "Notice",
            Self::Place(_) => "Place",
            Self::Told(_) => "Told",
        };
        f.debug_tuple(kind).field(&self.to_string()).finish()
    }
}

/// Never shows a secret.
impl fmt::Display for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => f.write_str(address),
            Self::File(path) => write!(f, "the file {}", path.display()),
            Self::Notice(notice) => f.write_str(&notice.describe()),
            Self::Place(place) => f.write_str(&place.describe()),
            Self::Told(text) => match join::read(text) {
                Ok(announcement) => f.write_str(&announcement.describe()),
                Err(_) => f.write_str("a place that was not told rightly"),
            },
        }
    }
}

impl Bootstrap {
    /// What all ranks can read, if that is how they meet.
    fn notice(&self) -> Option<Arc<dyn Notice>> {
        match self {
            Self::File(path) => Some(Arc::new(FileNotice::new(path))),
            Self::Notice(notice) => Some(notice.clone()),
            Self::Address(_) | Self::Place(_) | Self::Told(_) => None,
        }
    }
}

/// What a rank brings.
pub(super) struct Arrival {
    pub(super) name: String,
    pub(super) rank: Rank,
    pub(super) world: usize,
    pub(super) member: Member,
    pub(super) token: String,
    pub(super) tuning: Tuning,
    /// Whether memory may be shared, and whether it must.
    pub(super) may_share: bool,
    pub(super) must_share: bool,
    /// The local address to listen on, where nothing else says it.
    pub(super) bind: Option<IpAddr>,
    /// Where rank 0's host is known to be found, beside what is announced.
    pub(super) known_hosts: Vec<IpAddr>,
    pub(super) vigil: Vigil,
    pub(super) until: Instant,
}

/// What all ranks know when they have met.
pub(super) struct Met {
    pub(super) description: EpochDescription,
    pub(super) arena: Option<Arena>,
}

/// How long rank 0 may take to tell those who came why there will be no group, and how long they wait for that beyond
/// their own time.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// The pauses between attempts to reach rank 0, or to listen.
fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(1), Duration::from_millis(20))
}

/// Meets the others.
pub(super) fn meet(at: &Bootstrap, arrival: &Arrival) -> Result<Met, Error> {
    if arrival.world == 1 {
        let description = describe(arrival, Vec::new(), Duration::ZERO)?;
        return Ok(Met { description, arena: None });
    }
    if arrival.rank == Rank(0) { host::host(at, arrival) } else { join::join(at, arrival) }
}

/// The board's measures for a group.
fn geometry(world: usize, tuning: &Tuning) -> Geometry {
    Geometry { world, slot_bytes: tuning.board_slot_bytes as usize, depth: usize::from(tuning.board_depth) }
}

fn describe(arrival: &Arrival, others: Vec<Member>, longest: Duration) -> Result<EpochDescription, Error> {
    let system = |error: io::Error| Error::system("the group can't be described", &error);
    let members: Vec<_> = std::iter::once(arrival.member.clone()).chain(others).collect();
    let incarnation = Incarnation(u64::from_le_bytes(random::bytes().map_err(system)?));
    Ok(EpochDescription {
        id: EpochId { group: GroupId(0), incarnation, counter: 1 },
        ring: (0..members.len()).map(Rank::from_index).collect(),
        members,
        mesh: true,
        missing: Vec::new(),
        tuning: arrival.tuning.for_round_trip(longest).bounded(),
        key: random::bytes().map_err(system)?,
    })
}

/// An address that says "everywhere" becomes one that can be dialled.
fn name_unspecified(member: &mut Member, seen: IpAddr) {
    for address in &mut member.addresses {
        if address.ip().is_unspecified() {
            address.set_ip(seen.to_canonical());
        }
    }
}
