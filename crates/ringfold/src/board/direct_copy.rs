//! Large scatters and all-to-alls: each rank reads the memory of the others. The kernel copies once; slots take two copies.
//!
//! In the first round each rank announces where the others find their pieces, and copies its own pieces from theirs. In
//! the second round it announces whether it could. If a rank could not, all ranks run the collective through slots:
//! other processes cannot read some memory, for example that of devices. Nobody returns before all ranks have announced
//! the end of their copies, so no rank reads a buffer that its owner uses again.

use super::exchange::Chunks;
use super::peer_memory::PeerMemory;
use super::personalized::Personalized;
use ringfold_fabric::arena::{OtherSlots, Ranks};
use ringfold_proto::id::Rank;

/// The round in which ranks announce their pieces, and copy.
pub(super) struct DirectCopy<'a, 'p> {
    pub(super) pieces: Personalized<'a>,
    pub(super) peers: &'p [PeerMemory],
    /// Whether this rank could not read a piece.
    pub(super) is_refused: bool,
    /// A rank that announced a piece of another size.
    pub(super) differs: Option<Rank>,
}

/// Bytes of the address and the size of a piece.
const ENTRY_BYTES: usize = 16;

impl DirectCopy<'_, '_> {
    fn copy_from(&mut self, from: Rank, others: OtherSlots<'_>) {
        let mut row = [0; ENTRY_BYTES * Ranks::MAX];
        others.copy(from, &mut row[..ENTRY_BYTES * self.pieces.world]);
        let entry = &row[ENTRY_BYTES * self.pieces.me.index()..][..ENTRY_BYTES];
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
        let (address, bytes) = (word(0), word(8));
        let target = self.pieces.target(from);
        if bytes != target.len() as u64 {
            self.differs.get_or_insert(from);
        } else if bytes > 0 {
            self.is_refused |= !self.peers[from.index()].read(address, target, || !others.is_aborted());
        }
    }
}

impl Chunks for DirectCopy<'_, '_> {
    fn count(&self) -> u64 {
        1
    }

    fn fill_bytes(&self, _chunk: u64) -> Option<usize> {
        Some(ENTRY_BYTES * self.pieces.world)
    }

    fn sources(&self, _chunk: u64) -> Ranks {
        self.pieces.direct_sources()
    }

    fn reads(&self) -> bool {
        true
    }

    fn fill(&mut self, _chunk: u64, slot: &mut [u8]) {
        for (to, entry) in slot.chunks_exact_mut(ENTRY_BYTES).enumerate() {
            let piece = self.pieces.piece_for(Rank::from_index(to));
            let address = piece.as_ptr().expose_provenance() as u64;
            entry[..8].copy_from_slice(&address.to_le_bytes());
            entry[8..].copy_from_slice(&(piece.len() as u64).to_le_bytes());
        }
    }

    fn read(&mut self, _chunk: u64, others: OtherSlots<'_>) {
        let sources = self.pieces.direct_sources();
        // Each rank begins with another source.
        for distance in 1..self.pieces.world {
            let from = Rank::from_index((self.pieces.me.index() + distance) % self.pieces.world);
            if sources.contains(from) && !self.is_refused && self.differs.is_none() {
                self.copy_from(from, others);
            }
        }
        self.pieces.copy_own();
    }
}

/// The round in which ranks announce whether they could copy.
pub(super) struct Outcomes {
    pub(super) me: Rank,
    pub(super) world: usize,
    /// Whether this rank could not copy; after the round, whether any could not.
    pub(super) is_refused: bool,
}

impl Chunks for Outcomes {
    fn count(&self) -> u64 {
        1
    }

    fn fill_bytes(&self, _chunk: u64) -> Option<usize> {
        Some(1)
    }

    fn sources(&self, _chunk: u64) -> Ranks {
        Ranks::all(self.world).without(self.me)
    }

    fn reads(&self) -> bool {
        true
    }

    fn fill(&mut self, _chunk: u64, slot: &mut [u8]) {
        slot[0] = u8::from(self.is_refused);
    }

    fn read(&mut self, chunk: u64, others: OtherSlots<'_>) {
        for rank in self.sources(chunk) {
            let mut outcome = [0];
            others.copy(rank, &mut outcome);
            self.is_refused |= outcome[0] != 0;
        }
    }
}
