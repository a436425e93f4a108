//! What steers the choice and the cutting of plans. It is agreed by the whole group: it travels in
//! the epoch's description, and nothing local may change a plan on one rank alone.

use serde::{Deserialize, Serialize};

/// How a collective is carried out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Algorithm {
    /// Around the ring, one neighbour on either side: least traffic, world − 1 hops.
    Ring = 1,
    /// Every part goes straight to its owner and from it to everyone: two hops.
    Direct = 2,
    /// Everyone sends everything to everyone: one hop, for small messages.
    OneShot = 3,
    /// Recursive halving, then doubling: about 2·log₂(world) hops.
    Halving = 4,
}

/// The numbers that decide which plan is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Tuning {
    /// Payload bytes of a data frame at most.
    pub chunk_bytes: u32,
    /// Slots that a receiver grants to one operation per sender.
    pub window_slots: u16,
    /// Slots per pair and epoch that a sender may fill without being granted them.
    pub eager_slots: u16,
    /// Messages up to this size take the one-hop plan.
    pub one_shot_bytes_max: u32,
    /// Messages up to this size take halving-doubling.
    pub halving_bytes_max: u32,
    /// Worlds up to this size exchange directly instead of around the ring.
    pub direct_world_max: u16,
    /// Take this algorithm wherever it is possible, whatever the size.
    pub forced: Option<Algorithm>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tuning {
    /// What holds unless somebody measured something better.
    pub const DEFAULT: Self = Self {
        chunk_bytes: 128 * 1024,
        window_slots: 8,
        eager_slots: 4,
        one_shot_bytes_max: 16 * 1024,
        halving_bytes_max: 256 * 1024,
        direct_world_max: 2,
        forced: None,
    };

    /// Brings what a remote or a user wrote within the bounds that the executor counts on.
    pub fn bounded(self) -> Self {
        Self {
            chunk_bytes: self.chunk_bytes.clamp(16, crate::limits::CHUNK_BYTES_MAX as u32),
            window_slots: self.window_slots.clamp(1, crate::limits::WINDOW_SLOTS_MAX),
            eager_slots: self.eager_slots.clamp(1, crate::limits::EAGER_SLOTS_MAX),
            one_shot_bytes_max: self.one_shot_bytes_max.min(1 << 20),
            ..self
        }
    }
}
