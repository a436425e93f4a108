//! How many frames may be in the eager slots of a pair, and how many bytes. Both ends know both; the receiver enforces the
//! number of slots, which bounds its memory, too.

use ringfold_proto::tuning::Tuning;

/// The limits of the eager slots of a pair, in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct EagerLimits {
    pub(super) slots: u16,
    bytes: u64,
    chunk_bytes: u32,
}

impl EagerLimits {
    pub(super) fn of(tuning: &Tuning) -> Self {
        let bytes = tuning.eager_chunks_max() as u64 * u64::from(tuning.chunk_bytes);
        Self { slots: tuning.eager_slots, bytes, chunk_bytes: tuning.chunk_bytes }
    }

    /// Whether a frame fits beside those that are there. One always does.
    pub(super) fn has_room(&self, used: u64, length: u32) -> bool {
        used == 0 || used + self.counted(length) <= self.bytes
    }

    /// Whether so many slots and bytes are worth a message: half of all.
    pub(super) fn is_half(&self, slots: u32, bytes: u64) -> bool {
        slots * 2 >= u32::from(self.slots) || bytes * 2 >= self.bytes
    }

    /// The bytes of a frame, as far as they count. Quantised chunks are a little longer than others.
    pub(super) fn counted(&self, length: u32) -> u64 {
        u64::from(length.min(self.chunk_bytes))
    }
}
