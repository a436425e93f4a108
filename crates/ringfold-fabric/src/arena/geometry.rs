//! The layout of an arena.

use super::ranks::Ranks;
use crate::limits::ARENA_BYTES_MAX;
use crate::segment::Segment;

/// The sizes of an arena, the same for all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The number of ranks, 64 at most.
    pub world: usize,
    /// The size of a slot: a multiple of 64, and at least 16 for each rank.
    pub slot_bytes: usize,
    /// The slots of each rank: a power of two, 4 at least.
    pub depth: usize,
}

/// A cache line. Words that different ranks write lie on different lines.
pub(super) const LINE_BYTES: usize = 64;

const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = LINE_BYTES;
const RANK_BYTES: usize = 4 * LINE_BYTES;

/// The version of the layout, and of the rounds that ranks begin with.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"rfarena3");

/// The geometry, written by the creator.
pub(super) const GEOMETRY_AT: usize = Segment::RESERVED_BYTES;
/// The ranks that sleep.
pub(super) const SLEEPERS_AT: usize = GEOMETRY_AT + LINE_BYTES;
/// Whether the arena was aborted, and by which rank. On the cache line of the sleepers, since both are read together.
pub(super) const ABORT_AT: usize = SLEEPERS_AT + 8;
/// The ranks that have left.
pub(super) const LEFT_AT: usize = SLEEPERS_AT + 16;
/// The last recorded point, and whether the arena is sealed.
pub(super) const SETTLED_AT: usize = SLEEPERS_AT + 24;
/// The length of the abort's reason, and the reason.
pub(super) const REASON_BYTES_AT: usize = SLEEPERS_AT + LINE_BYTES;
pub(super) const REASON_AT: usize = REASON_BYTES_AT + 8;
/// The words of a rank's note.
pub(super) const NOTE_WORDS: usize = 7;
pub(super) const REASON_BYTES_MAX: usize = 5 * LINE_BYTES - 8;
const RANKS_AT: usize = REASON_BYTES_AT + 5 * LINE_BYTES;

impl Geometry {
    /// Payload bytes that fit beside the announcement.
    pub const INLINE_BYTES: usize = HEADER_BYTES - 16;

    /// Whether these sizes are valid.
    pub fn is_sound(self) -> bool {
        (1..=Ranks::MAX).contains(&self.world)
            && self.depth.is_power_of_two()
            && (4..=256).contains(&self.depth)
            && self.slot_bytes.is_multiple_of(LINE_BYTES)
            && self.slot_bytes >= 16 * self.world
            && self.slot_bytes <= 16 << 20
            && self.bytes() <= ARENA_BYTES_MAX
    }

    /// Bytes of shared memory of such an arena.
    pub fn bytes(self) -> usize {
        self.slots_at() + self.slots() * self.slot_stride()
    }

    fn slots(self) -> usize {
        self.world * self.depth
    }

    fn slots_at(self) -> usize {
        (self.header_at(0, 0) + self.slots() * HEADER_BYTES).next_multiple_of(PAGE_BYTES)
    }

    fn slot_stride(self) -> usize {
        let bytes = self.slot_bytes;
        if bytes < PAGE_BYTES { bytes } else { bytes.next_multiple_of(PAGE_BYTES) }
    }

    #[inline]
    fn slot_number(self, rank: usize, round: u64) -> usize {
        assert!(rank < self.world);
        rank * self.depth + (round & (self.depth as u64 - 1)) as usize
    }

    /// The announcement of a rank's slot: the round plus one, the fingerprint, the inline payload.
    #[inline]
    pub(super) fn header_at(self, rank: usize, round: u64) -> usize {
        RANKS_AT + self.world * RANK_BYTES + self.slot_number(rank, round) * HEADER_BYTES
    }

    /// A rank's slot of a round.
    #[inline]
    pub(super) fn slot_at(self, rank: usize, round: u64) -> usize {
        self.slots_at() + self.slot_number(rank, round) * self.slot_stride()
    }

    /// The number of rounds that a rank has released.
    #[inline]
    pub(super) fn consumed_at(self, rank: usize) -> usize {
        assert!(rank < self.world);
        RANKS_AT + rank * RANK_BYTES
    }

    /// Whether the rank has joined.
    pub(super) fn joined_at(self, rank: usize) -> usize {
        self.consumed_at(rank) + LINE_BYTES
    }

    /// What the rank does, as far as users of the arena say.
    pub(super) fn note_at(self, rank: usize) -> usize {
        self.joined_at(rank) + 8
    }

    /// The word that a rank blocks on.
    pub(super) fn wake_word_at(self, rank: usize) -> usize {
        self.consumed_at(rank) + 2 * LINE_BYTES
    }

    /// What it waits for: twice the round, plus one if it waits for space; then the ranks that it waits for.
    pub(super) fn need_at(self, rank: usize) -> usize {
        self.wake_word_at(rank) + 8
    }
}
