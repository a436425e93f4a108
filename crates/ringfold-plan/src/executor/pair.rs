//! The state between two members of an epoch: the slots of both, and early frames and requests.

use super::credit::Credit;
use super::eager::EagerLimits;
use super::output::Output;
use super::slots::Slots;
use crate::event::Violation;
use crate::limits;
use crate::medium::SlotId;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{EpochId, OpId, PeerId};
use ringfold_proto::link_message::LinkMessage;
use std::collections::BTreeSet;

/// Another member of an epoch.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) peer: PeerId,
    pub(super) epoch: EpochId,
    /// Whether its link is up.
    pub(super) up: bool,
    eager: EagerLimits,
    /// Our slots, which it fills.
    pub(super) slots: Slots,
    /// Its slots, which we fill.
    pub(super) credit: Credit,
    /// Frames of operations that are not started here, in eager slots.
    held: Vec<DataHeader>,
    /// Operations not started here for which it requested slots.
    wants: BTreeSet<OpId>,
}

impl Pair {
    pub(super) fn new(peer: PeerId, epoch: EpochId, eager: EagerLimits, up: bool) -> Self {
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

    /// Starts again on both ends, with empty slots: the link was lost or is new.
    pub(super) fn reset(&mut self, up: bool) {
        *self = Self::new(self.peer, self.epoch, self.eager, up);
    }

    pub(super) fn slot(&self, index: u16) -> SlotId {
        SlotId { from: self.peer, epoch: self.epoch, index }
    }

    /// Holds a checked frame until its operation is started. The number is limited by the eager slots.
    pub(super) fn hold(&mut self, header: DataHeader) {
        self.slots.fill(&header);
        self.held.push(header);
    }

    /// Takes the next held frame of an operation, in order of arrival. Its slot stays full.
    pub(super) fn take_held(&mut self, op: OpId) -> Option<DataHeader> {
        let found = self.held.iter().position(|header| header.op == op)?;
        Some(self.held.remove(found))
    }

    /// Whether there are frames or requests for an operation that is not started here.
    pub(super) fn offers(&self, op: OpId) -> bool {
        self.wants.contains(&op) || self.held.iter().any(|header| header.op == op)
    }

    /// Records a request for slots for an operation that is not started here.
    pub(super) fn keep_want(&mut self, op: OpId) -> Result<(), Violation> {
        if !self.wants.contains(&op) && self.wants.len() >= limits::OPS_IN_FLIGHT_MAX {
            return Err(Violation::TooManyWants);
        }
        self.wants.insert(op);
        Ok(())
    }

    /// Removes an early request for slots. Returns whether there was one.
    pub(super) fn take_want(&mut self, op: OpId) -> bool {
        self.wants.remove(&op)
    }

    /// Empties a slot, and returns eager slots.
    pub(super) fn empty<W>(&mut self, slot: u16, out: &mut Output<W>) {
        self.slots.empty(slot);
        // A sender that requested slots has none left, so each is returned at once.
        let at_once = !self.wants.is_empty();
        self.return_emptied(at_once, out);
    }

    /// Returns emptied eager slots.
    pub(super) fn return_emptied<W>(&mut self, at_once: bool, out: &mut Output<W>) {
        if let Some(slots) = self.slots.returnable(at_once) {
            out.send(self.peer, LinkMessage::Return { epoch: self.epoch, slots });
        }
    }

    /// Drops what was kept for an operation and those before it with its tag: they were decided.
    pub(super) fn forget_until<W>(&mut self, op: OpId, out: &mut Output<W>) {
        let decided = |other: OpId| other.tag == op.tag && other.seq <= op.seq;
        for op in self.credit.early_until(op) {
            self.credit.take_early(op);
            out.send(self.peer, LinkMessage::Fenced { op });
        }
        self.wants.retain(|want| !decided(*want));
        while let Some(found) = self.held.iter().position(|header| decided(header.op)) {
            let header = self.held.remove(found);
            out.release(self.slot(header.slot));
            self.empty(header.slot, out);
        }
    }

    /// The number of frames, requests and grants kept for operations that are not started here.
    pub(super) fn kept(&self) -> usize {
        self.held.len() + self.wants.len() + self.credit.early_len()
    }
}
