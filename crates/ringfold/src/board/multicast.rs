//! Broadcast, gather, all-gather and barrier: all readers of a slot read the same data.

use super::exchange::Chunks;
use super::operands::{Operands, PartBounds};
use core::ops::Range;
use ringfold_fabric::arena::{OtherSlots, Ranks};
use ringfold_proto::id::Rank;

pub(super) struct Multicast<'a> {
    pub(super) operands: Operands<'a>,
    /// Each rank's part of the output. A rank that reads nothing knows only its own.
    pub(super) parts: PartBounds,
    pub(super) me: Rank,
    pub(super) senders: Ranks,
    pub(super) receivers: Ranks,
    /// Whether this rank copies its own part to its output.
    pub(super) keeps_own: bool,
    pub(super) chunk_bytes: usize,
    pub(super) count: u64,
}

impl Multicast<'_> {
    fn range(&self, of: Rank, chunk: u64) -> Range<usize> {
        let part = self.parts.len(of);
        let start = part.min((chunk as usize).saturating_mul(self.chunk_bytes));
        start..part.min(start + self.chunk_bytes)
    }
}

impl Chunks for Multicast<'_> {
    fn count(&self) -> u64 {
        self.count
    }

    fn fill_bytes(&self, chunk: u64) -> Option<usize> {
        let has_readers = !self.receivers.without(self.me).is_empty();
        // An empty first chunk is announced too, so that ranks detect different calls.
        let bytes = self.range(self.me, chunk).len();
        (self.senders.contains(self.me) && has_readers && (bytes > 0 || chunk == 0)).then_some(bytes)
    }

    fn sources(&self, chunk: u64) -> Ranks {
        let mut sources = self.senders.without(self.me);
        for rank in sources {
            if chunk > 0 && self.range(rank, chunk).is_empty() {
                sources = sources.without(rank);
            }
        }
        sources
    }

    fn reads(&self) -> bool {
        self.receivers.contains(self.me)
    }

    fn fill(&mut self, chunk: u64, slot: &mut [u8]) {
        let range = self.range(self.me, chunk);
        if !slot.is_empty() {
            // A separate input has only this rank's part.
            slot.copy_from_slice(match self.operands.is_in_place() {
                true => self.operands.input_part(&self.parts, self.me, range.clone()),
                false => self.operands.input(range.clone()),
            });
        }
        if self.keeps_own {
            self.operands.keep(&self.parts, self.me, range);
        }
    }

    fn read(&mut self, chunk: u64, others: OtherSlots<'_>) {
        for rank in self.sources(chunk) {
            let range = self.range(rank, chunk);
            let bytes = range.len();
            self.operands.output_part(&self.parts, rank, range).copy_from_slice(others.slot(rank, bytes));
        }
    }
}
