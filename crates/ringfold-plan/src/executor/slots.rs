//! Our slots of one pair and epoch, which the other end fills (R3, R5).

use super::eager::EagerLimits;
use crate::event::Violation;
use crate::limits;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::OpId;

/// Our slots: the first are eager, the others are granted to one operation at a time.
#[derive(Debug)]
pub(super) struct Slots {
    eager: EagerLimits,
    /// Eager slots that hold a frame.
    eager_full: u64,
    /// Eager slots that were emptied and not returned, and their bytes.
    emptied: u64,
    emptied_bytes: u64,
    /// The bytes of the frames in eager slots.
    eager_bytes: [u32; limits::EAGER_SLOTS_MAX as usize],
    /// The state of the other slots; the first has number `eager`.
    uses: Vec<Use>,
    /// Free slots among the others. The last emptied one is granted first, because it is in the cache.
    free: Vec<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    /// The sender may fill it at any time, until its fence arrives.
    Lent(OpId),
    Full,
}

impl Slots {
    pub(super) fn new(eager: EagerLimits) -> Self {
        assert!(eager.slots <= limits::EAGER_SLOTS_MAX, "eager slots are bits of one word");
        let (uses, free, eager_bytes) = (Vec::new(), Vec::new(), [0; limits::EAGER_SLOTS_MAX as usize]);
        Self { eager, eager_full: 0, emptied: 0, emptied_bytes: 0, eager_bytes, uses, free }
    }

    /// Checks whether the sender may fill this slot for this operation.
    pub(super) fn check(&self, op: OpId, slot: u16, eager: bool) -> Result<(), Violation> {
        if eager != (slot < self.eager.slots) || slot >= limits::SLOTS_MAX {
            return Err(Violation::NoSuchSlot(slot));
        }
        if eager {
            let taken = (self.eager_full | self.emptied) & bit(slot) != 0;
            return if taken { Err(Violation::SlotFull(slot)) } else { Ok(()) };
        }
        match self.uses.get(usize::from(slot - self.eager.slots)) {
            Some(Use::Lent(to)) if *to == op => Ok(()),
            Some(Use::Full) => Err(Violation::SlotFull(slot)),
            _ => Err(Violation::NotLent(slot)),
        }
    }

    /// Marks the checked slot of a frame as full.
    pub(super) fn fill(&mut self, &DataHeader { slot, length, .. }: &DataHeader) {
        if slot < self.eager.slots {
            self.eager_full |= bit(slot);
            self.eager_bytes[usize::from(slot)] = length;
        } else {
            self.uses[usize::from(slot - self.eager.slots)] = Use::Full;
        }
    }

    /// Marks a slot as empty.
    pub(super) fn empty(&mut self, slot: u16) {
        if slot < self.eager.slots {
            self.eager_full &= !bit(slot);
            self.emptied |= bit(slot);
            self.emptied_bytes += self.eager.counted(self.eager_bytes[usize::from(slot)]);
        } else {
            self.uses[usize::from(slot - self.eager.slots)] = Use::Free;
            self.free.push(slot);
        }
    }

    /// The eager slots to return now. Half of them, or of their bytes, are returned in one message; the sender still has the
    /// other half.
    pub(super) fn returnable(&mut self, at_once: bool) -> Option<Vec<u16>> {
        let waiting = self.emptied.count_ones();
        if waiting == 0 || !at_once && !self.eager.is_half(waiting, self.emptied_bytes) {
            return None;
        }
        let slots = (0..self.eager.slots).filter(|slot| self.emptied & bit(*slot) != 0).collect();
        (self.emptied, self.emptied_bytes) = (0, 0);
        Some(slots)
    }

    /// Grants a slot. The last ones are reserved for operations that have none.
    pub(super) fn lend(&mut self, op: OpId, has_none: bool) -> Option<u16> {
        let end = limits::SLOTS_MAX - if has_none { 0 } else { limits::SLOTS_RESERVED };
        let slot = match self.free.pop() {
            Some(slot) if slot < end => slot,
            Some(slot) => {
                self.free.push(slot);
                return None;
            }
            None => {
                let slot = self.eager.slots + self.uses.len() as u16;
                if slot >= end {
                    return None;
                }
                self.uses.push(Use::Free);
                slot
            }
        };
        self.uses[usize::from(slot - self.eager.slots)] = Use::Lent(op);
        Some(slot)
    }

    /// Frees the slots granted to an operation that the sender will not fill any more. Returns their number.
    pub(super) fn reclaim(&mut self, op: OpId) -> usize {
        let before = self.free.len();
        for (slot, usage) in (self.eager.slots..).zip(&mut self.uses) {
            if *usage == Use::Lent(op) {
                *usage = Use::Free;
                self.free.push(slot);
            }
        }
        self.free.len() - before
    }

    /// The number of slots created, without eager ones.
    pub(super) fn grown(&self) -> usize {
        self.uses.len()
    }
}

fn bit(slot: u16) -> u64 {
    1 << slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::id::{Seq, Tag};
    use ringfold_proto::tuning::Tuning;

    fn limits_of(eager_slots: u16, window_slots: u16) -> EagerLimits {
        EagerLimits::of(&Tuning { eager_slots, window_slots, chunk_bytes: 100, ..Tuning::default() })
    }

    fn frame(slot: u16, length: u32) -> DataHeader {
        let (op, fingerprint, chunk, offset, eager) = (op(0), 0, 0, 0, true);
        DataHeader { op, fingerprint, chunk, offset, length, slot, eager, checksum: None }
    }

    fn op(seq: u64) -> OpId {
        OpId { tag: Tag(1), seq: Seq(seq), ..OpId::default() }
    }

    #[test]
    fn every_operation_can_have_a_slot_for_any_window() {
        let mut slots = Slots::new(limits_of(4, 16));
        let greedy = std::iter::from_fn(|| slots.lend(op(0), false)).count();
        assert_eq!(greedy, usize::from(limits::SLOTS_MAX - limits::SLOTS_RESERVED - 4));
        for seq in 1..=u64::from(limits::SLOTS_RESERVED) {
            assert!(slots.lend(op(seq), true).is_some());
        }
        assert_eq!(slots.lend(op(0), true), None);
        assert_eq!(slots.reclaim(op(7)), 1);
    }

    #[test]
    fn eager_slots_are_returned_by_halves_or_at_once() {
        let mut slots = Slots::new(limits_of(4, 16));
        for slot in 0..3 {
            slots.fill(&frame(slot, 8));
        }
        slots.empty(1);
        assert_eq!(slots.returnable(false), None);
        assert_eq!(slots.check(op(0), 1, true), Err(Violation::SlotFull(1)));
        slots.empty(2);
        assert_eq!(slots.returnable(false), Some(vec![1, 2]));
        assert_eq!(slots.check(op(0), 1, true), Ok(()));
        slots.empty(0);
        assert_eq!(slots.returnable(true), Some(vec![0]));
        assert_eq!(slots.returnable(true), None);
    }

    #[test]
    fn many_eager_slots_are_returned_by_half_of_their_bytes_too() {
        let mut slots = Slots::new(limits_of(64, 16));
        for (slot, length) in [(0, 100), (1, 8), (2, 8), (3, 100)] {
            slots.fill(&frame(slot, length));
        }
        for slot in 0..3 {
            slots.empty(slot);
            assert_eq!(slots.returnable(false), None);
        }
        slots.empty(3);
        assert_eq!(slots.returnable(false), Some(vec![0, 1, 2, 3]));
    }
}
