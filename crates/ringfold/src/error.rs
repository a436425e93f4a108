//! How a call fails, and whose fault it is.

use ringfold_cuda::CudaError;
use ringfold_proto::cause::Cause;
use ringfold_proto::peer::{Failure, FailureKind};

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
    /// A call of an elastic run failed. Misuse, invalid arguments and calls after leaving have variants of their own.
    #[error(transparent)]
    Failed(Failure),
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
        matches!(self, Self::Failed(failure) if failure.is_retryable())
    }

    /// The kind of a failed call of an elastic run; none for errors of groups and of the system.
    pub fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Failed(failure) => Some(failure.kind()),
            Self::Misuse(_) => Some(FailureKind::Misuse),
            Self::BadArgument(_) => Some(FailureKind::BadArgument),
            Self::Left => Some(FailureKind::Left),
            _ => None,
        }
    }

    /// Whether the call failed because this peer is alone in its group.
    pub fn is_alone(&self) -> bool {
        *self == Self::Failed(Failure::TooFewPeers)
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
            Failure::Left => Self::Left,
            failure => Self::Failed(failure),
        }
    }
}
