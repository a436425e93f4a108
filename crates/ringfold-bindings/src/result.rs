//! Conversion of errors to the result codes of `pccl.h`.
#![allow(missing_docs)] // Fields are named for what they hold.

use core::fmt;
use ringfold::{Error, FailureKind};

/// `pcclResult_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum ResultCode {
    Success = 0,
    /// `pcclInit` was not called.
    NotInitialized = 1,
    /// An error of the operating system, or a bug.
    InternalError = 2,
    /// An argument is invalid, or peers passed different arguments.
    InvalidArgument = 3,
    /// The call is invalid in this state.
    InvalidUsage = 4,
    TooFewPeers = 5,
    /// The master cannot be reached, or this peer is not a member.
    MasterConnectionFailed = 6,
    /// Reserved.
    RankConnectionFailed = 7,
    /// A collective was aborted for the whole group.
    RankConnectionLost = 8,
    NoSharedStateAvailable = 9,
    PendingAsyncOps = 10,
    UpdateTopologyFailed = 11,
    TopologyOptimizationFailed = 12,
    /// The shared state was rejected, or the vote on it failed.
    SharedStateSyncFailed = 13,
}

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallError {
    /// The code for C.
    pub code: ResultCode,
    pub text: String,
    /// The name of the [`FailureKind`], or "internal". Programs decide by it.
    pub kind: &'static str,
    /// Whether the same call may succeed if it is repeated.
    pub is_retryable: bool,
}

/// The API call that failed. It determines the code of a failed vote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ApiCall {
    Creation,
    Connect,
    UpdateTopology,
    OptimizeTopology,
    PendingVote,
    Reduce,
    Sync,
    Master,
}

impl fmt::Display for ApiCall {
    /// The prefix of the error message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creation | Self::Master => "",
            Self::Connect => "connect: ",
            Self::UpdateTopology => "update_topology: ",
            Self::OptimizeTopology => "optimize_topology: ",
            Self::PendingVote => "are_peers_pending: ",
            Self::Reduce => "all_reduce: ",
            Self::Sync => "sync_shared_state: ",
        })
    }
}

impl CallError {
    /// An error that is not retryable.
    pub fn new(code: ResultCode, text: impl Into<String>) -> Self {
        let kind = match code {
            ResultCode::InvalidArgument => "bad-argument",
            ResultCode::PendingAsyncOps => "pending-operations",
            ResultCode::InternalError => "internal",
            _ => "misuse",
        };
        Self { code, text: text.into(), kind, is_retryable: false }
    }

    pub fn invalid_argument(text: impl Into<String>) -> Self {
        Self::new(ResultCode::InvalidArgument, text)
    }

    /// An argument that is null and must not be.
    pub fn null(name: &str) -> Self {
        Self::invalid_argument(format!("invalid {name}: null"))
    }

    /// Converts an error of this call.
    pub fn from_error(error: &Error, call: ApiCall) -> Self {
        Self {
            code: code_of(error, call),
            text: format!("{call}{error}"),
            kind: error.kind().map_or("internal", FailureKind::name),
            is_retryable: error.is_retryable(),
        }
    }
}

