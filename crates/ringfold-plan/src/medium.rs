//! What carries frames between peers. One medium serves all of a peer's links.

use crate::workspace::Workspace;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{EpochId, PeerId};
use ringfold_proto::link_message::LinkMessage;

/// A put that may still read our memory, until the medium tells the executor that it was flushed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// A slot of ours, that another peer puts frames into.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId {
    /// The peer that fills it.
    pub from: PeerId,
    /// Slots belong to a pair and an epoch (R5).
    pub epoch: EpochId,
    /// Its number.
    pub index: u16,
}

/// Carries frames and messages. Everything to one peer arrives in the order in which it was handed over,
/// data and messages alike. Nothing here blocks.
pub trait Medium {
    /// The workspaces whose bytes it carries.
    type Workspace: Workspace;

    /// Puts bytes into the slot of `to` that the header names, and signals it. The executor hands over
    /// only what the receiver has lent a slot for, so what a medium may have to queue is bounded.
    fn put(
        &mut self,
        to: PeerId,
        header: &DataHeader,
        payload: <Self::Workspace as Workspace>::Payload,
    ) -> Ticket;

    /// The operation of this put was aborted: the medium may stop reading our memory for it, and send
    /// anything of the same length in its place. The frame itself must still go out, because the receiver
    /// gives its slot back only when it has come. Each put is still reported as flushed, once it can no
    /// longer read our memory. Those that were flushed meanwhile are ignored.
    fn cancel(&mut self, ticket: Ticket);

    /// Sends a message.
    fn send(&mut self, to: PeerId, message: LinkMessage);

    /// The bytes in a slot that was filled.
    fn frame(&self, slot: SlotId) -> &<Self::Workspace as Workspace>::Frame;

    /// The slot has been read; its memory may be filled again once it has been lent again. Slots that are
    /// full when their epoch is closed or their link is lost are not released one by one: whoever closes
    /// the epoch or loses the link retires them all. It may be one
    /// of an epoch that was closed meanwhile; then there is nothing to do.
    fn release(&mut self, slot: SlotId);
}
