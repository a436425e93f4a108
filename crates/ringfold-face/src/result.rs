//! Results: how an error becomes a code.

use core::fmt;
use ringfold::{Cause, Error, StateRejection};

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
        Self { code, text: text.into(), is_retryable: false }
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
        let is_retryable = may_pass(error, during);
        Self { is_retryable, ..Self::new(code_of(error, during), format!("{during}{error}")) }
    }
}

/// Whether the same call may succeed the next time. Not if peers disagree: they would again, and a program that retries
/// in a loop would never end.
fn may_pass(error: &Error, during: During) -> bool {
    match error {
        Error::Aborted(cause) | Error::VoteFailed(cause)
            if matches!(**cause, Cause::Mismatch { .. } | Cause::Unable { .. }) =>
        {
            false
        }
        Error::StateRejected(why) => {
            matches!(why, StateRejection::NobodyHasIt { .. } | StateRejection::HoldersGone)
        }
        // A communicator that could not connect may try again, one that was not let in may not.
        Error::MasterUnreachable(_) | Error::MasterLost(_) => during == During::Connect,
        Error::VoteFailed(_) => during != During::Connect,
        other => other.is_retryable(),
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
        Error::MasterUnreachable(_)
        | Error::MasterLost(_)
        | Error::TurnedAway(_)
        | Error::Removed(_)
        | Error::Left
        | Error::Interrupted => ResultCode::MasterConnectionFailed,
        Error::Bind(_) | Error::NoGroup(_) => ResultCode::InvalidUsage,
        // The system's refusals and our own bugs; also whatever error comes to be later.
        _ => ResultCode::InternalError,
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
    fn what_peers_disagree_on_is_no_reason_to_try_again() {
        let retryable = |error: &Error, during| Failure::of(error, during).is_retryable;
        assert!(retryable(&Error::Aborted(Box::new(Cause::EpochEnded)), During::Reduce));
        let differs = Error::StateRejected(StateRejection::Layout { key: "x".into() });
        assert!(!retryable(&differs, During::Sync));
        assert!(retryable(&Error::StateRejected(StateRejection::HoldersGone), During::Sync));
        let gone = Error::MasterLost("x".into());
        assert!(retryable(&gone, During::Connect) && !retryable(&gone, During::UpdateTopology));
        assert!(!retryable(&Error::TurnedAway("x".into()), During::Connect));
    }

    #[test]
    fn the_loss_of_the_master_never_looks_like_something_to_retry_in_a_loop() {
        for during in [During::UpdateTopology, During::OptimizeTopology, During::Reduce, During::Sync] {
            for error in [Error::MasterLost("x".into()), Error::Removed("x".into()), Error::Left] {
                assert_eq!(code_of(&error, during), ResultCode::MasterConnectionFailed);
            }
        }
    }
}
