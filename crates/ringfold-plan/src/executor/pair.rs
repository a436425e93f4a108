//! What two members of one epoch owe each other: slots of both, frames and requests that came early.

use super::credit::Credit;
use super::output::Output;
use super::slots::Slots;
use crate::event::Violation;
use crate::limits;
use crate::medium::SlotId;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{EpochId, OpId, PeerId};
use ringfold_proto::link_message::LinkMessage;
use std::collections::BTreeSet;

/// One other member, in one epoch.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) peer: PeerId,
    pub(super) epoch: EpochId,
    /// Whether its link is up.
    pub(super) up: bool,
    eager: u16,
    /// Our slots, which it fills.
    pub(super) slots: Slots,
    /// Its slots, which we fill.
    pub(super) credit: Credit,
    /// Frames of operations that are not started here, in eager slots.
    held: Vec<DataHeader>,
    /// Operations not started here that it wants slots for.
    wants: BTreeSet<OpId>,
}

impl Pair {
    pub(super) fn new(peer: PeerId, epoch: EpochId, eager: u16, up: bool) -> Self {
        Self {
            peer,
            epoch,
            up,
            eager,
            slots: Slots::new(eager),
            credit: Credit::new(eager),
            held: Vec::new(),
            wants: BTreeSet::new(),
        }
    }

    /// The link was lost or is new: both ends begin again, with all slots empty and none lent.
    pub(super) fn reset(&mut self, up: bool) {
        *self = Self::new(self.peer, self.epoch, self.eager, up);
    }

    pub(super) fn slot(&self, index: u16) -> SlotId {
        SlotId { from: self.peer, epoch: self.epoch, index }
    }

    /// Keeps a frame, whose slot was checked, until its operation is started. Eager slots bound this.
    pub(super) fn hold(&mut self, header: DataHeader) {
        self.slots.fill(header.slot);
        self.held.push(header);
    }

    /// The next frame that was held for this operation, in the order of arrival. Its slot stays full.
    pub(super) fn take_held(&mut self, op: OpId) -> Option<DataHeader> {
        let found = self.held.iter().position(|header| header.op == op)?;
        Some(self.held.remove(found))
    }

    /// Whether there is something for an operation that is not started here.
    pub(super) fn offers(&self, op: OpId) -> bool {
        self.wants.contains(&op) || self.held.iter().any(|header| header.op == op)
    }

    /// Remembers that slots are wanted for an operation that is not started here.
    pub(super) fn keep_want(&mut self, op: OpId) -> Result<(), Violation> {
        if !self.wants.contains(&op) && self.wants.len() >= limits::OPS_IN_FLIGHT_MAX {
            return Err(Violation::TooManyWants);
        }
        self.wants.insert(op);
        Ok(())
    }

    /// Whether slots were wanted for an operation before it was started here.
    pub(super) fn take_want(&mut self, op: OpId) -> bool {
        self.wants.remove(&op)
    }

    /// Empties a slot whose frame was read or discarded, and returns eager ones.
    pub(super) fn empty<W>(&mut self, slot: u16, out: &mut Output<W>) {
        self.slots.empty(slot);
        // A writer that had to ask for slots has none left, so it gets each one as it comes.
        let at_once = !self.wants.is_empty();
        self.return_emptied(at_once, out);
    }

    /// Returns emptied eager slots.
    pub(super) fn return_emptied<W>(&mut self, at_once: bool, out: &mut Output<W>) {
        if let Some(slots) = self.slots.returnable(at_once) {
            out.say(self.peer, LinkMessage::Return { epoch: self.epoch, slots });
        }
    }

    /// An operation and all before it, of its tag, were decided: what was kept for them is let go.
    pub(super) fn forget_until<W>(&mut self, op: OpId, out: &mut Output<W>) {
        let decided = |other: OpId| other.tag == op.tag && other.seq <= op.seq;
        for op in self.credit.early_until(op) {
            self.credit.take_early(op);
            out.say(self.peer, LinkMessage::Fenced { op });
        }
        self.wants.retain(|want| !decided(*want));
        while let Some(found) = self.held.iter().position(|header| decided(header.op)) {
            let header = self.held.remove(found);
            out.release(self.slot(header.slot));
            self.empty(header.slot, out);
        }
    }

    /// Frames, requests and grants kept for operations that are not started here.
    pub(super) fn kept(&self) -> usize {
        self.held.len() + self.wants.len() + self.credit.early_len()
    }
}