/// The code of an error. Documented retry loops check codes, so an error that is not retryable must not have a code
/// that such a loop retries; `RETRIED` in the tests lists those.
fn code_of(error: &Error, call: ApiCall) -> ResultCode {
    let failure = match error {
        Error::Misuse(_) => return ResultCode::InvalidUsage,
        Error::BadArgument(_) => return ResultCode::InvalidArgument,
        Error::Left | Error::Interrupted => return ResultCode::MasterConnectionFailed,
        Error::Bind(_) | Error::BootstrapFailed(_) => return ResultCode::InvalidUsage,
        Error::Failed(failure) => failure,
        // Errors of the operating system, and bugs.
        _ => return ResultCode::InternalError,
    };
    match failure.kind() {
        FailureKind::Misuse => ResultCode::InvalidUsage,
        FailureKind::BadArgument | FailureKind::Mismatch => ResultCode::InvalidArgument,
        FailureKind::TooFewPeers if call == ApiCall::OptimizeTopology => ResultCode::InvalidUsage,
        FailureKind::TooFewPeers => ResultCode::TooFewPeers,
        FailureKind::PendingOperations => ResultCode::PendingAsyncOps,
        FailureKind::PeerLost
        | FailureKind::LinkLost
        | FailureKind::Timeout
        | FailureKind::EpochEnded
        | FailureKind::Corrupted
        | FailureKind::ResultsDiffer => match call {
            ApiCall::UpdateTopology => ResultCode::UpdateTopologyFailed,
            ApiCall::OptimizeTopology => ResultCode::TopologyOptimizationFailed,
            ApiCall::Sync => ResultCode::SharedStateSyncFailed,
            ApiCall::Connect => ResultCode::MasterConnectionFailed,
            _ => ResultCode::RankConnectionLost,
        },
        FailureKind::Unable | FailureKind::AbortedByUser => ResultCode::InternalError,
        FailureKind::NoState | FailureKind::StateOrphaned | FailureKind::HoldersLost => {
            ResultCode::NoSharedStateAvailable
        }
        FailureKind::RevisionIncrementViolation
        | FailureKind::StateLayout
        | FailureKind::LostElection
        | FailureKind::StrategyConflict => ResultCode::SharedStateSyncFailed,
        FailureKind::MasterUnreachable
        | FailureKind::NotAccepted
        | FailureKind::MasterLost
        | FailureKind::ProtocolViolation
        | FailureKind::JoinRejected
        | FailureKind::Evicted
        | FailureKind::Removed
        | FailureKind::Left => ResultCode::MasterConnectionFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold::{Cause, Failure, MasterLoss, PeerName, Removal, StateRejection};

    /// The codes that the loops in README, docs and examples retry.
    const RETRIED: [ResultCode; 3] = [
        ResultCode::RankConnectionLost,
        ResultCode::UpdateTopologyFailed,
        ResultCode::TopologyOptimizationFailed,
    ];
    const ALL_CALLS: [ApiCall; 6] = [
        ApiCall::Connect,
        ApiCall::UpdateTopology,
        ApiCall::OptimizeTopology,
        ApiCall::PendingVote,
        ApiCall::Reduce,
        ApiCall::Sync,
    ];

    fn aborted(cause: Cause) -> Error {
        Failure::Aborted(Box::new(cause)).into()
    }

    fn vote_failed(cause: Cause) -> Error {
        Failure::VoteFailed(Box::new(cause)).into()
    }

    fn mismatch() -> Cause {
        let waiting = |name: &str| ringfold::WaitingPeer {
            who: PeerName { peer: Default::default(), name: name.into() },
            call: "all-reduce".into(),
        };
        Cause::Mismatch { one: waiting("a"), other: waiting("b") }
    }

    #[test]
    fn a_failed_vote_has_the_code_of_its_call() {
        let failed = vote_failed(Cause::EpochEnded);
        assert_eq!(code_of(&failed, ApiCall::UpdateTopology), ResultCode::UpdateTopologyFailed);
        assert_eq!(code_of(&failed, ApiCall::OptimizeTopology), ResultCode::TopologyOptimizationFailed);
        assert_eq!(code_of(&failed, ApiCall::Sync), ResultCode::SharedStateSyncFailed);
        assert_eq!(code_of(&aborted(Cause::EpochEnded), ApiCall::Reduce), ResultCode::RankConnectionLost);
    }

    #[test]
    fn disagreement_has_no_code_that_a_loop_retries() {
        let who = PeerName { peer: Default::default(), name: "a".into() };
        let lasting =
            [mismatch(), Cause::Unable { who: who.clone() }, Cause::AbortedByUser { who: who.clone() }];
        let layout = Failure::StateRejected(StateRejection::Layout { key: "x".into() });
        for during in ALL_CALLS {
            for cause in &lasting {
                for error in [aborted(cause.clone()), vote_failed(cause.clone())] {
                    let failure = CallError::from_error(&error, during);
                    assert!(!error.is_retryable() && !failure.is_retryable, "{error}");
                    assert!(!RETRIED.contains(&failure.code), "{error} in {during:?}");
                }
            }
            assert_eq!(code_of(&aborted(mismatch()), during), ResultCode::InvalidArgument);
            assert!(!CallError::from_error(&layout.clone().into(), during).is_retryable);
        }
        assert!(CallError::from_error(&aborted(Cause::EpochEnded), ApiCall::Reduce).is_retryable);
        let gone = Failure::StateRejected(StateRejection::HoldersLost);
        assert!(CallError::from_error(&gone.into(), ApiCall::Sync).is_retryable);
    }

    #[test]
    fn loss_of_the_master_has_no_code_that_a_loop_retries() {
        let removed = Removal::Rejected(ringfold::JoinRejection::TooLate);
        let lost = [MasterLoss::NotReturned(String::new()), MasterLoss::NoAnswer].map(Failure::MasterLost);
        for during in ALL_CALLS {
            let ended = [Failure::Removed(removed.clone()), Failure::Left];
            for failure in lost.iter().cloned().chain(ended) {
                let error = Error::from(failure);
                assert_eq!(code_of(&error, during), ResultCode::MasterConnectionFailed);
                assert!(!CallError::from_error(&error, during).is_retryable);
            }
        }
        let unreachable = Failure::MasterLost(MasterLoss::Unreachable("refused".into()));
        assert!(CallError::from_error(&unreachable.into(), ApiCall::Connect).is_retryable);
        assert!(
            !CallError::from_error(&Failure::JoinRejected("x".into()).into(), ApiCall::Connect).is_retryable
        );
    }
}
