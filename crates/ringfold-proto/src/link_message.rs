//! Messages between two members: grants, fences, aborts.
//!
//! They need no credit, and never wait for data that does. Except for those that overtake data, they keep their order with the data frames of the same
//! connection; fences depend on that.

use crate::cause::Cause;
use crate::group_call::GroupCall;
use crate::id::{EpochId, OpId};
use serde::{Deserialize, Serialize};

/// A message on a data connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub enum LinkMessage {
    /// The receiver has started `op` and lends these slots to it alone (R3).
    Grant { op: OpId, slots: Vec<u16> },
    /// The sender has data for `op`, no grant, and no free eager slot.
    Want { op: OpId },
    /// Eager slots of this epoch that the receiver has emptied.
    Return { epoch: EpochId, slots: Vec<u16> },
    /// The sender will write nothing more for the aborted `op` (R5).
    Fenced { op: OpId },
    /// Frames of `op` do not match the receiver's arguments (R2).
    Mismatch { op: OpId },
    /// The sender is alive (R9).
    Ping,
    /// Fixed ranks: the group has failed. The rank that detects a failure first sends it to all others.
    Abort { epoch: EpochId, cause: Cause },
    /// Fixed ranks: the sender leaves, and has sent all outstanding data.
    Goodbye { epoch: EpochId },
    /// Fixed ranks: a text from one rank to another, independent of operations.
    Note { epoch: EpochId, topic: u64, text: String },
    /// Members of one host: what the sender has done of `op` in the memory of its CUDA device.
    Device { op: OpId, stage: DeviceStage },
    /// Fixed ranks: the sender has waited for the receiver for long, and asks what it does.
    Inquiry { epoch: EpochId },
    /// Fixed ranks: the answer to an inquiry.
    Activity { epoch: EpochId, activity: RankActivity },
}

/// What a rank of a group does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RankActivity {
    /// The call that it waits in, and for how many milliseconds; none if it waits in no call of the group.
    pub waits_in: Option<(GroupCall, u32)>,
    /// How many collectives it has launched on its CUDA device.
    pub launched: u64,
}

/// A stage of an operation in device memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub enum DeviceStage {
    /// The sender's input will be in this memory, which the receiver may open.
    Offered { memory: Vec<u8> },
    /// The sender has opened the memory of all members, and its input is in its own.
    Ready,
    /// The sender runs the operation in host memory, and so must all.
    OnHost,
    /// The sender's part of the result is in its memory.
    Folded,
}

impl LinkMessage {
    /// Whether the message leaves before data that waits to be sent. A sender that is out of slots needs a grant now, and the
    /// data may take seconds. An answer that is late is of no use.
    pub fn overtakes_data(&self) -> bool {
        matches!(self, Self::Grant { .. } | Self::Abort { .. } | Self::Inquiry { .. } | Self::Activity { .. })
    }
}
