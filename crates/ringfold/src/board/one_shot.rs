//! Small reductions: each rank reads the data of all ranks, and computes the whole result.

use super::exchange::Chunks;
use super::operands::Operands;
use super::tile_reducer::{TileReducer, tiles};
use core::ops::Range;
use ringfold_fabric::arena::{OtherSlots, Ranks};
use ringfold_proto::id::Rank;

pub(super) struct OneShot<'a> {
    pub(super) operands: Operands<'a>,
    pub(super) reducer: TileReducer,
    pub(super) me: Rank,
    pub(super) world: usize,
    /// The rank that gets the result; `None`: all ranks.
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
        // At least one round, so that ranks detect different calls.
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
    fn read(&mut self, chunk: u64, others: OtherSlots<'_>) {
        let range = self.range(chunk);
        let bytes = range.len();
        for tile in tiles(bytes) {
            let out = self.operands.output(range.start + tile.start..range.start + tile.end);
            // This rank's operand is read from its slot, since the result may replace the input.
            self.reducer.reduce_tile(|rank| &others.slot(Rank::from_index(rank), bytes)[tile.clone()], out);
        }
    }
}
