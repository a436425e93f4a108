//! Why something did not succeed, in words that name whom we waited for.

use crate::id::{OpId, PeerId, Revision, Seq, Tag};
use crate::limits;
use crate::message::Phase;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A peer as errors speak of it: its id, and the name that its user knows (host:pid unless chosen).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PeerName {
    /// Who it is.
    pub peer: PeerId,
    /// What it is called.
    pub name: String,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// How a peer came to be no longer part of the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Departure {
    /// It said goodbye.
    Left,
    /// Its connection to the master broke.
    ConnectionLost,
    /// Nobody had a byte from it for too long.
    Silent,
    /// An operator evicted it, for this reason.
    Kicked(String),
    /// No ring through all members is left, and it is the newest of those that stand in the way.
    Unreachable,
    /// It broke the protocol, in this way.
    Misbehaved(ProtocolViolation),
    /// It did not come back after the master restarted.
    NotReturned,
    /// Its connections broke without a goodbye.
    Died,
    /// It did not report in time that it has a link with every neighbour.
    NotEstablished,
    /// An earlier life of the master had evicted it.
    LeftBehind,
    /// Its shared state was rejected, and it made no call since although others waited for it.
    StateRejected(StateRejection),
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => write!(f, "left"),
            Self::ConnectionLost => write!(f, "lost its connection to the master"),
            Self::Silent => write!(f, "was silent for too long"),
            Self::Kicked(why) => write!(f, "was evicted: {why}"),
            Self::Unreachable => {
                write!(f, "could not be reached by its neighbours, and no other ring was left")
            }
            Self::Misbehaved(why) => write!(f, "broke the protocol: {why}"),
            Self::NotReturned => write!(f, "did not return after the master restarted"),
            Self::Died => write!(f, "died, or its connection broke"),
            Self::NotEstablished => write!(f, "was evicted: it did not reach its neighbours in time"),
            Self::LeftBehind => write!(f, "was evicted: the run went on without it"),
            Self::StateRejected(why) => {
                write!(f, "was evicted: its shared state was rejected ({why}), and it made no call since")
            }
        }
    }
}

/// How one side of a control connection broke the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProtocolViolation {
    /// The numbers of its messages are not in sequence.
    Numbering,
    /// It acknowledges no message.
    NothingAcknowledged,
    /// It voted in a round that is not the next one.
    Round {
        /// The phase.
        phase: Phase,
        /// The round that it voted in.
        voted: u64,
        /// How many rounds are complete.
        completed: u64,
    },
    /// It started an operation that is not the next one of its tag.
    Sequence {
        /// The operation.
        op: OpId,
        /// The sequence number that comes next.
        next: Seq,
    },
    /// It has too many operations in flight.
    TooManyOperations,
    /// It sent an invalid description of an epoch.
    Epoch,
    /// It returned with counters that no run can reach.
    Counters,
    /// It committed an operation that this peer has not done.
    PrematureCommit,
    /// It assigned an entry that the shared state does not have.
    Assignment,
}

impl fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbering => write!(f, "message numbers out of sequence"),
            Self::NothingAcknowledged => write!(f, "no message is acknowledged"),
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

/// Why the master does not let a peer join or return.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JoinRefusal {
    /// A peer with this id is part of the run.
    AlreadyMember,
    /// The run has as many peers as it can have.
    RunFull,
    /// The run has had as many groups as the master remembers.
    TooManyGroups,
    /// It listens on too many addresses.
    TooManyAddresses,
    /// It returns, and was removed before.
    WasRemoved,
    /// It returns to a restarted master after the run went on.
    TooLate,
    /// It broke the protocol.
    Misbehaved(ProtocolViolation),
}

impl fmt::Display for JoinRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyMember => write!(f, "it is already part of the run"),
            Self::RunFull => write!(f, "the run is full: it has {} peers", limits::WORLD_MAX),
            Self::TooManyGroups => {
                write!(f, "the run has had {} groups, which is the maximum", limits::GROUPS_MAX)
            }
            Self::TooManyAddresses => {
                write!(f, "it listens on more than {} addresses", limits::ADDRESSES_MAX)
            }
            Self::WasRemoved => write!(f, "it was removed from the run"),
            Self::TooLate => write!(f, "the run went on without it after the master restarted"),
            Self::Misbehaved(how) => write!(f, "broke the protocol: {how}"),
        }
    }
}

/// Why the master says that a peer is not, or no longer, part of the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Removal {
    /// It was a member, or waited to be accepted.
    Departed(Departure),
    /// It was not let in.
    Refused(JoinRefusal),
    /// The master's driver closed its connection, for this reason: an invalid message, or a limit that was exceeded.
    Disconnected(String),
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Departed(how) => how.fmt(f),
            Self::Refused(why) => why.fmt(f),
            Self::Disconnected(why) => f.write_str(why),
        }
    }
}

/// How a peer lost its master. Stays on the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MasterLoss {
    /// It was never reached: no connection, or none that passed the handshake.
    Unreachable(String),
    /// It did not accept this peer within the deadline of connect.
    NotAccepted,
    /// The connection was lost, and the master did not come back in time.
    NotReturned,
    /// It did not end a call within the deadline and the grace time after it.
    NoAnswer,
    /// It broke the protocol.
    Misbehaved(ProtocolViolation),
}

