//! What the user's memory held before it was overwritten.

use super::intervals::Intervals;
use super::pool::Pool;
use core::ops::Range;
use ringfold_fabric::memory::Memory;

/// Bytes that were overwritten in place, each at its own position. Fresh memory for it costs nothing until
/// something is saved there, page by page.
pub(super) struct Backup {
    block: Memory,
    saved: Intervals,
}

impl Backup {
    /// Room for so many bytes.
    pub(super) fn new(bytes: usize, pool: &mut Pool) -> Self {
        Self { block: pool.take(bytes), saved: Intervals::default() }
    }

    /// Keeps what is about to be overwritten, but for what was overwritten before.
    pub(super) fn save(&mut self, memory: &[u8], range: Range<usize>) {
        let block = self.block.as_mut_slice();
        self.saved.insert(range, |new| block[new.clone()].copy_from_slice(&memory[new]));
    }

    /// Puts everything back.
    pub(super) fn restore(&mut self, memory: &mut [u8]) {
        for range in self.saved.iter() {
            memory[range.clone()].copy_from_slice(&self.block.as_slice()[range]);
        }
        self.forget();
    }

    /// What was overwritten is no longer wanted.
    pub(super) fn forget(&mut self) {
        self.saved.clear();
    }

    /// Gives the memory back.
    pub(super) fn retire(self, pool: &mut Pool) {
        pool.give(self.block);
    }
}
