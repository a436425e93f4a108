//! The local side of an operation: its memory, and the arithmetic on it.

use crate::step::{Left, Region};

/// One operation's source, target and scratch. The real one is user memory and kernels; simulated ones
/// hold symbols.
///
/// Where source and target are the same memory, the workspace keeps what it overwrites, chunk by chunk,
/// until it is told to [`restore`](Workspace::restore) or to [`keep`](Workspace::keep).
pub trait Workspace {
    /// Bytes on their way out. They stay valid until the medium says that they have left.
    type Payload;
    /// A view of bytes that arrived, in a slot.
    type Frame: ?Sized;

    /// The region as it travels: encoded if the operation is quantised; verbatim if it was settled here
    /// or stored from a settled frame.
    fn load(&mut self, region: Region) -> Self::Payload;

    /// `into` becomes a copy of `own`.
    fn copy(&mut self, own: Region, into: Region);

    /// `into` becomes what arrived.
    fn store(&mut self, frame: &Self::Frame, into: Region);

    /// `into` becomes the combination of `own` and what arrived.
    fn reduce(&mut self, frame: &Self::Frame, own: Region, into: Region, left: Left);

    /// `into` becomes the combination of two regions that are here; it may be either of them.
    fn combine(&mut self, left: Region, right: Region, into: Region);

    /// The region is final: divides averages, rounds quantised values once.
    fn settle(&mut self, region: Region);

    /// The operation was aborted: user memory that was both source and target holds again what it held.
    fn restore(&mut self);

    /// The operation was committed: what was overwritten is forgotten.
    fn keep(&mut self);
}
