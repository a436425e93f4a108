//! The slots of the other end that we may fill: eager ones, and those granted to our operations (R3).

use super::eager::EagerLimits;
use crate::event::Violation;
use crate::limits;
use ringfold_proto::id::OpId;
use std::collections::BTreeMap;

/// The free slots of one peer in one epoch.
#[derive(Debug)]
pub(super) struct Credit {
    eager: EagerLimits,
    eager_free: u64,
    /// The bytes in each eager slot, and in all.
    eager_used: [u32; limits::EAGER_SLOTS_MAX as usize],
    eager_bytes: u64,
    /// Slots granted to operations that are not started here.
    early: BTreeMap<OpId, Vec<u16>>,
    /// Operations that wait for an eager slot or a grant.
    pub(super) parked: Vec<OpId>,
}

impl Credit {
    pub(super) fn new(eager: EagerLimits) -> Self {
        let eager_free = if eager.slots >= 64 { u64::MAX } else { (1 << eager.slots) - 1 };
        let eager_used = [0; limits::EAGER_SLOTS_MAX as usize];
        Self { eager, eager_free, eager_used, eager_bytes: 0, early: BTreeMap::new(), parked: Vec::new() }
    }

    /// Takes a free eager slot for a frame of this length.
    pub(super) fn take_eager(&mut self, length: u32) -> Option<u16> {
        let slot = self.eager_free.trailing_zeros() as u16;
        (slot < 64 && self.eager.has_room(self.eager_bytes, length)).then(|| {
            self.eager_free &= self.eager_free - 1;
            self.eager_used[usize::from(slot)] = length;
            self.eager_bytes += self.eager.counted(length);
            slot
        })
    }

    /// Handles returned eager slots.
    pub(super) fn give_back(&mut self, slots: &[u16]) -> Result<(), Violation> {
        for &slot in slots {
            if slot >= self.eager.slots || self.eager_free & 1 << slot != 0 {
                return Err(Violation::BadReturn(slot));
            }
            self.eager_free |= 1 << slot;
            self.eager_bytes -= self.eager.counted(self.eager_used[usize::from(slot)]);
        }
        Ok(())
    }

    /// Checks a grant: the slots must be valid and not eager.
    pub(super) fn check_grant(&self, held: usize, slots: &[u16]) -> Result<(), Violation> {
        if held + slots.len() > usize::from(limits::WINDOW_SLOTS_MAX) {
            return Err(Violation::TooManyGrants);
        }
        match slots.iter().find(|slot| **slot < self.eager.slots || **slot >= limits::SLOTS_MAX) {
            Some(slot) => Err(Violation::NoSuchSlot(*slot)),
            None => Ok(()),
        }
    }

    /// Keeps a grant for an operation that is not started here.
    pub(super) fn keep_early(&mut self, op: OpId, slots: &[u16]) -> Result<(), Violation> {
        self.check_grant(self.early.get(&op).map_or(0, Vec::len), slots)?;
        if !self.early.contains_key(&op) && self.early.len() >= limits::OPS_IN_FLIGHT_MAX {
            return Err(Violation::TooManyGrants);
        }
        self.early.entry(op).or_default().extend_from_slice(slots);
        Ok(())
    }

    /// Takes the early grants of an operation.
    pub(super) fn take_early(&mut self, op: OpId) -> Option<Vec<u16>> {
        self.early.remove(&op)
    }

    /// Operations of this tag up to this one that have early grants.
    pub(super) fn early_until(&self, op: OpId) -> Vec<OpId> {
        let first = OpId { seq: Default::default(), ..op };
        self.early.range(first..=op).map(|(op, _)| *op).collect()
    }

    /// The number of operations with early grants.
    pub(super) fn early_len(&self) -> usize {
        self.early.len()
    }
}
