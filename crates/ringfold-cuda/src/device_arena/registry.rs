//! What a rank has registered: allocations of its own that the other ranks have opened.
//!
//! Each rank numbers its own slots. It offers an allocation to the others, uses it once all have opened it, and tells them
//! to forget it when it is gone; the slot is used again when all have done so. No driver calls here: the caller makes them.

use super::layout::{SLOT_SHIFT, SLOTS_MAX};
use crate::ipc::Allocation;
use std::collections::HashMap;

/// The most allocations that are remembered as not sharable.
const REFUSED_MAX: usize = 4096;

/// Names an allocation to other ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId {
    /// The slot.
    pub slot: u32,
    /// The id of the allocation.
    pub id: u64,
}

/// What is known of an allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Nobody has asked for it.
    Unknown,
    /// It is being offered, or forgotten; these ranks have not answered.
    Pending(Vec<usize>),
    /// All ranks have opened it.
    Ready,
    /// It cannot be registered, and why.
    Refused(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Offered { missing: u32 },
    Ready,
    Leaving { missing: u32 },
}

#[derive(Clone, Debug)]
struct Slot {
    allocation: Allocation,
    state: State,
    /// Whether a graph may use it, at any time.
    is_pinned: bool,
}

/// The allocations that a rank has offered to the others.
#[derive(Debug)]
pub(super) struct Registry {
    /// The other ranks, a bit each.
    others: u32,
    slots: Vec<Option<Slot>>,
    by_id: HashMap<u64, u32>,
    refused: HashMap<u64, String>,
}

impl Registry {
    pub(super) fn new(rank: usize, world: usize) -> Self {
        let others = ((1_u64 << world) - 1) as u32 & !(1 << rank);
        Self { others, slots: Vec::new(), by_id: HashMap::new(), refused: HashMap::new() }
    }

    pub(super) fn standing(&self, id: u64) -> Standing {
        if let Some(why) = self.refused.get(&id) {
            return Standing::Refused(why.clone());
        }
        match self.slot(id).map(|(_, slot)| slot.state) {
            None => Standing::Unknown,
            Some(State::Ready) => Standing::Ready,
            Some(State::Offered { missing } | State::Leaving { missing }) => {
                Standing::Pending((0..32).filter(|rank| missing >> rank & 1 == 1).collect())
            }
        }
    }

    /// Slot and offset of memory that all ranks have opened, encoded for the kernels; 0 otherwise.
    pub(super) fn code(&mut self, address: u64, bytes: u64, id: u64, is_captured: bool) -> u64 {
        let Some(index) = self.by_id.get(&id).copied() else { return 0 };
        let Some(slot) = &mut self.slots[index as usize] else { return 0 };
        let Allocation { start, bytes: whole, .. } = slot.allocation;
        let is_inside = address >= start && address - start <= whole && bytes <= whole - (address - start);
        if slot.state != State::Ready || !is_inside {
            return 0;
        }
        slot.is_pinned |= is_captured;
        (u64::from(index) + 1) << SLOT_SHIFT | (address - start)
    }

    /// Gives an allocation a slot. None if it has one, or if there is none.
    pub(super) fn offer(&mut self, allocation: Allocation) -> Option<SlotId> {
        let id = allocation.id;
        if self.by_id.contains_key(&id) {
            return None;
        }
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.or_else(|| (self.slots.len() < SLOTS_MAX).then_some(self.slots.len()));
        let Some(slot) = slot else {
            self.refuse(id, format!("too many registered allocations: at most {SLOTS_MAX} are supported"));
            return None;
        };
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        let state = if self.others == 0 { State::Ready } else { State::Offered { missing: self.others } };
        self.slots[slot] = Some(Slot { allocation, state, is_pinned: false });
        self.by_id.insert(id, slot as u32);
        Some(SlotId { slot: slot as u32, id })
    }

