//! A backup of user memory that an operation overwrites in place.

use super::intervals::Intervals;
use super::pool::Pool;
use core::ops::Range;
use ringfold_fabric::memory::Memory;

/// Overwritten bytes, each at its original position. Unused pages of it cost nothing.
pub(super) struct Backup {
    block: Memory,
    saved: Intervals,
}

impl Backup {
    pub(super) fn new(bytes: usize, pool: &mut Pool) -> Self {
        Self { block: pool.take(bytes), saved: Intervals::default() }
    }

    /// Saves bytes that are about to be overwritten, except those saved before.
    pub(super) fn save(&mut self, memory: &[u8], range: Range<usize>) {
        let block = self.block.as_mut_slice();
        self.saved.insert(range, |new| block[new.clone()].copy_from_slice(&memory[new]));
    }

    pub(super) fn restore(&mut self, memory: &mut [u8]) {
        for range in self.saved.iter() {
            memory[range.clone()].copy_from_slice(&self.block.as_slice()[range]);
        }
        self.forget();
    }

    pub(super) fn forget(&mut self) {
        self.saved.clear();
    }

    pub(super) fn retire(self, pool: &mut Pool) {
        pool.give(self.block);
    }
}
