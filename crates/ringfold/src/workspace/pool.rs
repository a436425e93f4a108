//! Large blocks of memory that operations take turns with: the page faults of fresh memory would cost a good
//! part of an all-reduce.

use core::cmp::Reverse;
use ringfold_fabric::memory::Memory;

/// Smaller blocks are left to the allocator.
const BYTES_MIN: usize = 64 * 1024;

/// A block that was of no use to so many operations in a row is freed.
const OPERATIONS_IDLE_MAX: u64 = 16;

/// Blocks that wait for the next operation. There are never more of them than recent operations needed at once.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Vec<Idle>,
    /// Operations so far.
    operations: u64,
    /// Blocks that were idle at once since one was last freed. That many operations may begin before the first
    /// of them ends, and each of them takes a block.
    idle_most: usize,
}

struct Idle {
    memory: Memory,
    /// The number of operations when it was given back.
    since: u64,
}

impl Pool {
    /// An operation begins: what was idle for too long is freed.
    pub(super) fn begin(&mut self) {
        self.operations += 1;
        let patience = OPERATIONS_IDLE_MAX + self.idle_most as u64;
        let before = self.idle.len();
        self.idle.retain(|block| self.operations - block.since <= patience);
        if self.idle.len() < before {
            self.idle_most = self.idle.len();
        }
    }

    /// A block of at least so many bytes, holding anything.
    pub(super) fn take(&mut self, bytes: usize) -> Memory {
        // What is much too large is left to an operation that needs all of it.
        let fits = |block: &Idle| (bytes..=bytes.saturating_mul(2)).contains(&block.memory.len());
        let fitting = self.idle.iter().enumerate().filter(|(_, block)| fits(block));
        // Of equals the latest, so that those that are too many grow old.
        let best = fitting.min_by_key(|(_, block)| (block.memory.len(), Reverse(block.since)));
        match best.map(|(index, _)| index) {
            Some(index) => self.idle.swap_remove(index).memory,
            None => Memory::zeroed(bytes),
        }
    }

    /// Takes a block back. Nothing of it may be on its way out.
    pub(super) fn give(&mut self, memory: Memory) {
        if memory.len() >= BYTES_MIN {
            self.idle.push(Idle { memory, since: self.operations });
            self.idle_most = self.idle_most.max(self.idle.len());
        }
    }

    /// The lengths of all blocks.
    #[cfg(test)]
    pub(super) fn blocks_bytes(&self) -> Vec<usize> {
        self.idle.iter().map(|block| block.memory.len()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 1 << 20;

    fn address(memory: &Memory) -> *const u8 {
        memory.as_slice().as_ptr()
    }

    #[test]
    fn operations_of_one_size_take_turns_with_one_block() {
        let mut pool = Pool::default();
        let block = pool.take(LARGE);
        let first = address(&block);
        pool.give(block);
        for bytes in [LARGE, LARGE - 5, LARGE / 2] {
            pool.begin();
            let block = pool.take(bytes);
            assert_eq!(address(&block), first);
            pool.give(block);
        }
        assert_eq!(pool.idle.len(), 1);
    }

    #[test]
    fn a_small_operation_leaves_large_blocks_alone_and_keeps_no_small_ones() {
        let mut pool = Pool::default();
        pool.give(Memory::zeroed(LARGE));
        let small = pool.take(1000);
        assert_eq!(small.len(), 1000);
        pool.give(small);
        assert_eq!(pool.idle.len(), 1);
    }

    #[test]
    fn a_block_that_nobody_needs_any_more_is_freed() {
        let mut pool = Pool::default();
        pool.give(Memory::zeroed(LARGE));
        for _ in 0..=OPERATIONS_IDLE_MAX {
            pool.begin();
            assert_eq!(pool.idle.len(), 1);
        }
        pool.begin();
        assert_eq!(pool.idle.len(), 0);
    }

    #[test]
    fn many_operations_in_flight_find_the_blocks_of_those_before_them() {
        let mut pool = Pool::default();
        for _ in 0..5 {
            let mut lent = Vec::new();
            for _ in 0..64 {
                pool.begin();
                lent.push(pool.take(LARGE));
            }
            assert!(pool.idle.is_empty());
            for block in lent {
                pool.give(block);
            }
            assert_eq!(pool.idle.len(), 64);
        }
        // Then they get fewer, and so do the blocks.
        for _ in 0..100 {
            pool.begin();
            let block = pool.take(LARGE);
            pool.give(block);
        }
        assert_eq!(pool.idle.len(), 1);
    }
}
