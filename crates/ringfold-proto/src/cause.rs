//! Why operations, votes and memberships failed, with the peers involved.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::id::{OpId, PeerId, Revision, Seq, Tag};
use crate::limits;
use crate::message::Phase;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A peer's id, and the name for errors and logs (host:pid unless the user chose one).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PeerName {
    pub peer: PeerId,
    pub name: String,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// How a membership ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Departure {
    /// The peer left by itself.
    Left,
    /// Its connection to the master broke.
    ConnectionLost,
    /// Neither the master nor a neighbour received anything from it for too long.
    Silent,
    /// An operator evicted it for this reason.
    Evicted(String),
    /// No ring through all members is left, and it is the newest of the members that block one.
    Unreachable,
    /// It violated the protocol.
    Misbehaved(ProtocolViolation),
    /// It did not return after the master restarted.
    NotReturned,
    /// Its connections broke before it had left.
    Died,
    /// It did not report in time that its links are up.
    NotEstablished,
    /// An earlier incarnation of the master had evicted it.
    EvictedBefore,
    /// Its shared state was rejected, and it made no call since, although others waited for it.
    StateRejected(StateRejection),
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => write!(f, "left"),
            Self::ConnectionLost => write!(f, "lost its connection to the master"),
            Self::Silent => write!(f, "was silent for too long"),
            Self::Evicted(why) => write!(f, "was evicted: {why}"),
            Self::Unreachable => {
                write!(f, "was evicted: its neighbours cannot reach it, and no other ring is left")
            }
            Self::Misbehaved(why) => write!(f, "violated the protocol: {why}"),
            Self::NotReturned => write!(f, "did not return after the master restarted"),
            Self::Died => write!(f, "died, or its connection broke"),
            Self::NotEstablished => write!(f, "was evicted: it did not reach its neighbours in time"),
            Self::EvictedBefore => write!(f, "was evicted: the run continued without it"),
            Self::StateRejected(why) => {
                write!(f, "was evicted: its shared state was rejected ({why}), and it made no call since")
            }
        }
    }
}

/// How one side of a control connection violated the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProtocolViolation {
    /// Message numbers out of sequence.
    Numbering,
    /// Too many messages without an acknowledgement.
    NothingAcknowledged,
    /// A vote in a round that is not the next one.
    Round { phase: Phase, voted: u64, completed: u64 },
    /// An operation that is not the next one of its tag.
    Sequence { op: OpId, next: Seq },
    /// Too many operations in flight.
    TooManyOperations,
    /// An invalid description of an epoch.
    Epoch,
    /// Counters that no run can reach.
    Counters,
    /// Commit of an operation that this peer has not done.
    PrematureCommit,
    /// Assignment of an unknown entry of the shared state.
    Assignment,
}

impl fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbering => write!(f, "message numbers out of sequence"),
            Self::NothingAcknowledged => write!(f, "too many messages without an acknowledgement"),
            Self::Round { phase, voted, completed } => {
                write!(f, "vote in round {voted} of {phase}, but {completed} rounds are complete")
            }
            Self::Sequence { op, next } => write!(f, "{op} is out of sequence, {next} is next"),
            Self::TooManyOperations => {
                write!(f, "more than {} operations in flight", limits::OPS_IN_FLIGHT_MAX)
            }
            Self::Epoch => write!(f, "invalid description of an epoch"),
            Self::Counters => write!(f, "invalid counters: no run can reach them"),
            Self::PrematureCommit => write!(f, "commit of an operation that is not done"),
            Self::Assignment => write!(f, "assignment of an unknown entry of the shared state"),
        }
    }
}

/// Why the master rejects a peer that joins or returns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JoinRejection {
    /// A peer with this id is a member.
    AlreadyMember,
    /// The run has the maximal number of peers.
    RunFull,
    /// The run has had the maximal number of groups.
    TooManyGroups,
    /// It listens on too many addresses.
    TooManyAddresses,
    /// It returns after its eviction.
    WasRemoved,
    /// It returns to a restarted master after the run continued.
    TooLate,
    /// It violated the protocol.
    Misbehaved(ProtocolViolation),
}

impl fmt::Display for JoinRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyMember => write!(f, "a peer with this id is already a member"),
            Self::RunFull => write!(f, "the run is full: it has {} peers", limits::WORLD_MAX),
            Self::TooManyGroups => {
                write!(f, "the run has had {} groups, which is the maximum", limits::GROUPS_MAX)
            }
            Self::TooManyAddresses => {
                write!(f, "it listens on more than {} addresses", limits::ADDRESSES_MAX)
            }
            Self::WasRemoved => write!(f, "it was evicted before"),
            Self::TooLate => write!(f, "the run continued without it after the master restarted"),
            Self::Misbehaved(how) => write!(f, "violated the protocol: {how}"),
        }
    }
}

/// Why a peer is not, or no longer, part of the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Removal {
    /// It was a member, or waited to become one.
    Departed(Departure),
    /// It was not admitted.
    Rejected(JoinRejection),
    /// The master's driver closed its connection: an invalid message, or a limit was exceeded.
    Disconnected(String),
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Departed(how) => how.fmt(f),
            Self::Rejected(why) => why.fmt(f),
            Self::Disconnected(why) => f.write_str(why),
        }
    }
}