    /// Remembers that an allocation cannot be registered.
    pub(super) fn refuse(&mut self, id: u64, why: String) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        self.refused.insert(id, why);
    }

    /// A rank has opened an allocation.
    pub(super) fn note_opened(&mut self, what: SlotId, rank: usize) {
        let slot = self.known(what);
        if let Some(slot) = slot
            && let State::Offered { missing } = &mut slot.state
        {
            *missing &= !(1 << rank);
            if *missing == 0 {
                slot.state = State::Ready;
            }
        }
    }

    /// A rank has closed an allocation, or never opened it.
    pub(super) fn note_forgotten(&mut self, what: SlotId, rank: usize) {
        let slot = self.known(what);
        if let Some(slot) = slot
            && let State::Leaving { missing } = &mut slot.state
        {
            *missing &= !(1 << rank);
            if *missing == 0 {
                self.free(what);
            }
        }
    }

    /// Stops using an allocation. The other ranks must be told, if it returns true.
    pub(super) fn forget(&mut self, what: SlotId) -> bool {
        let others = self.others;
        let Some(slot) = self.known(what) else { return false };
        if slot.is_pinned || matches!(slot.state, State::Leaving { .. }) {
            return false;
        }
        slot.state = State::Leaving { missing: others };
        if others == 0 {
            self.free(what);
        }
        true
    }

    /// The allocations in use.
    pub(super) fn held(&self) -> Vec<(SlotId, Allocation)> {
        let held = |(index, slot): (usize, &Option<Slot>)| {
            let slot = slot.as_ref().filter(|slot| !matches!(slot.state, State::Leaving { .. }))?;
            Some((SlotId { slot: index as u32, id: slot.allocation.id }, slot.allocation))
        };
        self.slots.iter().enumerate().filter_map(held).collect()
    }

    /// The slot of an allocation.
    pub(super) fn slot_id(&self, id: u64) -> Option<SlotId> {
        self.by_id.get(&id).map(|slot| SlotId { slot: *slot, id })
    }

    fn slot(&self, id: u64) -> Option<(u32, &Slot)> {
        let index = *self.by_id.get(&id)?;
        self.slots[index as usize].as_ref().map(|slot| (index, slot))
    }

    fn known(&mut self, what: SlotId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(what.slot as usize)?.as_mut()?;
        (slot.allocation.id == what.id).then_some(slot)
    }

    fn free(&mut self, what: SlotId) {
        self.slots[what.slot as usize] = None;
        self.by_id.remove(&what.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Allocation = Allocation { start: 0x1000, bytes: 0x100, id: 7 };

    #[test]
    fn an_allocation_is_used_when_all_ranks_have_opened_it() {
        let mut registry = Registry::new(1, 3);
        let what = registry.offer(BLOCK).unwrap();
        assert_eq!(registry.offer(BLOCK), None);
        assert_eq!(registry.standing(7), Standing::Pending(vec![0, 2]));
        registry.note_opened(what, 2);
        assert_eq!(
            (registry.standing(7), registry.code(0x1000, 1, 7, false)),
            (Standing::Pending(vec![0]), 0)
        );
        registry.note_opened(SlotId { id: 8, ..what }, 0);
        registry.note_opened(what, 0);
        assert_eq!(registry.standing(7), Standing::Ready);
        assert_eq!(registry.code(0x1010, 0xf0, 7, false), 1 << SLOT_SHIFT | 0x10);
        assert_eq!(registry.code(0x1010, 0xf1, 7, false), 0, "beyond the end");
        assert_eq!(registry.code(0x0fff, 1, 7, false), 0, "before the start");
        assert_eq!(registry.code(0x1010, 1, 8, false), 0, "a later allocation at the same address");
    }

    #[test]
    fn a_slot_is_used_again_when_all_ranks_have_forgotten_it() {
        let mut registry = Registry::new(0, 3);
        let what = registry.offer(BLOCK).unwrap();
        registry.note_opened(what, 1);
        assert!(registry.forget(what) && !registry.forget(what));
        assert!(registry.held().is_empty());
        let next = registry.offer(Allocation { id: 8, ..BLOCK }).unwrap();
        assert_ne!(next.slot, what.slot);
        // An answer to the offer, sent before the rank knew that it is gone.
        registry.note_opened(what, 2);
        assert_eq!(registry.code(0x1000, 1, 7, false), 0);
        registry.note_forgotten(what, 1);
        registry.note_forgotten(what, 2);
        assert_eq!(registry.standing(7), Standing::Unknown);
        assert_eq!(registry.offer(Allocation { id: 9, ..BLOCK }).unwrap().slot, what.slot);
    }

    #[test]
    fn what_a_graph_uses_stays() {
        let mut registry = Registry::new(0, 1);
        let what = registry.offer(BLOCK).unwrap();
        assert_ne!(registry.code(0x1000, 8, 7, true), 0);
        assert!(!registry.forget(what));
        assert_eq!(registry.standing(7), Standing::Ready);
    }

    #[test]
    fn there_are_limits_and_refusals_are_remembered() {
        let mut registry = Registry::new(0, 2);
        for id in 0..SLOTS_MAX as u64 {
            assert!(registry.offer(Allocation { id, ..BLOCK }).is_some());
        }
        assert!(registry.offer(Allocation { id: 1 << 40, ..BLOCK }).is_none());
        assert!(matches!(registry.standing(1 << 40), Standing::Refused(why) if why.contains("too many")));
        for id in 0..2 * REFUSED_MAX as u64 {
            registry.refuse(1 << 50 | id, String::new());
        }
        assert!(registry.refused.len() <= REFUSED_MAX);
    }
}
