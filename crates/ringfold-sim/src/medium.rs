//! The transport of a simulated peer.

use crate::buffer::{SymbolPayload, SymbolWorkspace};
use crate::symbol::Symbol;
use ringfold_plan::medium::{Medium, SlotId, Ticket};
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{OpId, PeerId};
use ringfold_proto::link_message::LinkMessage;
use std::collections::{BTreeMap, BTreeSet};

/// An item to send on a link.
#[derive(Debug)]
pub enum Outgoing {
    Frame(PeerId, Box<DataHeader>, Ticket),
    Message(PeerId, LinkMessage),
}

/// The slots and outgoing items of a simulated peer.
#[derive(Debug, Default)]
pub struct SimMedium {
    slots: BTreeMap<SlotId, Vec<Symbol>>,
    tickets: u64,
    /// Puts that still read memory.
    pub unflushed: BTreeMap<Ticket, (OpId, SymbolPayload)>,
    /// Aborted operations: the contents of their puts do not matter.
    pub cancelled: BTreeSet<OpId>,
    pub outgoing: Vec<Outgoing>,
}

impl SimMedium {
    /// Stores a frame in a slot. As with shared memory, it cannot be rejected.
    pub fn store_frame(&mut self, slot: SlotId, symbols: Vec<Symbol>) {
        self.slots.insert(slot, symbols);
    }

    /// Drops the slots of a peer whose link is lost.
    pub fn drop_slots(&mut self, peer: PeerId) {
        self.slots.retain(|slot, _| slot.from != peer);
    }
}

impl Medium for SimMedium {
    type Workspace = SymbolWorkspace;

    fn put(&mut self, to: PeerId, header: &DataHeader, payload: SymbolPayload) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.unflushed.insert(ticket, (header.op, payload));
        self.outgoing.push(Outgoing::Frame(to, Box::new(*header), ticket));
        ticket
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some((op, _)) = self.unflushed.get(&ticket) {
            self.cancelled.insert(*op);
        }
    }

    fn send(&mut self, to: PeerId, message: LinkMessage) {
        self.outgoing.push(Outgoing::Message(to, message));
    }

    fn frame(&self, slot: SlotId) -> &[Symbol] {
        self.slots.get(&slot).map_or(&[], Vec::as_slice)
    }

    fn release(&mut self, _slot: SlotId) {
        // The contents stay until they are overwritten, as in real memory.
    }
}
