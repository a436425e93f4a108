//! A pool of large memory blocks. Page faults of fresh memory would take a large part of an all-reduce.

use core::cmp::Reverse;
use ringfold_fabric::memory::Memory;

/// Smaller blocks are not pooled.
const BYTES_MIN: usize = 64 * 1024;

/// A block is freed after this many operations without use.
const OPERATIONS_IDLE_MAX: u64 = 16;

/// Idle blocks; never more than recent operations used at the same time.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Vec<Idle>,
    operations: u64,
    /// The maximum number of idle blocks since one was freed: so many operations may be in flight, each with a block.
    idle_most: usize,
}

struct Idle {
    memory: Memory,
    /// The number of operations when it became idle.
    since: u64,
}

impl Pool {
    /// Counts an operation, and frees blocks that were idle for too long.
    pub(super) fn begin(&mut self) {
        self.operations += 1;
        let idle_max = OPERATIONS_IDLE_MAX + self.idle_most as u64;
        let before = self.idle.len();
        self.idle.retain(|block| self.operations - block.since <= idle_max);
        if self.idle.len() < before {
            self.idle_most = self.idle.len();
        }
    }

    /// A block of at least this many bytes, with any content.
    pub(super) fn take(&mut self, bytes: usize) -> Memory {
        // Much larger blocks are left to operations that need them.
        let fits = |block: &Idle| (bytes..=bytes.saturating_mul(2)).contains(&block.memory.len());
        let fitting = self.idle.iter().enumerate().filter(|(_, block)| fits(block));
        // Of equal blocks the most recently used one, so that surplus blocks age.
        let best = fitting.min_by_key(|(_, block)| (block.memory.len(), Reverse(block.since)));
        match best.map(|(index, _)| index) {
            Some(index) => self.idle.swap_remove(index).memory,
            None => Memory::zeroed(bytes),
        }
    }

    /// Returns a block. Nothing of it may be in the process of being sent.
    pub(super) fn give(&mut self, memory: Memory) {
        if memory.len() >= BYTES_MIN {
            self.idle.push(Idle { memory, since: self.operations });
            self.idle_most = self.idle_most.max(self.idle.len());
        }
    }

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
    fn operations_of_one_size_reuse_one_block() {
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
    fn a_small_operation_neither_uses_large_blocks_nor_pools_small_ones() {
        let mut pool = Pool::default();
        pool.give(Memory::zeroed(LARGE));
        let small = pool.take(1000);
        assert_eq!(small.len(), 1000);
        pool.give(small);
        assert_eq!(pool.idle.len(), 1);
    }

    #[test]
    fn an_unused_block_is_freed() {
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
    fn many_operations_in_flight_reuse_the_blocks_of_earlier_ones() {
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
        // With fewer operations in flight the number of blocks shrinks.
        for _ in 0..100 {
            pool.begin();
            let block = pool.take(LARGE);
            pool.give(block);
        }
        assert_eq!(pool.idle.len(), 1);
    }
}
