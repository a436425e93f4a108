//! Results: how an error becomes a code, and how a call is kept from panicking into C.

use crate::last_error;
use core::ffi::{CStr, c_char, c_int};
use ringfold::{Error, StateRejection};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `pcclResult_t`, as functions return it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum ResultCode {
    /// It is done.
    Success = 0,
    /// `pcclInit` was not called.
    NotInitialized = 1,
    /// The system refused something, or a bug of ours.
    InternalError = 2,
    /// An argument can't be used.
    InvalidArgument = 3,
    /// The call can't be made now.
    InvalidUsage = 4,
    /// A collective needs two peers.
    TooFewPeers = 5,
    /// The master can't be reached, or this peer is not part of the run.
    MasterConnectionFailed = 6,
    /// Reserved.
    RankConnectionFailed = 7,
    /// A collective was aborted for all of the group.
    RankConnectionLost = 8,
    /// Nobody has the shared state.
    NoSharedStateAvailable = 9,
    /// Operations must be awaited first.
    PendingAsyncOps = 10,
    /// The vote on the topology failed.
    UpdateTopologyFailed = 11,
    /// The vote on the optimisation failed.
    TopologyOptimizationFailed = 12,
    /// The shared state was rejected, or the vote on it failed.
    SharedStateSyncFailed = 13,
}

/// Why a call fails: the code, and the words for `pcclGetLastError`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub code: ResultCode,
    pub text: String,
}

/// Which call an error comes from; a failed vote has a code of its own in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum During {
    Creation,
    Connect,
    UpdateTopology,
    OptimizeTopology,
    PendingVote,
    Reduce,
    Sync,
    Master,
}

impl Failure {
    pub(crate) fn new(code: ResultCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(ResultCode::InvalidArgument, text)
    }

    /// What `name` is can't be null.
    pub(crate) fn null(name: &str) -> Self {
        Self::argument(format!("{name} is null"))
    }

    /// The failure that an error of `ringfold` is to the user of this call.
    pub(crate) fn of(error: &Error, during: During) -> Self {
        Self::new(code_of(error, during), error.to_string())
    }
}

fn code_of(error: &Error, during: During) -> ResultCode {
    match error {
        Error::Misuse(_) => ResultCode::InvalidUsage,
        Error::BadArgument(_) => ResultCode::InvalidArgument,
        Error::TooFewPeers if during == During::OptimizeTopology => ResultCode::InvalidUsage,
        Error::TooFewPeers => ResultCode::TooFewPeers,
        Error::PendingOperations(_) => ResultCode::PendingAsyncOps,
        Error::Aborted(_) | Error::VoteFailed(_) => match during {
            During::UpdateTopology => ResultCode::UpdateTopologyFailed,
            During::OptimizeTopology => ResultCode::TopologyOptimizationFailed,
            During::Sync => ResultCode::SharedStateSyncFailed,
            During::Connect => ResultCode::MasterConnectionFailed,
            _ => ResultCode::RankConnectionLost,
        },
        Error::StateRejected(StateRejection::NobodyHasIt { .. } | StateRejection::HoldersGone) => {
            ResultCode::NoSharedStateAvailable
        }
        Error::StateRejected(_) => ResultCode::SharedStateSyncFailed,
        Error::MasterLost(_) | Error::TurnedAway(_) | Error::Removed(_) | Error::Left => {
            ResultCode::MasterConnectionFailed
        }
        Error::Bind(_) => ResultCode::InvalidUsage,
        // The system's refusals and our own bugs; also whatever error comes to be later.
        _ => ResultCode::InternalError,
    }
}

/// Makes a call: its failure is remembered for `pcclGetLastError`, and a panic is a failure.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), Failure>) -> ResultCode {
    // A panic can leave nothing half done that is used afterwards: locks are held over single steps, and the
    // crate below takes a communicator whose thread panicked out of use by itself.
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        Err(Failure::new(ResultCode::InternalError, format!("internal error: {}", said(panic.as_ref()))))
    });
    match result {
        Ok(()) => ResultCode::Success,
        Err(failure) => {
            last_error::remember(&failure.text);
            failure.code
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without words")
}

/// What a result means, as a sentence that is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn pcclGetErrorString(result: c_int) -> *const c_char {
    sentence(result).as_ptr()
}

fn sentence(result: c_int) -> &'static CStr {
    match result {
        0 => c"success",
        1 => c"pcclInit was not called",
        2 => c"internal error: the operating system refused something, or a bug",
        3 => c"an argument can't be used",
        4 => c"the call can't be made now",
        5 => c"there is no other peer in the group",
        6 => c"the master can't be reached, or this peer is not part of the run",
        7 => c"a peer can't be reached",
        8 => c"the operation was aborted for all of the group; retry it",
        9 => c"nobody has the shared state that all wait for",
        10 => c"asynchronous operations must be awaited first",
        11 => c"the topology could not be updated; retry",
        12 => c"the topology could not be optimised; retry",
        13 => c"the shared state was rejected, or the vote on it failed",
        _ => c"no result of this library",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold::Cause;

    #[test]
    fn a_failed_vote_has_the_code_of_its_call() {
        let failed = Error::VoteFailed(Box::new(Cause::EpochEnded));
        assert_eq!(code_of(&failed, During::UpdateTopology), ResultCode::UpdateTopologyFailed);
        assert_eq!(code_of(&failed, During::OptimizeTopology), ResultCode::TopologyOptimizationFailed);
        assert_eq!(code_of(&failed, During::Sync), ResultCode::SharedStateSyncFailed);
        let aborted = Error::Aborted(Box::new(Cause::EpochEnded));
        assert_eq!(code_of(&aborted, During::Reduce), ResultCode::RankConnectionLost);
    }

    #[test]
    fn the_loss_of_the_master_never_looks_like_something_to_retry_in_a_loop() {
        for during in [During::UpdateTopology, During::OptimizeTopology, During::Reduce, During::Sync] {
            for error in [Error::MasterLost("x".into()), Error::Removed("x".into()), Error::Left] {
                assert_eq!(code_of(&error, during), ResultCode::MasterConnectionFailed);
            }
        }
    }

    #[test]
    fn a_panic_becomes_an_internal_error_with_its_words() {
        assert_eq!(guarded(|| panic!("seven {}", 7)), ResultCode::InternalError);
        assert_eq!(last_error::text(), "internal error: seven 7");
    }

    #[test]
    fn every_result_has_a_sentence_and_anything_else_too() {
        for number in -1..=14 {
            assert!(!sentence(number).is_empty());
        }
        assert_eq!(sentence(14), sentence(c_int::MIN));
    }
}
