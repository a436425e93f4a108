//! The numbers that a board goes by. All ranks have the same.

use super::play::lane_bytes_max;
use ringfold_fabric::arena::{Geometry, Seat};
use ringfold_proto::tuning::Tuning;

/// How collectives are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) slot_bytes: usize,
    /// Chunks that a rank may be ahead of what it reads.
    pub(super) exchange_ahead: u64,
    /// Blocks that contributions are ahead of results.
    pub(super) settle_ahead: u64,
    one_shot_bytes_max: usize,
}

/// Bytes up to which there is nothing to gain from chunks.
const CHUNK_BYTES_MIN: usize = 16 * 1024;

/// Chunks that a piece is cut into if it is long enough, so that one is on its way while another is read.
const CHUNKS_WANTED: usize = 4;

impl Settings {
    pub(super) fn new(geometry: Geometry, tuning: &Tuning) -> Self {
        let Geometry { slot_bytes, depth, .. } = geometry;
        // What others have not been told of yet may be missing.
        let free = depth as u64 - (Seat::report_every(depth) - 1);
        Self {
            slot_bytes,
            exchange_ahead: (depth as u64 / 2).min(free - 1),
            // Contributions and results share the slots, and both of a block are needed at once to fold it.
            settle_ahead: (free - 2) / 2,
            one_shot_bytes_max: tuning.board_one_shot_bytes_max as usize,
        }
    }

    /// Whether a reduction of so many bytes is done by all ranks alike.
    #[inline]
    pub(super) fn takes_one_shot(&self, bytes: usize, world: usize) -> bool {
        world == 1 || bytes <= self.one_shot_bytes_max
    }

    /// Bytes up to which the choice of a script would take longer than the script.
    #[inline]
    pub(super) fn short_bytes_max(&self) -> usize {
        self.one_shot_bytes_max.min(self.slot_bytes).min(4096)
    }

    pub(super) fn lane_bytes_max(&self, world: usize) -> usize {
        lane_bytes_max(self.slot_bytes, world)
    }

    /// The chunks of a piece, where at most so many bytes of one fit.
    pub(super) fn chunk_bytes(&self, piece: usize, most: usize) -> usize {
        let wanted = piece.div_ceil(CHUNKS_WANTED).max(CHUNK_BYTES_MIN).min(piece);
        let align = if most >= 64 { 64 } else { 16 };
        wanted.next_multiple_of(if piece <= 48 { 16 } else { align }).clamp(16, most)
    }
}
