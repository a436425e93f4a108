//! The memory of an operation, and the arithmetic on it.

use crate::step::{Left, Region};

/// The source, target and scratch of one operation: user memory and kernels, or symbols in simulations.
///
/// If source and target are the same memory, the workspace backs up what it overwrites until
/// [`restore`](Workspace::restore) or [`keep`](Workspace::keep).
pub trait Workspace {
    /// Bytes to send. They stay valid until the medium reports the put as flushed.
    type Payload;
    /// A view of received bytes in a slot.
    type Frame: ?Sized;

    /// Whether a region of the source can be read. If not, its steps wait for
    /// [`Executor::handle_input`](crate::executor::Executor::handle_input).
    fn has_input(&self, _region: Region) -> bool {
        true
    }

    /// A step of the plan is done, except that its region may have to be sent.
    fn note_done(&mut self, _step: u32) {}

    /// The region as it is sent: encoded if the operation is quantised; verbatim if it was settled here or stored from a
    /// settled frame.
    fn load(&mut self, region: Region) -> Self::Payload;

    /// As [`load`](Workspace::load), with the checksum of the bytes.
    fn load_checked(&mut self, region: Region) -> (Self::Payload, u32) {
        (self.load(region), 0)
    }

    /// The checksum of received bytes.
    fn checksum(&self, _frame: &Self::Frame) -> u32 {
        0
    }

    /// The digest of the target, which is complete: equal on peers with the same bits.
    fn digest(&mut self) -> u64 {
        0
    }

    /// Copies `own` to `into`.
    fn copy(&mut self, own: Region, into: Region);

    /// Stores a frame in `into`.
    fn store(&mut self, frame: &Self::Frame, into: Region);

    /// Reduces a frame and `own` into `into`.
    fn reduce(&mut self, frame: &Self::Frame, own: Region, into: Region, left: Left);

    /// Reduces two regions into `into`, which may be either of them.
    fn combine(&mut self, left: Region, right: Region, into: Region);

    /// Makes a region final: divides averages, rounds quantised values once.
    fn settle(&mut self, region: Region);

    /// Restores in-place user memory: the operation was aborted.
    fn restore(&mut self);

    /// Drops the backup: the operation was committed.
    fn keep(&mut self);
}
