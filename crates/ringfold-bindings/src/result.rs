//! Results: how an error becomes a code.

use core::fmt;
use ringfold::{Error, FailureKind};

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

/// Why a call fails: the code, and the words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The code.
    pub code: ResultCode,
    /// The words.
    pub text: String,
    /// The name of the [`FailureKind`], or "internal": programs decide by it.
    pub kind: &'static str,
    /// Whether the same call may succeed if it is made again.
    pub is_retryable: bool,
}

/// Which call an error comes from; a failed vote has a code of its own in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum During {
    /// A communicator is made.
    Creation,
    /// It connects.
    Connect,
    /// It lets others in.
    UpdateTopology,
    /// It measures.
    OptimizeTopology,
    /// It asks whether anyone waits.
    PendingVote,
    /// It reduces.
    Reduce,
    /// It syncs.
    Sync,
    /// A master is used.
    Master,
}

impl fmt::Display for During {
    /// What was being done, before the words of what went wrong.
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

impl Failure {
    /// This code, with these words; the same call would end so again.
    pub fn new(code: ResultCode, text: impl Into<String>) -> Self {
        let kind = match code {
            ResultCode::InvalidArgument => "bad-argument",
            ResultCode::PendingAsyncOps => "pending-operations",
            ResultCode::InternalError => "internal",
            _ => "misuse",
        };
        Self { code, text: text.into(), kind, is_retryable: false }
    }

    /// An argument can't be used.
    pub fn argument(text: impl Into<String>) -> Self {
        Self::new(ResultCode::InvalidArgument, text)
    }

    /// What `name` is can't be null.
    pub fn null(name: &str) -> Self {
        Self::argument(format!("{name} is null"))
    }

