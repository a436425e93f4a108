//! Every decision of the executor, typed. The driver acts on them; log, metrics and flight recorder read
//! the same stream.

use core::fmt;
use ringfold_proto::id::{OpId, PeerId};
use ringfold_proto::message::Direction;

/// Something happened to an operation or on a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExecutorEvent<W> {
    /// The result is here, and nothing reads our memory any more. Undecided yet: the workspace keeps what
    /// it overwrote.
    Done {
        /// Which operation.
        op: OpId,
        /// Payload bytes that were sent.
        tx_bytes: u64,
        /// Payload bytes that arrived.
        rx_bytes: u64,
    },
    /// It was committed; the workspace has forgotten what it overwrote.
    Committed {
        /// Which operation.
        op: OpId,
        /// Its memory, handed back.
        workspace: W,
    },
    /// It was aborted, no put can read its memory any more, and what it overwrote is put back.
    Quiesced {
        /// Which operation.
        op: OpId,
        /// Its memory, handed back.
        workspace: W,
    },
    /// A peer runs something else under the same name. Nothing of it was written.
    Mismatch {
        /// Which operation.
        op: OpId,
        /// Who differs.
        peer: PeerId,
    },
    /// The link to a peer was lost while this operation depended on it: frames may be missing, here or
    /// there.
    LinkLost {
        /// Which operation.
        op: OpId,
        /// The other end.
        peer: PeerId,
        /// Whether the operation can no longer finish here. If it can, the other end may still lack
        /// something that was on its way.
        unfinished: bool,
    },
    /// Operations wait on this link, and nothing moves: not even a sign of life.
    Stalled {
        /// The other end.
        peer: PeerId,
        /// Which way nothing moves.
        direction: Direction,
    },
    /// A peer broke the rules of the data plane. What it sends on this link is ignored from now on.
    Violation {
        /// Who.
        peer: PeerId,
        /// How.
        why: Violation,
    },
}

impl<W> fmt::Display for ExecutorEvent<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done { op, tx_bytes, rx_bytes } => {
                write!(f, "{op} is done here ({tx_bytes} bytes out, {rx_bytes} bytes in)")
            }
            Self::Committed { op, .. } => write!(f, "{op} is committed here"),
            Self::Quiesced { op, .. } => write!(f, "{op} is aborted and quiet here"),
            Self::Mismatch { op, peer } => write!(f, "{op} is something else at {}", peer.short()),
            Self::LinkLost { op, peer, unfinished } => {
                let state = if *unfinished { "unfinished" } else { "done" };
                write!(f, "{op}, {state} here, lost its link to {}", peer.short())
            }
            Self::Stalled { peer, direction } => {
                write!(f, "the link to {} stalls ({direction:?})", peer.short())
            }
            Self::Violation { peer, why } => write!(f, "{} broke the rules: {why}", peer.short()),
        }
    }
}

/// What a peer may not do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Violation {
    /// It speaks of an epoch that it is not a member of.
    #[error("it is no member of that epoch")]
    NotAMember,
    /// More epochs than there may be before they open.
    #[error("it speaks of too many epochs that are not open")]
    PendingEpochs,
    /// A slot number that does not exist, or an eager flag that does not fit it.
    #[error("slot {0} is none that it may use so")]
    NoSuchSlot(u16),
    /// A slot that was not lent to that operation.
    #[error("slot {0} was not lent to that operation")]
    NotLent(u16),
    /// A slot that holds a frame.
    #[error("slot {0} was filled twice")]
    SlotFull(u16),
    /// A frame that the plan has no place for.
    #[error("frame {0} has no place in the plan")]
    NoSuchFrame(u32),
    /// A frame out of order.
    #[error("frame {got} came where frame {expected} was due")]
    OutOfOrder {
        /// What came.
        got: u32,
        /// What was due.
        expected: u32,
    },
    /// A frame of another length than the plan says.
    #[error("a frame has {got} bytes, and not {expected}")]
    BadLength {
        /// What came.
        got: u32,
        /// What was due.
        expected: u32,
    },
    /// More requests for slots than operations may be in flight.
    #[error("it wants slots for too many operations")]
    TooManyWants,
    /// More slots lent than a window has, or for more operations than may be in flight.
    #[error("it grants too many slots")]
    TooManyGrants,
    /// It gave back a slot that was never filled.
    #[error("it returned slot {0}, which was not in use")]
    BadReturn(u16),
}
