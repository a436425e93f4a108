//! Collectives in which every rank fills slots with what it has, and reads what it needs out of others': one hop.

use super::pipeline::{Move, Script};
use ringfold_fabric::arena::{Desk, Fill, Others, Ranks};

/// What is filled and read, chunk by chunk; a chunk is a round.
pub(super) trait Chunks {
    /// How many; the same number for all ranks.
    fn count(&self) -> u64;

    /// Bytes that this rank fills of its slot; `None` if it leaves it alone.
    fn fill_bytes(&self, chunk: u64) -> Option<usize>;

    /// Whose slots this rank reads.
    fn sources(&self, chunk: u64) -> Ranks;

    /// Whether it reads any slot of any chunk.
    fn reads(&self) -> bool;

    /// Fills the slot; it is empty if this rank leaves it alone.
    fn fill(&mut self, chunk: u64, slot: &mut [u8]);

    /// Reads the slots of the sources, if it reads any at all.
    fn read(&mut self, chunk: u64, others: Others<'_>);
}

/// Ranks fill ahead of what they read by a few chunks, so that nobody waits for the next one.
pub(super) struct Exchange<C> {
    pub(super) chunks: C,
    ahead: u64,
}

impl<C: Chunks> Exchange<C> {
    /// So many chunks ahead at most; there must be as many slots free.
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

impl<C: Chunks> Script for Exchange<C> {
    fn rounds(&self) -> u64 {
        self.chunks.count()
    }

    fn moves(&self) -> u64 {
        if self.chunks.count() == 0 { 0 } else { 2 * (self.chunks.count() + self.ahead) }
    }

    #[inline]
    fn at(&self, index: u64) -> Move {
        let fill = self
            .fills(index)
            .and_then(|chunk| self.chunks.fill_bytes(chunk).map(|bytes| Fill { round: chunk, bytes }));
        if !self.chunks.reads() {
            return Move { fill, read: None, released: self.chunks.count() };
        }
        let read = self.reads(index);
        let released = read.map_or(0, |chunk| chunk + 1);
        Move { fill, read: read.map(|chunk| (chunk, self.chunks.sources(chunk))), released }
    }

    #[inline]
    fn act(&mut self, index: u64, desk: Desk<'_>) {
        if let Some(chunk) = self.fills(index) {
            self.chunks.fill(chunk, desk.own);
        } else if let Some(chunk) = self.reads(index)
            && self.chunks.reads()
        {
            self.chunks.read(chunk, desk.others);
        }
    }
}
