//! How a call ends badly, and whose fault it is.

use crate::cause::{Cause, StateRejection};

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The caller's fault: the call can't be made now.
    #[error("{0}")]
    Misuse(String),
    /// The caller's fault: an argument can't be used.
    #[error("{0}")]
    BadArgument(String),
    /// A collective needs at least two peers in the group.
    #[error("there is no other peer in the group")]
    TooFewPeers,
    /// Operations are in flight and must be awaited first.
    #[error("{0} asynchronous operations have not been awaited")]
    PendingOperations(usize),
    /// A collective was aborted, for all of the group.
    #[error("the operation was aborted for all: {0}")]
    Aborted(Box<Cause>),
    /// A vote failed.
    #[error("the vote failed: {0}")]
    VoteFailed(Box<Cause>),
    /// The shared state was not taken, or could not be had.
    #[error("{0}")]
    StateRejected(StateRejection),
    /// The master was never reached; its address, and why.
    #[error("could not reach the master at {0}")]
    MasterUnreachable(String),
    /// The master was reached before, and is lost.
    #[error("the master is lost: {0}")]
    MasterLost(String),
    /// The master does not let this peer in, and will not.
    #[error("the master turned this peer away: {0}")]
    TurnedAway(String),
    /// The master has put this peer out, or does not let it in.
    #[error("this peer is not part of the run: {0}")]
    Removed(String),
    /// The peer itself has left.
    #[error("the communicator was closed")]
    Left,
}

impl Failure {
    /// Whether the same call may succeed if it is made again on the same communicator.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Aborted(_) | Self::VoteFailed(_) | Self::StateRejected(_) | Self::TooFewPeers => true,
            Self::Misuse(_) | Self::BadArgument(_) | Self::PendingOperations(_) => false,
            Self::MasterUnreachable(_)
            | Self::MasterLost(_)
            | Self::TurnedAway(_)
            | Self::Removed(_)
            | Self::Left => false,
        }
    }
}
