//! Broadcast, gather, all-gather and barrier: what a rank fills its slot with is for all its readers.

use super::exchange::Chunks;
use super::operands::{Cuts, Operands};
use core::ops::Range;
use ringfold_fabric::arena::{Others, Ranks};
use ringfold_proto::id::Rank;

pub(super) struct Share<'a> {
    pub(super) operands: Operands<'a>,
    /// Everyone's part in the output. A rank that reads nothing need not know those of others.
    pub(super) parts: Cuts,
    pub(super) me: Rank,
    /// Who has something.
    pub(super) givers: Ranks,
    /// Who gets it.
    pub(super) takers: Ranks,
    /// Whether this rank's own part has to be copied to its output.
    pub(super) keeps_own: bool,
    pub(super) chunk_bytes: usize,
    pub(super) count: u64,
}

impl Share<'_> {
    fn range(&self, of: Rank, chunk: u64) -> Range<usize> {
        let part = self.parts.len(of);
        let start = part.min((chunk as usize).saturating_mul(self.chunk_bytes));
        start..part.min(start + self.chunk_bytes)
    }
}

impl Chunks for Share<'_> {
    fn count(&self) -> u64 {
        self.count
    }

    fn fill_bytes(&self, chunk: u64) -> Option<usize> {
        let has_readers = !self.takers.without(self.me).is_empty();
        // The first chunk is announced even if it is empty, so that ranks notice if they were asked for different things.
        let bytes = self.range(self.me, chunk).len();
        (self.givers.contains(self.me) && has_readers && (bytes > 0 || chunk == 0)).then_some(bytes)
    }

    fn sources(&self, chunk: u64) -> Ranks {
        let mut sources = self.givers.without(self.me);
        for rank in sources {
            if chunk > 0 && self.range(rank, chunk).is_empty() {
                sources = sources.without(rank);
            }
        }
        sources
    }

    fn reads(&self) -> bool {
        self.takers.contains(self.me)
    }

    fn fill(&mut self, chunk: u64, slot: &mut [u8]) {
        let range = self.range(self.me, chunk);
        if !slot.is_empty() {
            // A buffer of its own holds this rank's part alone.
            slot.copy_from_slice(match self.operands.is_in_place() {
                true => self.operands.input_part(&self.parts, self.me, range.clone()),
                false => self.operands.input(range.clone()),
            });
        }
        if self.keeps_own {
            self.operands.keep(&self.parts, self.me, range);
        }
    }

    fn read(&mut self, chunk: u64, others: Others<'_>) {
        for rank in self.sources(chunk) {
            let range = self.range(rank, chunk);
            let bytes = range.len();
            self.operands.output_part(&self.parts, rank, range).copy_from_slice(others.slot(rank, bytes));
        }
    }
}
