//! One-hop collectives: each rank fills its slots, and reads those of the ranks whose data it needs.

use super::pipeline::{RoundSchedule, RoundStep};
use ringfold_fabric::arena::{Fill, OtherSlots, Ranks, StepSlots};

/// The data of an exchange, in chunks; each chunk is a round.
pub(super) trait Chunks {
    /// The number of chunks; the same on all ranks.
    fn count(&self) -> u64;

    /// Bytes that this rank fills of its slot; `None` if it does not use it.
    fn fill_bytes(&self, chunk: u64) -> Option<usize>;

    fn sources(&self, chunk: u64) -> Ranks;

    /// Whether this rank reads slots at all.
    fn reads(&self) -> bool;

    /// Fills the slot, which is empty if this rank does not use it.
    fn fill(&mut self, chunk: u64, slot: &mut [u8]);

    fn read(&mut self, chunk: u64, others: OtherSlots<'_>);
}

/// The schedule of an exchange. Ranks fill some chunks ahead of what they read, to avoid waits.
pub(super) struct Exchange<C> {
    pub(super) chunks: C,
    ahead: u64,
}

impl<C: Chunks> Exchange<C> {
    /// Fills at most `ahead` chunks ahead; there must be as many free slots.
    pub(super) fn new(chunks: C, ahead: u64) -> Self {
        let ahead = ahead.min(chunks.count().saturating_sub(1));
        Self { chunks, ahead }
    }

    fn fills(&self, index: u64) -> Option<u64> {
        (index.is_multiple_of(2) && index / 2 < self.chunks.count()).then_some(index / 2)
    }

    fn reads(&self, index: u64) -> Option<u64> {
        if index.is_multiple_of(2) { None } else { (index / 2).checked_sub(self.ahead) }
    }
}

impl<C: Chunks> RoundSchedule for Exchange<C> {
    fn rounds(&self) -> u64 {
        self.chunks.count()
    }

    fn steps(&self) -> u64 {
        if self.chunks.count() == 0 { 0 } else { 2 * (self.chunks.count() + self.ahead) }
    }

    #[inline]
    fn at(&self, index: u64) -> RoundStep {
        let fill = self
            .fills(index)
            .and_then(|chunk| self.chunks.fill_bytes(chunk).map(|bytes| Fill { round: chunk, bytes }));
        if !self.chunks.reads() {
            return RoundStep { fill, read: None, released: self.chunks.count() };
        }
        let read = self.reads(index);
        let released = read.map_or(0, |chunk| chunk + 1);
        RoundStep { fill, read: read.map(|chunk| (chunk, self.chunks.sources(chunk))), released }
    }

    #[inline]
    fn act(&mut self, index: u64, slots: StepSlots<'_>) {
        if let Some(chunk) = self.fills(index) {
            self.chunks.fill(chunk, slots.own);
        } else if let Some(chunk) = self.reads(index)
            && self.chunks.reads()
        {
            self.chunks.read(chunk, slots.others);
        }
    }
}
