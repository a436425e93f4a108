//! Events of a peer of an elastic run, and of a rank of a group.

use super::{Level, event_names};
use crate::cause::{Cause, JointCall, PeerName, Wait};
use crate::descriptor::Descriptor;
use crate::group_call::GroupCall;
use crate::id::{EpochId, GroupId, OpId, Rank, Revision, Tag};
use crate::message::{Direction, Phase};
use crate::peer::Failure;
use core::fmt;
use core::time::Duration;

/// Something that a peer or a rank saw happen.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub enum PeerEvent {
    /// A connection to a master was made. The master may stand by.
    MasterConnected {
        master: String,
    },
    /// The connection to the master broke.
    MasterLost {
        master: String,
    },
    /// A master was connected to, and does not answer.
    MasterSilent {
        master: String,
    },
    /// No master has answered for a while; why each could not be used.
    NoActiveMaster {
        waited: Duration,
        known: String,
    },
    /// The master knows this peer, which waits to be accepted.
    Registered,
    /// The run continues with a restarted master, or another one.
    Restored,
    Accepted {
        group: GroupId,
    },
    /// This peer was accepted too early, and waits again.
    Demoted,
    EpochProposed {
        epoch: EpochId,
        world: usize,
    },
    EpochOpened {
        epoch: EpochId,
        rank: Rank,
        world: usize,
    },
    /// The executor rejects an epoch: a defect.
    EpochRejected {
        epoch: EpochId,
        why: String,
    },
    EpochClosed {
        epoch: EpochId,
        cause: Option<Cause>,
    },
    /// An operation is not complete after about a millisecond.
    OpStarted {
        op: OpId,
        call: Descriptor,
    },
    /// A call waits outside of the operations over links: in shared memory, a window, or on a device.
    OpRunning {
        call: GroupCall,
        waited: Duration,
    },
    /// The executor rejects an operation: a defect.
    OpRejected {
        op: OpId,
        why: String,
    },
    /// An operation has ended; without an id if it was never started.
    OpEnded {
        op: Option<OpId>,
        tag: Tag,
        call: Descriptor,
        /// The members in the result, or why there is none.
        result: Result<usize, Failure>,
        sent_bytes: u64,
        received_bytes: u64,
        duration: Duration,
    },
    VoteBegan {
        phase: Phase,
    },
    VoteEnded {
        phase: Phase,
        failure: Option<Failure>,
        duration: Duration,
    },
    SyncBegan {
        revision: Revision,
        entries: usize,
    },
    /// A revision was elected: how many entries this peer fetches, from how many sources, and how many peers fetch from it.
    SyncAssigned {
        revision: Revision,
        fetches: usize,
        sources: usize,
        fetchers: usize,
    },
    /// Bytes of the shared state that were moved so far.
    SyncProgress {
        sent_bytes: u64,
        received_bytes: u64,
    },
    SyncEnded {
        result: Result<Revision, Failure>,
        sent_bytes: u64,
        received_bytes: u64,
        duration: Duration,
    },
    LinkUp {
        peer: PeerName,
        transport: LinkTransport,
    },
    LinkLost {
        peer: PeerName,
        why: String,
    },
    /// A link could not be made.
    LinkFailed {
        peer: PeerName,
        why: String,
    },
    /// A link with pending data makes no progress. `is_reported`: the master is told.
    LinkStalled {
        peer: PeerName,
        direction: Direction,
        is_reported: bool,
    },
    /// A call waits for live peers.
    StillWaiting {
        /// The name of a group of fixed ranks; empty if it has none.
        group: String,
        wait: Wait,
    },
    /// A group of fixed ranks is complete.
    GroupFormed {
        group: String,
        rank: Rank,
        world: usize,
        shares_memory: bool,
    },
    GroupFailed {
        cause: Cause,
    },
    /// Another rank has left the group.
    RankLeft {
        who: PeerName,
    },
    /// This peer left the run, or this rank its group.
    Left,
    /// This peer is not part of the run any more.
    MembershipEnded {
        why: Failure,
    },
}

/// How data gets from one end of a link to the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)] // Named for what they are.
pub enum LinkTransport {
    SharedMemory,
    Tcp,
    Quic,
    /// Through a relay.
    Relay,
}

impl LinkTransport {
    /// The name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared_memory",
            Self::Tcp => "tcp",
            Self::Quic => "quic",
            Self::Relay => "relay",
        }
    }
}

event_names! { PeerEvent:
    MasterConnected "master_connected" Debug,
    MasterLost "master_lost" Warn,
    MasterSilent "master_silent" Debug,
    NoActiveMaster "no_active_master" Warn,
    Registered "registered" Debug,
    Restored "restored" Info,
    Accepted "accepted" Info,
    Demoted "demoted" Info,
    EpochProposed "epoch_proposed" Debug,
    EpochOpened "epoch_opened" Info,
    EpochRejected "epoch_rejected" Error,
    EpochClosed "epoch_closed" Debug,
    OpStarted "op_started" Debug,
    OpRunning "op_running" Debug,
    OpRejected "op_rejected" Error,
    OpEnded "op_ended" Debug,
    VoteBegan "vote_began" Debug,
    VoteEnded "vote_ended" Debug,
    SyncBegan "sync_began" Debug,
    SyncAssigned "sync_assigned" Debug,
    SyncProgress "sync_progress" Debug,
    SyncEnded "sync_ended" Debug,
    LinkUp "link_up" Debug,
    LinkLost "link_lost" Debug,
    LinkFailed "link_failed" Warn,
    LinkStalled "link_stalled" Debug,
    StillWaiting "still_waiting" Warn,
    GroupFormed "group_formed" Info,
    GroupFailed "group_failed" Info,
    RankLeft "rank_left" Debug,
    Left "left" Info,
    MembershipEnded "membership_ended" Info,
}

