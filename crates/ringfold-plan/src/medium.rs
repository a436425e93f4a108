//! The transport of the executor. One medium serves all links of a peer.

use crate::workspace::Workspace;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{EpochId, PeerId};
use ringfold_proto::link_message::LinkMessage;

/// Identifies a put, which may read our memory until the medium reports it as flushed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// One of our slots, which another peer fills.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId {
    /// The peer that fills it.
    pub from: PeerId,
    /// Slots belong to a pair and an epoch (R5).
    pub epoch: EpochId,
    pub index: u16,
}

/// Carries frames and messages, in order for each peer. No method blocks.
pub trait Medium {
    /// The workspaces whose bytes it carries.
    type Workspace: Workspace;

    /// Puts bytes into the slot of `to` that the header names, and signals it. The receiver has lent a slot for each
    /// put, so the queue of a medium is bounded.
    fn put(
        &mut self,
        to: PeerId,
        header: &DataHeader,
        payload: <Self::Workspace as Workspace>::Payload,
    ) -> Ticket;

    /// The operation of this put was aborted. The medium may stop reading our memory and send any bytes of the same
    /// length instead; the frame itself must still be sent, because the receiver returns its slot only then. The put is
    /// still reported as flushed. Unknown tickets are ignored.
    fn cancel(&mut self, ticket: Ticket);

    /// Sends a message.
    fn send(&mut self, to: PeerId, message: LinkMessage);

    /// The bytes in a filled slot.
    fn frame(&self, slot: SlotId) -> &<Self::Workspace as Workspace>::Frame;

    /// Releases a slot that was read. Its epoch may have been closed meanwhile; then this does nothing. Slots that are
    /// full when their epoch is closed or their link is lost are not released one by one.
    fn release(&mut self, slot: SlotId);
}
