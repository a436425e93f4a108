//! Exchanges the sizes of an operation with different sizes per pair, before its data.
//!
//! So all ranks know the number of rounds, and detect a pair whose sizes differ.

use super::exchange::Chunks;
use ringfold_fabric::arena::{OtherSlots, Ranks};
use ringfold_proto::id::Rank;

/// A larger size in a row is invalid: no process has so much memory.
const PIECE_BYTES_MAX: u64 = 1 << 48;

pub(super) struct SizeTable {
    pub(super) me: Rank,
    pub(super) world: usize,
    /// Bytes that this rank sends to each, and expects from each.
    pub(super) send: [u64; Ranks::MAX],
    pub(super) receive: [u64; Ranks::MAX],
    /// The longest piece of any pair; at least that of this rank's own pieces.
    pub(super) longest: u64,
    /// A rank whose row is invalid, or does not match this rank's sizes.
    pub(super) differs: Option<Rank>,
}

impl Chunks for SizeTable {
    fn count(&self) -> u64 {
        1
    }

    fn fill_bytes(&self, _chunk: u64) -> Option<usize> {
        Some(8 * self.world)
    }

    fn sources(&self, _chunk: u64) -> Ranks {
        Ranks::all(self.world).without(self.me)
    }

    fn reads(&self) -> bool {
        true
    }

    fn fill(&mut self, _chunk: u64, slot: &mut [u8]) {
        for (bytes, word) in self.send.iter().zip(slot.chunks_exact_mut(8)) {
            word.copy_from_slice(&bytes.to_le_bytes());
        }
    }

    fn read(&mut self, _chunk: u64, others: OtherSlots<'_>) {
        let own = self.send[..self.world].iter().chain(&self.receive[..self.world]);
        self.longest = own.copied().max().unwrap_or(0);
        for sender in Ranks::all(self.world).without(self.me) {
            let mut row = [0; 8 * Ranks::MAX];
            let row = &mut row[..8 * self.world];
            others.copy(sender, row);
            for (to, word) in row.chunks_exact(8).enumerate() {
                let bytes = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                let is_expected = to != self.me.index() || bytes == self.receive[sender.index()];
                if is_expected && bytes <= PIECE_BYTES_MAX {
                    self.longest = self.longest.max(bytes);
                } else {
                    self.differs.get_or_insert(sender);
                }
            }
        }
    }
}
