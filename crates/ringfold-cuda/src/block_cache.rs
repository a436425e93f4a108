//! Blocks of memory that are kept for reuse.

use crate::limits::BLOCK_BYTES_MIN;
use std::collections::VecDeque;

/// A block of some size; tests use numbers.
pub(crate) trait HasCapacity {
    fn capacity(&self) -> usize;
}

/// Unused blocks, bounded by their total size; the most recently used at the end.
pub(crate) struct BlockCache<T> {
    blocks: VecDeque<T>,
    bytes: usize,
    bytes_max: usize,
}

impl<T: HasCapacity> BlockCache<T> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { blocks: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Takes the smallest block that fits, unless more than half of it would be unused.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<T> {
        let most = capacity_for(bytes).saturating_mul(2);
        let fits = |(_, block): &(usize, &T)| (bytes..=most).contains(&block.capacity());
        let (index, _) =
            self.blocks.iter().enumerate().rev().filter(fits).min_by_key(|(_, block)| block.capacity())?;
        let block = self.blocks.remove(index)?;
        self.bytes -= block.capacity();
        Some(block)
    }

    /// Adds a block, and returns the least recently used ones that no longer fit.
    pub(crate) fn put(&mut self, block: T) -> Vec<T> {
        if block.capacity() > self.bytes_max {
            return vec![block];
        }
        self.bytes += block.capacity();
        self.blocks.push_back(block);
        let mut evicted = Vec::new();
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.blocks.pop_front() else { break };
            self.bytes -= oldest.capacity();
            evicted.push(oldest);
        }
        evicted
    }

    pub(crate) fn clear(&mut self) -> VecDeque<T> {
        self.bytes = 0;
        core::mem::take(&mut self.blocks)
    }
}

/// Rounds a size up in steps of an eighth, so that tensors of similar size share blocks.
pub(crate) fn capacity_for(bytes: usize) -> usize {
    let step = (bytes.checked_next_power_of_two().unwrap_or(0) / 8).max(BLOCK_BYTES_MIN);
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl HasCapacity for usize {
        fn capacity(&self) -> usize {
            *self
        }
    }

    #[test]
    fn capacities_waste_at_most_a_quarter_above_the_smallest() {
        assert_eq!(capacity_for(0), BLOCK_BYTES_MIN);
        for bytes in [1, 65_536, 65_537, 1_000_000, 5 << 20, (1 << 30) + 1] {
            let capacity = capacity_for(bytes);
            assert!(capacity >= bytes && capacity <= bytes + (bytes / 4).max(BLOCK_BYTES_MIN), "{bytes}");
        }
    }

    #[test]
    fn the_cache_returns_the_best_fit_and_stays_within_its_bound() {
        let mib = 1 << 20;
        let mut cache = BlockCache::new(10 * mib);
        assert!(cache.put(4 * mib).is_empty() && cache.put(3 * mib).is_empty());
        assert_eq!(cache.put(11 * mib), [11 * mib]);
        assert_eq!(cache.take(mib), None, "a block is not used for a quarter of its size");
        assert_eq!(cache.put(5 * mib), [4 * mib], "the oldest goes");
        assert_eq!(cache.take(2 * mib), Some(3 * mib));
        assert_eq!(cache.take(3 * mib), Some(5 * mib));
        assert_eq!((cache.take(3 * mib), cache.bytes), (None, 0));
        let _ = cache.put(mib);
        assert_eq!((cache.clear().len(), cache.bytes), (1, 0));
    }
}
