//! A part of an entry: some leaves, and how many of them have arrived.

use super::Fetched;
use super::limits::{PART_BYTES_MAX, PART_BYTES_MIN};
use ringfold_fabric::memory::Memory;
use ringfold_kernels::{LEAF_BYTES, LeafHash, leaf_hash};
use ringfold_proto::id::PeerId;

/// Leaves of one entry that are fetched together, in order.
pub(super) struct Part {
    /// The entry's position in the state.
    pub(super) entry: usize,
    /// The first leaf's position in the entry.
    pub(super) first_leaf: u64,
    memory: Memory,
    /// Those that have arrived, and who sent them.
    arrived: Vec<(LeafHash, PeerId)>,
}

impl Part {
    /// Bytes of the leaves that have arrived.
    pub(super) fn have(&self) -> usize {
        (self.arrived.len() * LEAF_BYTES).min(self.memory.len())
    }

    /// Bytes that have not.
    pub(super) fn missing(&self) -> usize {
        self.memory.len() - self.have()
    }

    /// The first leaf that has not arrived, and how many follow with it.
    pub(super) fn missing_leaves(&self) -> (u64, u64) {
        (self.first_leaf + self.arrived.len() as u64, self.missing().div_ceil(LEAF_BYTES) as u64)
    }

    /// The leaves that have arrived.
    pub(super) fn leaves(&self) -> &[(LeafHash, PeerId)] {
        &self.arrived
    }

    /// Room for what is missing.
    pub(super) fn room(&mut self, from: usize, most: usize) -> &mut [u8] {
        let room = &mut self.memory.as_mut_slice()[from..];
        let most = most.min(room.len());
        &mut room[..most]
    }

    /// The bytes up to `filled` are there: hashes the leaves that became whole.
    pub(super) fn fill(&mut self, filled: usize, source: PeerId) {
        while self.have() < self.memory.len() {
            let leaf = self.have()..(self.have() + LEAF_BYTES).min(self.memory.len());
            if leaf.end > filled {
                return;
            }
            self.arrived.push((leaf_hash(&self.memory.as_slice()[leaf]), source));
        }
    }

    /// Its bytes, and where in their entry they belong.
    pub(super) fn into_fetched(self) -> Fetched {
        Fetched { entry: self.entry, offset: self.first_leaf as usize * LEAF_BYTES, memory: self.memory }
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
    let mut parts = Vec::with_capacity(memory.len().div_ceil(part_bytes));
    let (mut rest, mut first_leaf) = (memory, 0);
    while !rest.is_empty() {
        let (memory, more) = {
            let at = part_bytes.min(rest.len());
            rest.split_at(at)
        };
        let leaves = memory.len().div_ceil(LEAF_BYTES);
        parts.push(Part { entry, first_leaf, memory, arrived: Vec::with_capacity(leaves) });
        (rest, first_leaf) = (more, first_leaf + leaves as u64);
    }
    parts
}