impl fmt::Display for MasterLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "could not reach the master at {why}"),
            Self::NotAccepted => write!(f, "the master did not accept this peer in time"),
            Self::NotReturned => write!(f, "the master is lost: it did not come back in time"),
            Self::NoAnswer => write!(f, "the master is lost: it does not answer in time"),
            Self::Misbehaved(how) => write!(f, "the master is lost: it broke the protocol: {how}"),
        }
    }
}

/// What a peer is waiting in, for errors that say who waits for what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// Who waits.
    pub who: PeerName,
    /// In which call.
    pub call: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits in {}", self.who, self.call)
    }
}

/// A call that peers make together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JointCall {
    /// A vote.
    Vote(Phase),
    /// A collective of this tag.
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
    /// Who.
    pub who: PeerName,
    /// What it waits in itself, if anything.
    pub waits_in: Option<JointCall>,
}

/// A call has been waiting for a while, and for whom. For logs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitNote {
    /// The call.
    pub call: JointCall,
    /// Live peers that have not made it (the first few).
    pub missing: Vec<MissingPeer>,
}

impl WaitNote {
    /// Whether a missing peer waits in another call: then they may wait for each other until a deadline.
    pub fn is_mutual(&self) -> bool {
        self.missing.iter().any(|missing| missing.waits_in.is_some())
    }
}

impl fmt::Display for WaitNote {
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

/// Why an operation or a vote failed. Travels from the master to the peers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// A member departed while its part was still missing.
    PeerLost {
        /// Who departed.
        who: PeerName,
        /// How.
        how: Departure,
    },
    /// Two live members cannot reach each other; the ring is being rebuilt without that edge.
    LinkLost {
        /// One end.
        from: PeerName,
        /// The other end.
        to: PeerName,
    },
    /// Two peers asked for different things under one name.
    Mismatch {
        /// One of them, and what it asked for.
        one: Waiting,
        /// The other, and what that asked for.
        other: Waiting,
    },
    /// Live peers did not take part in time.
    Timeout {
        /// Whom we waited for (the first few).
        waited_for: Vec<PeerName>,
    },
    /// A member can't run the operation.
    Unable {
        /// Who.
        who: PeerName,
    },
    /// The membership changed under the operation.
    EpochEnded,
    /// A member's user gave the group up.
    GivenUp {
        /// Whose.
        who: PeerName,
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerLost { who, how } => write!(f, "{who} {how}"),
            Self::LinkLost { from, to } => write!(f, "{from} and {to} can't reach each other"),
            Self::Mismatch { one, other } => write!(f, "{one}, but {other}"),
            Self::Timeout { waited_for } => {
                write!(f, "no answer in time from ")?;
                for (i, who) in waited_for.iter().enumerate() {
                    write!(f, "{}{who}", if i > 0 { ", " } else { "" })?;
                }
                if waited_for.is_empty() { write!(f, "the master") } else { Ok(()) }
            }
            Self::Unable { who } => write!(f, "{who} is not able to run it"),
            Self::EpochEnded => write!(f, "the membership changed"),
            Self::GivenUp { who } => write!(f, "{who} gave the group up"),
        }
    }
}

/// Why the master does not take a peer's shared state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StateRejection {
    /// The offered revision is beyond the next one.
    RevisionIncrementViolation {
        /// What was offered.
        offered: Revision,
        /// What comes next.
        next: Revision,
    },
    /// Keys, types, counts or flags differ from those of the elected state.
    Layout {
        /// The first key that differs.
        key: String,
    },
    /// Another sender's content won.
    LostElection {
        /// Whose did.
        winner: PeerName,
    },
    /// The strategy can't be used together with the others' strategy.
    StrategyConflict {
        /// Someone with the other strategy.
        other: PeerName,
    },
    /// Nobody has the state that all wait for.
    NobodyHasIt {
        /// The revision that would be accepted.
        next: Revision,
        /// Whether its last holder is gone, so that a send-only peer may set another revision.
        orphaned: bool,
    },
    /// Every holder of the elected content went away before the transfer was complete.
    HoldersGone,
}

impl StateRejection {
    /// Whether the same offer may be accepted later: nobody holds the state that all wait for.
    pub fn is_retryable(&self) -> bool {
        crate::peer::FailureKind::of_rejection(self).is_retryable()
    }
}

impl fmt::Display for StateRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RevisionIncrementViolation { offered, next } => {
                write!(f, "RevisionIncrementViolation: {offered} was offered, but the next is {next}")
            }
            Self::Layout { key } => {
                write!(f, "the state's layout differs from the elected one at key {key:?}")
            }
            Self::LostElection { winner } => write!(f, "different content was sent by {winner}"),
            Self::StrategyConflict { other } => {
                write!(f, "this strategy can't be mixed with that of {other}")
            }
            Self::NobodyHasIt { next, orphaned: false } => write!(f, "nobody offers {next}"),
            Self::NobodyHasIt { next, orphaned: true } => write!(
                f,
                "nobody offers {next} and everyone who held the state is gone; a peer that syncs with the \
                 send-only strategy sets the run back to its own revision"
            ),
            Self::HoldersGone => write!(f, "everyone who held the elected state went away"),
        }
    }
}