    /// The failure that an error of `ringfold` is to the user of this call.
    pub fn of(error: &Error, during: During) -> Self {
        Self {
            code: code_of(error, during),
            text: format!("{during}{error}"),
            kind: error.kind().map_or("internal", FailureKind::name),
            is_retryable: error.is_retryable(),
        }
    }
}

/// The code of an error. Every documented retry loop goes by codes, so an error that is not retryable must not have
/// a code that such a loop retries; `RETRIED` in the tests lists those.
fn code_of(error: &Error, during: During) -> ResultCode {
    let failure = match error {
        Error::Misuse(_) => return ResultCode::InvalidUsage,
        Error::BadArgument(_) => return ResultCode::InvalidArgument,
        Error::Left | Error::Interrupted => return ResultCode::MasterConnectionFailed,
        Error::Bind(_) | Error::NoGroup(_) => return ResultCode::InvalidUsage,
        Error::Failed(failure) => failure,
        // Errors of the system, and bugs.
        _ => return ResultCode::InternalError,
    };
    match failure.kind() {
        FailureKind::Misuse => ResultCode::InvalidUsage,
        FailureKind::BadArgument | FailureKind::Mismatch => ResultCode::InvalidArgument,
        FailureKind::TooFewPeers if during == During::OptimizeTopology => ResultCode::InvalidUsage,
        FailureKind::TooFewPeers => ResultCode::TooFewPeers,
        FailureKind::PendingOperations => ResultCode::PendingAsyncOps,
        FailureKind::PeerLost | FailureKind::LinkLost | FailureKind::Timeout | FailureKind::EpochEnded => {
            match during {
                During::UpdateTopology => ResultCode::UpdateTopologyFailed,
                During::OptimizeTopology => ResultCode::TopologyOptimizationFailed,
                During::Sync => ResultCode::SharedStateSyncFailed,
                During::Connect => ResultCode::MasterConnectionFailed,
                _ => ResultCode::RankConnectionLost,
            }
        }
        FailureKind::Unable | FailureKind::GivenUp => ResultCode::InternalError,
        FailureKind::NoState | FailureKind::StateOrphaned | FailureKind::HoldersGone => {
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
        | FailureKind::TurnedAway
        | FailureKind::Removed
        | FailureKind::Left => ResultCode::MasterConnectionFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold::{Cause, Failure as CallFailure, MasterLoss, PeerName, Removal, StateRejection};

    /// The codes that the loops in README, docs and examples retry.
    const RETRIED: [ResultCode; 3] = [
        ResultCode::RankConnectionLost,
        ResultCode::UpdateTopologyFailed,
        ResultCode::TopologyOptimizationFailed,
    ];
    const EVERY_CALL: [During; 6] = [
        During::Connect,
        During::UpdateTopology,
        During::OptimizeTopology,
        During::PendingVote,
        During::Reduce,
        During::Sync,
    ];

    fn aborted(cause: Cause) -> Error {
        CallFailure::Aborted(Box::new(cause)).into()
    }

    fn vote_failed(cause: Cause) -> Error {
        CallFailure::VoteFailed(Box::new(cause)).into()
    }

    fn mismatch() -> Cause {
        let waiting = |name: &str| ringfold::Waiting {
            who: PeerName { peer: Default::default(), name: name.into() },
            call: "all-reduce".into(),
        };
        Cause::Mismatch { one: waiting("a"), other: waiting("b") }
    }

    #[test]
    fn a_failed_vote_has_the_code_of_its_call() {
        let failed = vote_failed(Cause::EpochEnded);
        assert_eq!(code_of(&failed, During::UpdateTopology), ResultCode::UpdateTopologyFailed);
        assert_eq!(code_of(&failed, During::OptimizeTopology), ResultCode::TopologyOptimizationFailed);
        assert_eq!(code_of(&failed, During::Sync), ResultCode::SharedStateSyncFailed);
        assert_eq!(code_of(&aborted(Cause::EpochEnded), During::Reduce), ResultCode::RankConnectionLost);
    }

    #[test]
    fn what_peers_disagree_on_has_no_code_that_a_loop_retries() {
        let who = PeerName { peer: Default::default(), name: "a".into() };
        let lasting = [mismatch(), Cause::Unable { who: who.clone() }, Cause::GivenUp { who: who.clone() }];
        let layout = CallFailure::StateRejected(StateRejection::Layout { key: "x".into() });
        for during in EVERY_CALL {
            for cause in &lasting {
                for error in [aborted(cause.clone()), vote_failed(cause.clone())] {
                    let failure = Failure::of(&error, during);
                    assert!(!error.is_retryable() && !failure.is_retryable, "{error}");
                    assert!(!RETRIED.contains(&failure.code), "{error} in {during:?}");
                }
            }
            assert_eq!(code_of(&aborted(mismatch()), during), ResultCode::InvalidArgument);
            assert!(!Failure::of(&layout.clone().into(), during).is_retryable);
        }
        assert!(Failure::of(&aborted(Cause::EpochEnded), During::Reduce).is_retryable);
        let gone = CallFailure::StateRejected(StateRejection::HoldersGone);
        assert!(Failure::of(&gone.into(), During::Sync).is_retryable);
    }

    #[test]
    fn the_loss_of_the_master_never_looks_like_something_to_retry_in_a_loop() {
        let removed = Removal::Refused(ringfold::JoinRefusal::TooLate);
        let lost = [MasterLoss::NotReturned, MasterLoss::NoAnswer].map(CallFailure::MasterLost);
        for during in EVERY_CALL {
            let ended = [CallFailure::Removed(removed.clone()), CallFailure::Left];
            for failure in lost.iter().cloned().chain(ended) {
                let error = Error::from(failure);
                assert_eq!(code_of(&error, during), ResultCode::MasterConnectionFailed);
                assert!(!Failure::of(&error, during).is_retryable);
            }
        }
        let unreachable = CallFailure::MasterLost(MasterLoss::Unreachable("refused".into()));
        assert!(Failure::of(&unreachable.into(), During::Connect).is_retryable);
        assert!(!Failure::of(&CallFailure::TurnedAway("x".into()).into(), During::Connect).is_retryable);
    }
}
