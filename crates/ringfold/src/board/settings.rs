//! Chunk sizes and depths of a board. All ranks use the same.

use super::collective_run::lane_bytes_max;
use super::shared_operands::SharedOperands;
use ringfold_fabric::arena::{ArenaMember, Geometry};
use ringfold_proto::tuning::Tuning;

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) slot_bytes: usize,
    /// Chunks that a rank fills ahead of what it reads.
    pub(super) exchange_ahead: u64,
    /// Blocks that contributions are ahead of results.
    pub(super) block_ahead: u64,
    /// The longest piece from which on scatters and all-to-alls copy directly, if they can.
    pub(super) direct_bytes_min: usize,
    /// The smallest reduction that reads shared buffers in place, if all operands lie in them.
    pub(super) shared_bytes_min: usize,
    /// Bytes that a rank reduces before it announces them, if it reads shared buffers in place.
    pub(super) shared_piece_bytes: usize,
    one_shot_bytes_max: usize,
}

/// The minimum size of a chunk; smaller pieces are not divided.
const CHUNK_BYTES_MIN: usize = 16 * 1024;

/// The number of chunks of a large piece, so that one is filled while another is read.
const CHUNKS_WANTED: usize = 4;

impl Settings {
    /// Smaller pieces are copied through slots: announcing addresses and system calls cost more than the second copy.
    pub(super) const DIRECT_BYTES_MIN: usize = 64 * 1024;

    /// For smaller reductions announcing and agreeing costs more than the second copy.
    pub(super) const SHARED_BYTES_MIN: usize = 1 << 20;

    /// Pieces of all ranks together, and their results, fit into the caches of a core.
    const SHARED_PIECE_BYTES: usize = 128 * 1024;

    pub(super) fn new(geometry: Geometry, tuning: &Tuning) -> Self {
        let Geometry { slot_bytes, depth, .. } = geometry;
        // Slots whose release is not reported yet are not free.
        let free = depth as u64 - (ArenaMember::report_every(depth) - 1);
        Self {
            slot_bytes,
            exchange_ahead: (depth as u64 / 2).min(free - 1),
            // Contributions and results share the slots, and reducing a block needs both.
            block_ahead: (free - 2) / 2,
            direct_bytes_min: Self::DIRECT_BYTES_MIN,
            shared_bytes_min: Self::SHARED_BYTES_MIN,
            shared_piece_bytes: Self::SHARED_PIECE_BYTES,
            one_shot_bytes_max: tuning.board_one_shot_bytes_max as usize,
        }
    }

    /// Whether all ranks compute the whole result of a reduction.
    #[inline]
    pub(super) fn takes_one_shot(&self, bytes: usize, world: usize) -> bool {
        world == 1 || bytes <= self.one_shot_bytes_max
    }

    /// The size up to which choosing a schedule would take longer than running it.
    #[inline]
    pub(super) fn short_bytes_max(&self) -> usize {
        self.one_shot_bytes_max.min(self.slot_bytes).min(4096)
    }

    /// Whether ranks announce where the operands of a reduction lie.
    pub(super) fn announces_operands(&self, bytes: usize, world: usize) -> bool {
        world > 1 && bytes >= self.shared_bytes_min && self.slot_bytes >= SharedOperands::BYTES
    }

    pub(super) fn lane_bytes_max(&self, world: usize) -> usize {
        lane_bytes_max(self.slot_bytes, world)
    }

    /// The chunk size of a piece; at most `most` bytes.
    pub(super) fn chunk_bytes(&self, piece: usize, most: usize) -> usize {
        let wanted = piece.div_ceil(CHUNKS_WANTED).max(CHUNK_BYTES_MIN).min(piece);
        let align = if most >= 64 { 64 } else { 16 };
        wanted.next_multiple_of(if piece <= 48 { 16 } else { align }).clamp(16, most)
    }
}
