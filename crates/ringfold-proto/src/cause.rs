//! Why something did not succeed, in words that name whom we waited for.

use crate::id::{PeerId, Revision};
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
    /// It was put out, for this reason.
    Kicked(String),
    /// No ring through all members is left, and it is the newest of those that stand in the way.
    Unreachable,
    /// It broke the protocol, in this way.
    Misbehaved(String),
    /// It did not come back after the master restarted.
    NotReturned,
    /// Its connections broke without a goodbye.
    Died,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => write!(f, "left"),
            Self::ConnectionLost => write!(f, "lost its connection to the master"),
            Self::Silent => write!(f, "was silent for too long"),
            Self::Kicked(why) => write!(f, "was put out: {why}"),
            Self::Unreachable => {
                write!(f, "could not be reached by its neighbours, and no other ring was left")
            }
            Self::Misbehaved(why) => write!(f, "broke the protocol: {why}"),
            Self::NotReturned => write!(f, "did not return after the master restarted"),
            Self::Died => write!(f, "died, or its connection broke"),
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
