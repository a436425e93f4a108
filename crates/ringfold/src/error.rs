//! How a call fails, and whose fault it is.

use ringfold_cuda::CudaError;
use ringfold_proto::cause::{Cause, StateRejection};
use ringfold_proto::peer::Failure;

/// Why a call failed. The text names the peers that are to blame, or that were waited for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's fault: the call can't be made now.
    #[error("{0}")]
    Misuse(String),
    /// The caller's fault: an argument can't be used.
    #[error("{0}")]
    BadArgument(String),
    /// A collective needs at least two peers in the group.
    #[error("there is no other peer in the group; update_topology lets in whoever waits")]
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
    /// The master has put this peer out.
    #[error("this peer is not part of the run: {0}")]
    Removed(String),
    /// The communicator was closed.
    #[error("the communicator was closed")]
    Left,
    /// A wait was left off, because whoever watches over waits asked for it; so the communicator was closed.
    #[error("the wait was interrupted, and this peer has left the run")]
    Interrupted,
    /// Someone was waited for in vain. Nothing is broken: it may be waited for again.
    #[error("{0}")]
    Late(String),
    /// A wait was left off, because whoever watches over waits asked for it. What was waited for goes on.
    #[error("the wait was interrupted; what was waited for goes on")]
    LeftOff,
    /// A group of fixed ranks has failed, for all of them and for good.
    #[error("the group is over: {0}")]
    Over(Box<Cause>),
    /// A group of fixed ranks could not be formed.
    #[error("the group could not be formed: {0}")]
    NoGroup(String),
    /// An address can't be listened on.
    #[error("{0}")]
    Bind(String),
    /// The operating system refused something.
    #[error("{0}")]
    System(String),
    /// A thread of ours panicked: a bug. The communicator can't be used any more.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Whether the same call may succeed if it is made again on the same communicator.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Aborted(_) | Self::VoteFailed(_) | Self::StateRejected(_) | Self::TooFewPeers)
    }

    /// A failed system call, and what it was for.
    pub(crate) fn system(what: &str, error: &std::io::Error) -> Self {
        Self::System(format!("{what}: {error}"))
    }
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::NotOnDevice(_) | CudaError::NoDevice(_) => Self::BadArgument(error.to_string()),
            other => Self::System(other.to_string()),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Misuse(why) => Self::Misuse(why),
            Failure::BadArgument(why) => Self::BadArgument(why),
            Failure::TooFewPeers => Self::TooFewPeers,
            Failure::PendingOperations(count) => Self::PendingOperations(count),
            Failure::Aborted(cause) => Self::Aborted(cause),
            Failure::VoteFailed(cause) => Self::VoteFailed(cause),
            Failure::StateRejected(why) => Self::StateRejected(why),
            Failure::MasterUnreachable(why) => Self::MasterUnreachable(why),
            Failure::MasterLost(why) => Self::MasterLost(why),
            Failure::TurnedAway(why) => Self::TurnedAway(why),
            Failure::Removed(why) => Self::Removed(why),
            Failure::Left => Self::Left,
        }
    }
}
