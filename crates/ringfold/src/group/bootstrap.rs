//! How the ranks of a group find each other.
//!
//! Rank 0 listens, and the others join it. When all have joined, it sends them the description of the group: members,
//! key, tuning, and an arena if they can share memory.

mod cancel_check;
mod host;
mod join;
pub(crate) mod messages;
mod wait_notice;

pub(super) use cancel_check::{CancelCheck, FailureCheck};
pub(super) use wait_notice::WaitNotice;

use super::address_exchange::{AddressExchange, FileExchange};
use super::bootstrap_listener::{Announcement, BootstrapListener};
use crate::Error;
use core::fmt;
use ringfold_fabric::arena::{Arena, Geometry};
use ringfold_fabric::connection_limits::ConnectionLimits;
use ringfold_fabric::dialer::Backoff;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::random;
use ringfold_fabric::tls::Security;
use ringfold_proto::epoch::{EpochDescription, Member};
use ringfold_proto::id::{EpochId, GroupId, Incarnation, Rank};
use ringfold_proto::integrity::Integrity;
use ringfold_proto::tuning::Tuning;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the ranks of a group find rank 0.
#[derive(Clone)]
pub enum Bootstrap {
    /// Rank 0 listens at this address, `host:port`, and the others dial it.
    Address(String),
    /// Rank 0 listens on a free port and writes its address to this file, which all ranks can read. It overwrites the
    /// file, and removes it when all ranks have joined.
    File(PathBuf),
    /// The same, with an address exchange of the caller.
    Exchange(Arc<dyn AddressExchange>),
    /// Rank 0 has opened this listener. Ranks in other processes use its announcement.
    Listener(BootstrapListener),
    /// The announcement of rank 0's listener. Not for rank 0.
    Announcement(String),
}

impl PartialEq for Bootstrap {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Address(one), Self::Address(other))
            | (Self::Announcement(one), Self::Announcement(other)) => one == other,
            (Self::File(one), Self::File(other)) => one == other,
            (Self::Exchange(one), Self::Exchange(other)) => Arc::ptr_eq(one, other),
            (Self::Listener(one), Self::Listener(other)) => one.is(other),
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
            Self::Exchange(_) => "Exchange",
            Self::Listener(_) => "Listener",
            Self::Announcement(_) => "Announcement",
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
            Self::Exchange(exchange) => f.write_str(&exchange.describe()),
            Self::Listener(place) => f.write_str(&place.describe()),
            Self::Announcement(text) => match text.parse::<Announcement>() {
                Ok(announcement) => f.write_str(&announcement.describe()),
                Err(_) => f.write_str("an invalid announcement"),
            },
        }
    }
}

impl Bootstrap {
    /// The address exchange, if there is one.
    fn exchange(&self) -> Option<Arc<dyn AddressExchange>> {
        match self {
            Self::File(path) => Some(Arc::new(FileExchange::new(path))),
            Self::Exchange(exchange) => Some(exchange.clone()),
            Self::Address(_) | Self::Listener(_) | Self::Announcement(_) => None,
        }
    }
}

/// This rank, and its settings for the bootstrap.
pub(super) struct LocalRank {
    pub(super) name: String,
    pub(super) rank: Rank,
    pub(super) world: usize,
    pub(super) member: Member,
    pub(super) token: JoinToken,
    pub(super) security: Arc<Security>,
    pub(super) tuning: Tuning,
    /// Whether memory may be shared, and whether it must.
    pub(super) may_share: bool,
    pub(super) must_share: bool,
    /// What operations check; the same on all ranks. A group that checks has no arena.
    pub(super) integrity: Integrity,
    /// The local address to listen on, unless the bootstrap has one.
    pub(super) bind: Option<IpAddr>,
    /// Further addresses of rank 0's host.
    pub(super) known_hosts: Vec<IpAddr>,
    pub(super) cancel: CancelCheck,
    pub(super) notice: WaitNotice,
    pub(super) deadline: Instant,
    /// The limits of its connections.
    pub(super) limits: ConnectionLimits,
}

/// The result, the same for all ranks.
pub(super) struct Bootstrapped {
    pub(super) description: EpochDescription,
    pub(super) arena: Option<Arena>,
}

/// How long rank 0 may take to tell the others why it failed, and how long they wait for that beyond their deadline.
const LAST_REPLY_MAX: Duration = Duration::from_secs(1);

/// The pauses between attempts to reach rank 0, or to listen.
fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(1), Duration::from_millis(20))
}

/// Finds the other ranks, and agrees with them on the group.
pub(super) fn bootstrap(at: &Bootstrap, local: &LocalRank) -> Result<Bootstrapped, Error> {
    if local.world == 1 {
        let description = describe(local, Vec::new(), local.tuning)?;
        return Ok(Bootstrapped { description, arena: None });
    }
    if local.rank == Rank(0) { host::host(at, local) } else { join::join(at, local) }
}

/// The dimensions of a group's arena.
fn geometry(world: usize, tuning: &Tuning) -> Geometry {
    Geometry { world, slot_bytes: tuning.board_slot_bytes as usize, depth: usize::from(tuning.board_depth) }
}

fn describe(local: &LocalRank, others: Vec<Member>, tuning: Tuning) -> Result<EpochDescription, Error> {
    let system = |error: io::Error| Error::system("describing the group", &error);
    let members: Arc<[_]> = std::iter::once(local.member.clone()).chain(others).collect();
    let incarnation = Incarnation(u64::from_le_bytes(random::bytes().map_err(system)?));
    Ok(EpochDescription {
        id: EpochId { group: GroupId(0), incarnation, counter: 1 },
        ring: (0..members.len()).map(Rank::from_index).collect(),
        members,
        mesh: true,
        missing: Vec::new(),
        network: None,
        resumed: Vec::new(),
        tuning: tuning.bounded(),
        key: random::bytes().map_err(system)?,
        relays: Vec::new(),
    })
}

/// Replaces unspecified addresses by the one that the member was seen at.
fn name_unspecified(member: &mut Member, seen: IpAddr) {
    for address in &mut member.addresses {
        if address.ip().is_unspecified() {
            address.set_ip(seen.to_canonical());
        }
    }
}
