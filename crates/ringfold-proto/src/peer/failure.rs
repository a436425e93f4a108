//! Why calls fail, and which failures are retryable.

use crate::cause::{Cause, Departure, MasterLoss, ProtocolViolation, Removal, StateRejection};
use core::fmt;

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The call is invalid in this state.
    #[error("{0}")]
    Misuse(String),
    /// An argument is invalid.
    #[error("{0}")]
    BadArgument(String),
    /// A collective needs at least two peers in the group.
    #[error("there is no other peer in the group: admit pending peers with update_topology")]
    TooFewPeers,
    /// Operations are in flight and must be awaited first.
    #[error("{0} asynchronous operations were not awaited")]
    PendingOperations(usize),
    /// A collective was aborted for the whole group.
    #[error("the operation was aborted for all: {0}")]
    Aborted(Box<Cause>),
    /// A vote failed.
    #[error("the vote failed: {0}")]
    VoteFailed(Box<Cause>),
    /// The shared state was rejected, or is not available.
    #[error("{0}")]
    StateRejected(StateRejection),
    /// The master was not reached, or was lost.
    #[error("{0}")]
    MasterLost(MasterLoss),
    /// The handshake with the master failed, and would fail again.
    #[error("the master rejected this peer: {0}")]
    JoinRejected(String),
    /// The master has evicted or rejected this peer.
    #[error("this peer is not part of the run: {0}")]
    Removed(Removal),
    /// The peer itself has left.
    #[error("the communicator was closed")]
    Left,
}

impl Failure {
    /// The kind of failure, without its details.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Misuse(_) => FailureKind::Misuse,
            Self::BadArgument(_) => FailureKind::BadArgument,
            Self::TooFewPeers => FailureKind::TooFewPeers,
            Self::PendingOperations(_) => FailureKind::PendingOperations,
            Self::Aborted(cause) | Self::VoteFailed(cause) => FailureKind::of_cause(cause),
            Self::StateRejected(why) => FailureKind::of_rejection(why),
            Self::MasterLost(MasterLoss::Unreachable(_)) => FailureKind::MasterUnreachable,
            Self::MasterLost(MasterLoss::NotAccepted | MasterLoss::NoneActive(_)) => FailureKind::NotAccepted,
            Self::MasterLost(MasterLoss::NotReturned(_) | MasterLoss::NoAnswer) => FailureKind::MasterLost,
            Self::MasterLost(MasterLoss::Misbehaved(_)) => FailureKind::ProtocolViolation,
            Self::JoinRejected(_) => FailureKind::JoinRejected,
            Self::Removed(Removal::Departed(Departure::Evicted(_))) => FailureKind::Evicted,
            Self::Removed(_) => FailureKind::Removed,
            Self::Left => FailureKind::Left,
        }
    }

    /// Whether the same call may succeed if it is repeated on the same communicator.
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// The protocol violation that ended this peer's membership, by the master or by this peer.
    pub fn protocol_violation(&self) -> Option<ProtocolViolation> {
        use crate::cause::{Departure, JoinRejection};
        match self {
            Self::MasterLost(MasterLoss::Misbehaved(how))
            | Self::Removed(
                Removal::Departed(Departure::Misbehaved(how))
                | Removal::Rejected(JoinRejection::Misbehaved(how)),
            ) => Some(*how),
            _ => None,
        }
    }

    pub(super) fn master_misbehaved(how: ProtocolViolation) -> Self {
        Self::MasterLost(MasterLoss::Misbehaved(how))
    }
}

macro_rules! failure_kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $retryable:literal;)*) => {
        /// The kind of a failure. Programs and language bindings decide by it, never by the text.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum FailureKind {
            $($(#[$doc])* $kind,)*
        }

        impl FailureKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// The name that language bindings use.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }

            /// Whether the same call may succeed if it is repeated on the same communicator.
            ///
            /// False if peers disagree: they would disagree again, and a retry loop would never end.
            pub fn is_retryable(self) -> bool {
                match self { $(Self::$kind => $retryable),* }
            }
        }
    };
}

failure_kinds! {
    /// The call is invalid in this state.
    Misuse = "misuse", false;
    /// An argument is invalid.
    BadArgument = "bad-argument", false;
    /// A collective needs two peers: retry after update_topology.
    TooFewPeers = "too-few-peers", true;
    /// Operations must be awaited first.
    PendingOperations = "pending-operations", false;
    /// A member departed.
    PeerLost = "peer-lost", true;
    /// Two members cannot reach each other; the ring is rebuilt.
    LinkLost = "link-lost", true;
    /// Peers made different calls.
    Mismatch = "mismatch", false;
    /// Live peers did not take part in time.
    Timeout = "timeout", true;
    /// A member cannot run the operation.
    Unable = "unable", false;
    /// The membership changed.
    EpochEnded = "epoch-ended", true;
    /// The user of a member aborted the group.
    AbortedByUser = "aborted-by-user", false;
    /// A payload did not match its checksum.
    Corrupted = "corrupted", true;
    /// The results of the peers differ.
    ResultsDiffer = "results-differ", true;
    /// The offered revision is beyond the next one.
    RevisionIncrementViolation = "revision-increment-violation", false;
    /// The layout of the state differs from the elected one.
    StateLayout = "state-layout", false;
    /// Another sender's content was elected.
    LostElection = "lost-election", false;
    /// The strategies of the peers exclude each other.
    StrategyConflict = "strategy-conflict", false;
    /// No peer offers the next revision.
    NoState = "no-state", true;
    /// No peer offers the next revision, and all holders of the state have departed.
    StateOrphaned = "state-orphaned", true;
    /// Every holder departed during the transfer.
    HoldersLost = "holders-lost", true;
    /// The master was never reached.
    MasterUnreachable = "master-unreachable", true;
    /// The master did not accept this peer in time.
    NotAccepted = "not-accepted", true;
    /// The master was lost.
    MasterLost = "master-lost", false;
    /// The master violated the protocol.
    ProtocolViolation = "protocol-violation", false;
    /// The handshake with the master failed for good.
    JoinRejected = "join-rejected", false;
    /// An operator evicted this peer.
    Evicted = "evicted", false;
    /// The master removed or rejected this peer.
    Removed = "removed", false;
    /// This peer has left.
    Left = "left", false;
}

impl FailureKind {
    pub(crate) fn of_cause(cause: &Cause) -> Self {
        match cause {
            Cause::PeerLost { .. } => Self::PeerLost,
            Cause::LinkLost { .. } => Self::LinkLost,
            Cause::Mismatch { .. } => Self::Mismatch,
            Cause::Timeout(_) => Self::Timeout,
            Cause::Unable { .. } => Self::Unable,
            Cause::EpochEnded => Self::EpochEnded,
            Cause::AbortedByUser { .. } => Self::AbortedByUser,
            Cause::Corrupted { .. } => Self::Corrupted,
            Cause::ResultsDiffer { .. } => Self::ResultsDiffer,
        }
    }

    pub(crate) fn of_rejection(why: &StateRejection) -> Self {
        match why {
            StateRejection::RevisionIncrementViolation { .. } => Self::RevisionIncrementViolation,
            StateRejection::Layout { .. } => Self::StateLayout,
            StateRejection::LostElection { .. } => Self::LostElection,
            StateRejection::StrategyConflict { .. } => Self::StrategyConflict,
            StateRejection::NoHolder { orphaned: false, .. } => Self::NoState,
            StateRejection::NoHolder { orphaned: true, .. } => Self::StateOrphaned,
            StateRejection::HoldersLost => Self::HoldersLost,
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
