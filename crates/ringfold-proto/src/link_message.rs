//! What two peers say to each other about an epoch's data, beside the data: grants, fences, aborts.
//!
//! These are small, never need credit, and never queue behind data that does; but they keep their
//! order with the data frames of the same connection, which is what makes a fence a fence.

use crate::cause::Cause;
use crate::id::{EpochId, OpId};
use serde::{Deserialize, Serialize};

/// A message on a data connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LinkMessage {
    /// The receiver has started `op` and lends these of its slots to it (R3).
    Grant {
        /// The operation that alone may use the slots.
        op: OpId,
        /// The slots.
        slots: Vec<u16>,
    },
    /// The sender has data for `op`, no grant, and no free eager slot.
    Want {
        /// The operation that is parked.
        op: OpId,
    },
    /// Eager slots of this epoch that the receiver has emptied.
    Return {
        /// The epoch whose slots they are.
        epoch: EpochId,
        /// The slots.
        slots: Vec<u16>,
    },
    /// The sender will put nothing more into any slot for `op` (R5).
    Fenced {
        /// The operation that was aborted.
        op: OpId,
    },
    /// Frames of `op` do not fit what the receiver was asked to do (R2).
    Mismatch {
        /// The operation on which the two differ.
        op: OpId,
    },
    /// Nothing to say, but alive (R9).
    Ping,
    /// In a group of fixed ranks: it has failed, for all of them. Whoever sees a failure first tells everyone.
    Abort {
        /// The group's epoch.
        epoch: EpochId,
        /// What happened.
        cause: Cause,
    },
    /// In a group of fixed ranks: the sender leaves, and has sent all that it owed.
    Goodbye {
        /// The group's epoch.
        epoch: EpochId,
    },
    /// In a group of fixed ranks: something that one rank tells another, beside all operations.
    Note {
        /// The group's epoch.
        epoch: EpochId,
        /// What it is about.
        topic: u64,
        /// What is told.
        text: String,
    },
}
