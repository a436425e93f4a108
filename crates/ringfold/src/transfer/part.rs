//! A part of an entry: some leaves, and how many of them have arrived.

use super::Fetched;
use super::entry_target::{AllocateTarget, EntryTarget, split};
use super::limits::{PART_BYTES_MAX, PART_BYTES_MIN};
use ringfold_fabric::memory::Memory;
use ringfold_kernels::{LEAF_BYTES, LeafHash, leaf_hash};
use ringfold_proto::id::PeerId;
use std::sync::Arc;

/// Leaves of one entry that are fetched together, in order.
pub(super) struct Part {
    /// The entry's position in the state.
    pub(super) entry: usize,
    /// The first leaf's position in the entry.
    pub(super) first_leaf: u64,
    bytes: usize,
    /// None before it is prepared.
    memory: Option<Memory>,
    /// What the memory is taken from, and the index in it.
    target: Option<(Arc<EntryTarget>, usize)>,
    /// Those that have arrived, and who sent them.
    arrived: Vec<(LeafHash, PeerId)>,
}

impl Part {
    fn new(entry: usize, first_leaf: u64, bytes: usize) -> Self {
        let arrived = Vec::with_capacity(bytes.div_ceil(LEAF_BYTES));
        Self { entry, first_leaf, bytes, memory: None, target: None, arrived }
    }

    /// What has to be allocated before it is prepared.
    pub(super) fn target(&self) -> Option<Arc<EntryTarget>> {
        self.target.as_ref().map(|(target, _)| target.clone())
    }

    /// Takes its memory, if that is allocated.
    pub(super) fn prepare(&mut self) {
        if let Some((target, index)) = &self.target {
            self.memory = target.take(*index);
            self.target.take_if(|_| self.memory.is_some());
        }
    }

    /// Bytes of the leaves that have arrived.
    pub(super) fn have(&self) -> usize {
        (self.arrived.len() * LEAF_BYTES).min(self.bytes)
    }

    /// Bytes that have not.
    pub(super) fn missing(&self) -> usize {
        self.bytes - self.have()
    }

    /// The first leaf that has not arrived, and how many follow with it.
    pub(super) fn missing_leaves(&self) -> (u64, u64) {
        (self.first_leaf + self.arrived.len() as u64, self.missing().div_ceil(LEAF_BYTES) as u64)
    }

    /// The leaves that have arrived.
    pub(super) fn leaves(&self) -> &[(LeafHash, PeerId)] {
        &self.arrived
    }

    /// Room for what is missing; empty before it is prepared.
    pub(super) fn room(&mut self, from: usize, most: usize) -> &mut [u8] {
        let Some(memory) = &mut self.memory else { return &mut [] };
        let room = &mut memory.as_mut_slice()[from..];
        let most = most.min(room.len());
        &mut room[..most]
    }

    /// The bytes up to `filled` are there: hashes the leaves that became whole.
    pub(super) fn fill(&mut self, filled: usize, source: PeerId) {
        let Some(memory) = &self.memory else { return };
        while self.have() < self.bytes {
            let leaf = self.have()..(self.have() + LEAF_BYTES).min(self.bytes);
            if leaf.end > filled {
                return;
            }
            self.arrived.push((leaf_hash(&memory.as_slice()[leaf]), source));
        }
    }

    /// Its bytes, and where in their entry they belong; none if it was not prepared.
    pub(super) fn into_fetched(self) -> Option<Fetched> {
        let (entry, offset) = (self.entry, self.first_leaf as usize * LEAF_BYTES);
        self.memory.map(|memory| Fetched { entry, offset, memory })
    }

    /// As if nothing had arrived.
    pub(super) fn emptied(mut self) -> Self {
        self.arrived.clear();
        self
    }
}

/// How large parts are, so that each source gets several.
pub(super) fn part_bytes(total: u64, sources: usize) -> usize {
    let share = total / (4 * sources.max(1) as u64);
    let share = usize::try_from(share).unwrap_or(usize::MAX).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
    share / LEAF_BYTES * LEAF_BYTES
}

/// Cuts an entry into parts of so many bytes, which are whole leaves.
pub(super) fn cut(entry: usize, memory: Memory, part_bytes: usize) -> Vec<Part> {
    let mut first_leaf = 0;
    let part = |memory: Memory| {
        let part = Part::new(entry, first_leaf, memory.len());
        first_leaf += memory.len().div_ceil(LEAF_BYTES) as u64;
        Part { memory: Some(memory), ..part }
    };
    split(memory, part_bytes).into_iter().map(part).collect()
}

/// As [`cut`], for memory of so many bytes that is allocated later.
pub(super) fn cut_later(
    entry: usize,
    bytes: usize,
    allocate: AllocateTarget,
    part_bytes: usize,
) -> Vec<Part> {
    let target = Arc::new(EntryTarget::new(allocate, part_bytes));
    let part = |(index, start): (usize, usize)| {
        let part = Part::new(entry, (start / LEAF_BYTES) as u64, part_bytes.min(bytes - start));
        Part { target: Some((target.clone(), index)), ..part }
    };
    (0..bytes).step_by(part_bytes).enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_allocated_later_is_cut_alike() {
        let (bytes, part_bytes) = (5 * LEAF_BYTES + 3, 2 * LEAF_BYTES);
        let mut later = cut_later(7, bytes, Box::new(move || Ok(Memory::zeroed(bytes))), part_bytes);
        let now = cut(7, Memory::zeroed(bytes), part_bytes);
        let shape = |p: &Part| (p.entry, p.first_leaf, p.missing(), p.missing_leaves());
        assert!(later.iter().map(shape).eq(now.iter().map(shape)));

        later[1].prepare();
        assert!(later[1].room(0, bytes).is_empty(), "nothing is allocated");
        let target = later[0].target().unwrap();
        target.allocate().unwrap();
        target.allocate().unwrap();
        assert!(later.pop().unwrap().into_fetched().is_none(), "it was not fetched");
        for part in &mut later {
            part.prepare();
            assert_eq!(part.room(0, bytes).len(), part.missing());
            part.fill(part.missing(), PeerId(1));
            assert_eq!(part.missing(), 0);
        }
        let offsets = later.into_iter().map(|part| part.into_fetched().unwrap().offset);
        assert!(offsets.eq([0, part_bytes]));
    }
}
