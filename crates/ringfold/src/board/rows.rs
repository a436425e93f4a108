//! Where only two ranks know what goes between them, everyone first tells everyone what it is going to send. So all
//! know how many rounds it takes, and a pair that does not agree is found out.

use super::exchange::Chunks;
use ringfold_fabric::arena::{Others, Ranks};
use ringfold_proto::id::Rank;

/// No process has as much memory as this; a row that says so is not one.
const PIECE_BYTES_MAX: u64 = 1 << 48;

pub(super) struct Rows {
    pub(super) me: Rank,
    pub(super) world: usize,
    /// Bytes that this rank sends to each, and expects from each.
    pub(super) send: [u64; Ranks::MAX],
    pub(super) receive: [u64; Ranks::MAX],
    /// The longest piece that anyone sends: as its sender says, but never shorter than this rank's own pieces.
    pub(super) longest: u64,
    /// Whose row has something else than this rank expects.
    pub(super) differs: Option<Rank>,
}

impl Chunks for Rows {
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

    fn read(&mut self, _chunk: u64, others: Others<'_>) {
        let own = self.send[..self.world].iter().chain(&self.receive[..self.world]);
        self.longest = own.copied().max().unwrap_or(0);
        for giver in Ranks::all(self.world).without(self.me) {
            let mut row = [0; 8 * Ranks::MAX];
            let row = &mut row[..8 * self.world];
            others.copy(giver, row);
            for (to, word) in row.chunks_exact(8).enumerate() {
                let bytes = u64::from_le_bytes(word.try_into().expect("a word has 8 bytes"));
                let is_expected = to != self.me.index() || bytes == self.receive[giver.index()];
                if is_expected && bytes <= PIECE_BYTES_MAX {
                    self.longest = self.longest.max(bytes);
                } else {
                    self.differs.get_or_insert(giver);
                }
            }
        }
    }
}
