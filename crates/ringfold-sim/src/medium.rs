//! The medium of a simulated peer: puts wait to be flushed, slots are memory that others write into.

use crate::buffer::{SymbolPayload, SymbolWorkspace};
use crate::symbol::Symbol;
use ringfold_plan::medium::{Medium, SlotId, Ticket};
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{OpId, PeerId};
use ringfold_proto::link_message::LinkMessage;
use std::collections::{BTreeMap, BTreeSet};

/// What goes out on a link, in order.
#[derive(Debug)]
pub enum Outgoing {
    /// A frame.
    Frame(PeerId, Box<DataHeader>, Ticket),
    /// A message.
    Message(PeerId, LinkMessage),
}

/// The medium.
#[derive(Debug, Default)]
pub struct SimMedium {
    slots: BTreeMap<SlotId, Vec<Symbol>>,
    tickets: u64,
    /// Puts that may still read memory.
    pub unflushed: BTreeMap<Ticket, (OpId, SymbolPayload)>,
    /// Operations that were aborted: what their puts send no longer matters.
    pub cancelled: BTreeSet<OpId>,
    /// What is to be sent.
    pub outgoing: Vec<Outgoing>,
}

impl SimMedium {
    /// Another peer's put lands in a slot. As with shared memory, nobody can refuse it.
    pub fn land(&mut self, slot: SlotId, symbols: Vec<Symbol>) {
        self.slots.insert(slot, symbols);
    }

    /// The link to a peer is gone, and its slots with it.
    pub fn retire(&mut self, peer: PeerId) {
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
        // The bytes stay until somebody overwrites them, as in real memory.
    }
}
