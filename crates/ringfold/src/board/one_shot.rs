//! Small reductions: everyone shows everything to everyone, and everyone folds it alike.

use super::exchange::Chunks;
use super::fold::{Fold, tiles};
use super::operands::Operands;
use core::ops::Range;
use ringfold_fabric::arena::{Others, Ranks};
use ringfold_proto::id::Rank;

pub(super) struct OneShot<'a> {
    pub(super) operands: Operands<'a>,
    pub(super) fold: Fold,
    pub(super) me: Rank,
    pub(super) world: usize,
    /// Who gets the result; everyone if nobody is named.
    pub(super) root: Option<Rank>,
    pub(super) bytes: usize,
    pub(super) chunk_bytes: usize,
}

impl OneShot<'_> {
    fn range(&self, chunk: u64) -> Range<usize> {
        let start = chunk as usize * self.chunk_bytes;
        start..self.bytes.min(start + self.chunk_bytes)
    }
}

impl Chunks for OneShot<'_> {
    #[inline]
    fn count(&self) -> u64 {
        // Even if there is nothing to be reduced, ranks notice if they were asked for different things.
        if self.bytes <= self.chunk_bytes { 1 } else { self.bytes.div_ceil(self.chunk_bytes) as u64 }
    }

    #[inline]
    fn fill_bytes(&self, chunk: u64) -> Option<usize> {
        Some(self.range(chunk).len())
    }

    #[inline]
    fn sources(&self, _chunk: u64) -> Ranks {
        Ranks::all(self.world).without(self.me)
    }

    #[inline]
    fn reads(&self) -> bool {
        self.root.is_none_or(|root| root == self.me)
    }

    #[inline]
    fn fill(&mut self, chunk: u64, slot: &mut [u8]) {
        slot.copy_from_slice(self.operands.input(self.range(chunk)));
    }

    #[inline]
    fn read(&mut self, chunk: u64, others: Others<'_>) {
        let range = self.range(chunk);
        let bytes = range.len();
        for tile in tiles(bytes) {
            let out = self.operands.output(range.start + tile.start..range.start + tile.end);
            // What this rank itself brings is read from its own slot, since its result may replace it.
            self.fold.tile(|rank| &others.slot(Rank::from_index(rank), bytes)[tile.clone()], out);
        }
    }
}