impl PeerEvent {
    /// How much it matters. Failures that a call returns as well are no warnings.
    pub fn level(&self) -> Level {
        match self {
            Self::OpEnded { result: Err(_), .. } => Level::Info,
            Self::LinkStalled { is_reported: true, .. } => Level::Warn,
            Self::MembershipEnded { why: Failure::Removed(_) } => Level::Warn,
            _ => self.usual_level(),
        }
    }
}

impl fmt::Display for PeerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MasterConnected { master } => write!(f, "connected to the master at {master}"),
            Self::MasterLost { master } => write!(f, "the connection to the master at {master} is lost"),
            Self::MasterSilent { master } => write!(f, "the master at {master} does not answer"),
            Self::NoActiveMaster { waited, known } => {
                write!(f, "no active master for {} s: {known}", waited.as_secs())
            }
            Self::Registered => write!(f, "registered; waits to be accepted"),
            Self::Restored => write!(f, "the run continues with a new master"),
            Self::Accepted { group } => write!(f, "accepted into {group}"),
            Self::Demoted => write!(f, "waits again to be accepted"),
            Self::EpochProposed { epoch, world } => write!(f, "{epoch} is proposed, with {world} members"),
            Self::EpochOpened { epoch, rank, world } => write!(f, "{epoch} is open: {rank} of {world}"),
            Self::EpochRejected { epoch, why } => write!(f, "cannot open {epoch}: {why}"),
            Self::EpochClosed { epoch, cause: Some(cause) } => write!(f, "{epoch} is closed: {cause}"),
            Self::EpochClosed { epoch, cause: None } => write!(f, "{epoch} is closed"),
            Self::OpStarted { op, call } => write!(f, "{op} is running: {call}"),
            Self::OpRunning { call, waited } => write!(f, "{call} has been waiting for {waited:?}"),
            Self::OpRejected { op, why } => write!(f, "cannot start {op}: {why}"),
            Self::OpEnded { op, tag, call, result, duration, .. } => {
                match op {
                    Some(op) => write!(f, "{op}")?,
                    None => write!(f, "{tag}")?,
                }
                match result {
                    Ok(_) => write!(f, " is committed")?,
                    Err(failure) => write!(f, " has failed: {failure}")?,
                }
                write!(f, " ({call}, {duration:?})")
            }
            Self::VoteBegan { phase } => write!(f, "{phase} began"),
            Self::VoteEnded { phase, failure: None, .. } => write!(f, "{phase} ended"),
            Self::VoteEnded { phase, failure: Some(failure), .. } => write!(f, "{phase} failed: {failure}"),
            Self::SyncBegan { revision, entries } => {
                write!(f, "sync began: offers {revision}, {entries} entries")
            }
            Self::SyncAssigned { revision, fetches: 0, fetchers, .. } => {
                write!(f, "{revision} is elected: serves it to {fetchers} peers")
            }
            Self::SyncAssigned { revision, fetches, sources, .. } => {
                write!(f, "{revision} is elected: fetches {fetches} entries from {sources} sources")
            }
            Self::SyncProgress { sent_bytes, received_bytes } => {
                write!(f, "sync: {received_bytes} bytes received, {sent_bytes} bytes sent so far")
            }
            Self::SyncEnded { result: Ok(revision), sent_bytes, received_bytes, .. } => {
                write!(f, "sync ended: {revision}, {received_bytes} bytes received, {sent_bytes} bytes sent")
            }
            Self::SyncEnded { result: Err(failure), .. } => write!(f, "sync failed: {failure}"),
            Self::LinkUp { peer, transport } => write!(f, "made a link with {peer} ({})", transport.name()),
            Self::LinkLost { peer, why } => write!(f, "the link with {peer} is lost: {why}"),
            Self::LinkFailed { peer, why } => write!(f, "failed to make a link with {peer}: {why}"),
            Self::LinkStalled { peer, direction, .. } => {
                write!(f, "the link with {peer} makes no progress ({direction:?})")
            }
            Self::StillWaiting { group, wait } => {
                if !group.is_empty() {
                    write!(f, "{group}: ")?;
                }
                write!(f, "still {wait}")?;
                match wait.call.filter(|_| wait.is_mutual()) {
                    Some(JointCall::Group(_)) => {
                        write!(f, ": do all ranks make the same calls in the same order?")
                    }
                    Some(_) => write!(f, ": do all peers use the same tags in the same order?"),
                    None => Ok(()),
                }
            }
            Self::GroupFormed { group, rank, world, shares_memory } => {
                let how = if *shares_memory { "shared memory" } else { "links" };
                write!(f, "the group {group:?} is formed: {rank} of {world}, by {how}")
            }
            Self::GroupFailed { cause } => write!(f, "the group has failed: {cause}"),
            Self::RankLeft { who } => write!(f, "{who} has left"),
            Self::Left => write!(f, "left"),
            Self::MembershipEnded { why } => write!(f, "{why}"),
        }
    }
}