/// How a peer lost its master. Not sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MasterLoss {
    /// No connection, or none that passed the handshake.
    Unreachable(String),
    /// Not accepted within the deadline of connect.
    NotAccepted,
    /// The connection was lost, and the master did not return in time.
    NotReturned,
    /// A call got no answer within its deadline and the grace time after it.
    NoAnswer,
    /// The master violated the protocol.
    Misbehaved(ProtocolViolation),
}

impl fmt::Display for MasterLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "could not reach the master at {why}"),
            Self::NotAccepted => write!(f, "the master did not accept this peer in time"),
            Self::NotReturned => write!(f, "the master is lost: it did not return in time"),
            Self::NoAnswer => write!(f, "the master is lost: it did not answer in time"),
            Self::Misbehaved(how) => write!(f, "the master is lost: it violated the protocol: {how}"),
        }
    }
}

/// A peer and the call that it waits in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitingPeer {
    pub who: PeerName,
    /// The call, as text.
    pub call: String,
}

impl fmt::Display for WaitingPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits in {}", self.who, self.call)
    }
}

/// A call that peers make together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JointCall {
    /// A vote.
    Vote(Phase),
    /// A collective with this tag.
    Collective(Tag),
}

impl fmt::Display for JointCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vote(phase) => phase.fmt(f),
            Self::Collective(tag) => write!(f, "a collective of {tag}"),
        }
    }
}

/// A peer that others wait for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MissingPeer {
    pub who: PeerName,
    /// The call that it waits in, if any.
    pub waits_in: Option<JointCall>,
}

/// A log warning: a call has waited for peers for a while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitWarning {
    pub call: JointCall,
    /// The first few live peers that have not made the call.
    pub missing: Vec<MissingPeer>,
}

impl WaitWarning {
    /// Whether a missing peer waits in another call. The peers may then wait for each other until a deadline.
    pub fn is_mutual(&self) -> bool {
        self.missing.iter().any(|missing| missing.waits_in.is_some())
    }
}

impl fmt::Display for WaitWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} still waits for ", self.call)?;
        for (i, MissingPeer { who, waits_in }) in self.missing.iter().enumerate() {
            write!(f, "{}{who}", if i > 0 { ", " } else { "" })?;
            if let Some(call) = waits_in {
                write!(f, " (which waits in {call})")?;
            }
        }
        Ok(())
    }
}

/// Why an operation or a vote failed. The master sends it to the peers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// A member departed while its part was still missing.
    PeerLost { who: PeerName, how: Departure },
    /// Two live members cannot reach each other; the ring is being rebuilt without that edge.
    LinkLost { from: PeerName, to: PeerName },
    /// Two peers made different calls.
    Mismatch { one: WaitingPeer, other: WaitingPeer },
    /// Live peers did not take part in time: the first few of them, or none if the master did not answer.
    Timeout { waited_for: Vec<PeerName> },
    /// A member cannot run the operation.
    Unable { who: PeerName },
    /// The membership changed during the operation.
    EpochEnded,
    /// The user of a member aborted the group.
    AbortedByUser { who: PeerName },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerLost { who, how } => write!(f, "{who} {how}"),
            Self::LinkLost { from, to } => write!(f, "{from} and {to} cannot reach each other"),
            Self::Mismatch { one, other } => write!(f, "{one}, but {other}"),
            Self::Timeout { waited_for } => {
                write!(f, "timed out waiting for ")?;
                for (i, who) in waited_for.iter().enumerate() {
                    write!(f, "{}{who}", if i > 0 { ", " } else { "" })?;
                }
                if waited_for.is_empty() { write!(f, "the master") } else { Ok(()) }
            }
            Self::Unable { who } => write!(f, "{who} cannot run the operation"),
            Self::EpochEnded => write!(f, "the membership changed"),
            Self::AbortedByUser { who } => write!(f, "{who} aborted the group"),
        }
    }
}

/// Why the master rejects a peer's shared state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StateRejection {
    /// The offered revision is beyond the next one.
    RevisionIncrementViolation { offered: Revision, next: Revision },
    /// Keys, types, counts or flags differ from those of the elected state, first at this key.
    Layout { key: String },
    /// Another sender's content was elected.
    LostElection { winner: PeerName },
    /// The strategy excludes that of another peer.
    StrategyConflict { other: PeerName },
    /// No peer offers revision `next`. If `orphaned`, its last holder has departed: a send-only peer may set another revision.
    NoHolder { next: Revision, orphaned: bool },
    /// Every holder of the elected content departed before the transfer was complete.
    HoldersLost,
}

impl StateRejection {
    /// Whether the same offer may be accepted later.
    pub fn is_retryable(&self) -> bool {
        crate::peer::FailureKind::of_rejection(self).is_retryable()
    }
}

impl fmt::Display for StateRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RevisionIncrementViolation { offered, next } => {
                write!(f, "RevisionIncrementViolation: offered {offered}, but {next} is next")
            }
            Self::Layout { key } => {
                write!(f, "the state's layout differs from the elected one at key {key:?}")
            }
            Self::LostElection { winner } => write!(f, "the content of {winner} was elected instead"),
            Self::StrategyConflict { other } => {
                write!(f, "invalid strategy: it cannot be mixed with that of {other}")
            }
            Self::NoHolder { next, orphaned: false } => write!(f, "no peer offers {next}"),
            Self::NoHolder { next, orphaned: true } => write!(
                f,
                "no peer offers {next}, and all peers that held the state have departed: sync one peer with the \
                 send-only strategy to set the run to its revision"
            ),
            Self::HoldersLost => {
                write!(f, "all peers that held the elected state departed during the transfer")
            }
        }
    }
}
