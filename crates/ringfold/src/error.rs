//! The error type of this crate.

use crate::limits;
use ringfold_cuda::CudaError;
use ringfold_proto::cause::Cause;
use ringfold_proto::peer::{Failure, FailureKind};
use std::time::Instant;

/// Why a call failed. The text names the peers that caused it, or that the call waited for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call is not allowed in the current state.
    #[error("{0}")]
    Misuse(String),
    /// An argument is invalid.
    #[error("{0}")]
    BadArgument(String),
    /// A call of an elastic run failed, other than by misuse, invalid arguments or leaving.
    #[error(transparent)]
    Failed(Failure),
    /// The communicator was closed.
    #[error("the communicator was closed")]
    Left,
    /// A wait was cancelled by its callback. The peer has left the run, or the group was aborted.
    #[error("the wait was interrupted; this process has left the run or aborted the group")]
    Interrupted,
    /// A wait for a signal timed out. Nothing is lost: the caller may wait again.
    #[error("{0}")]
    TimedOut(String),
    /// A wait was cancelled by its callback. The operation continues.
    #[error("the wait was cancelled; the operation continues")]
    WaitCancelled,
    /// A group of fixed ranks has failed, on all ranks and permanently.
    #[error("the group failed: {0}")]
    GroupFailed(Box<Cause>),
    /// The ranks of a group could not connect to each other.
    #[error("the group could not be formed: {0}")]
    BootstrapFailed(String),
    /// Listening on an address failed.
    #[error("{0}")]
    Bind(String),
    /// A system call or a CUDA call failed.
    #[error("{0}")]
    System(String),
    /// A thread of Ringfold panicked: a bug. The communicator cannot be used any more.
    #[error("internal error: {0}")]
    Internal(String),
}

/// An [`Error::BadArgument`] with a formatted text.
macro_rules! invalid {
    ($($text:tt)*) => {
        $crate::Error::BadArgument(format!($($text)*))
    };
}
pub(crate) use invalid;

impl Error {
    /// Whether the same call may succeed if it is made again on the same communicator.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.is_retryable())
    }

    /// The kind of a failed call of an elastic run; `None` for errors of groups and of the system.
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

    /// A failed system call; `what` says what it was for.
    pub(crate) fn system(what: &str, error: &std::io::Error) -> Self {
        Self::System(format!("{what}: {error}"))
    }
}

/// Waits a moment for the cause of a failure, which may arrive after the failure.
pub(crate) fn wait_for_cause(mut find: impl FnMut() -> Option<Error>) -> Option<Error> {
    let until = Instant::now() + limits::FAULT_DELAY_MAX;
    loop {
        let cause = find();
        if cause.is_some() || Instant::now() >= until {
            return cause;
        }
        std::thread::sleep(limits::FAULT_POLL_INTERVAL);
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
