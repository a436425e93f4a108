//! The events of the executor. The driver acts on them; log and metrics read the same stream.

use core::fmt;
use ringfold_proto::id::{OpId, PeerId};
use ringfold_proto::message::Direction;

/// An event of an operation or a link.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExecutorEvent<W> {
    /// The result is complete and all puts are flushed. It is not decided yet: the workspace keeps its backup. The
    /// numbers are payload bytes sent and received. The digest is that of the result, if the operation compares results.
    Done { op: OpId, tx_bytes: u64, rx_bytes: u64, digest: Option<u64> },
    /// The operation was committed; the workspace has dropped its backup.
    Committed { op: OpId, workspace: W },
    /// The operation was aborted, all puts are flushed, and in-place memory is restored.
    Quiesced { op: OpId, workspace: W },
    /// A peer runs another operation under this id. Nothing of it was written.
    Mismatch { op: OpId, peer: PeerId },
    /// A payload of a peer does not match its checksum, and was not used. The operation makes no progress any more.
    Corrupted { op: OpId, peer: PeerId },
    /// The link to a peer was lost while this operation used it, so frames may be lost in either direction. If it is
    /// not `unfinished` here, it may still be at the other end.
    LinkLost { op: OpId, peer: PeerId, unfinished: bool },
    /// Operations wait on this link, and nothing has arrived, not even a ping.
    Stalled { peer: PeerId, direction: Direction },
    /// A peer violated the protocol. Its input on this link is ignored from now on.
    Violation { peer: PeerId, why: Violation },
}

impl<W> fmt::Display for ExecutorEvent<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done { op, tx_bytes, rx_bytes, .. } => {
                write!(f, "{op} is done ({tx_bytes} bytes sent, {rx_bytes} bytes received)")
            }
            Self::Committed { op, .. } => write!(f, "{op} is committed"),
            Self::Quiesced { op, .. } => write!(f, "{op} is aborted and all its puts are flushed"),
            Self::Mismatch { op, peer } => write!(f, "{op} is another operation on {}", peer.short()),
            Self::Corrupted { op, peer } => write!(f, "{op} got a corrupted payload from {}", peer.short()),
            Self::LinkLost { op, peer, unfinished } => {
                let state = if *unfinished { "unfinished" } else { "done" };
                write!(f, "{op} ({state}) lost its link to {}", peer.short())
            }
            Self::Stalled { peer, direction } => {
                write!(f, "the link to {} is stalled ({direction:?})", peer.short())
            }
            Self::Violation { peer, why } => write!(f, "protocol violation by {}: {why}", peer.short()),
        }
    }
}

/// A violation of the protocol by a peer.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Violation {
    /// A frame or message of an epoch that the peer is not a member of.
    #[error("not a member of the epoch")]
    NotAMember,
    /// More unopened epochs than the limit.
    #[error("too many epochs that are not open")]
    PendingEpochs,
    /// An invalid slot number, or one that does not match the eager flag.
    #[error("invalid slot {0}")]
    NoSuchSlot(u16),
    /// A slot that was not granted to the operation.
    #[error("slot {0} was not granted to the operation")]
    NotLent(u16),
    /// A slot that holds a frame.
    #[error("slot {0} was filled twice")]
    SlotFull(u16),
    /// A frame that is not in the plan.
    #[error("frame {0} is not in the plan")]
    NoSuchFrame(u32),
    /// A frame out of order.
    #[error("frame {got} out of order: expected {expected}")]
    OutOfOrder { got: u32, expected: u32 },
    /// A frame whose length differs from the plan.
    #[error("invalid frame length {got}: expected {expected}")]
    BadLength { got: u32, expected: u32 },
    /// Requests for slots for more operations than may be in flight.
    #[error("slots requested for too many operations")]
    TooManyWants,
    /// More slots granted than a window has, or for more operations than may be in flight.
    #[error("too many slots granted")]
    TooManyGrants,
    /// A returned slot that was not filled.
    #[error("slot {0} was returned, but not in use")]
    BadReturn(u16),
}
