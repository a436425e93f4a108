//! All limits of this crate. A peer that exceeds one violates the protocol.

pub use ringfold_proto::limits::{
    EAGER_SLOTS_MAX, OPS_IN_FLIGHT_MAX, PAYLOAD_BYTES_MAX, SLOTS_MAX, WINDOW_SLOTS_MAX, WORLD_MAX,
};

/// Epochs per link that have frames here before they are open.
pub const PENDING_EPOCHS_MAX: usize = 4;

/// Closed epochs that are remembered by id. Most are recognised by a counter below that of a newer epoch; this is for
/// those without a successor.
pub const CLOSED_EPOCHS_REMEMBERED_MAX: usize = 64;

/// Pairs of group and master incarnation whose newest epoch is remembered.
pub const INCARNATIONS_REMEMBERED_MAX: usize = 64;

/// Slots per pair and epoch that are reserved for the first slot of each operation.
pub const SLOTS_RESERVED: u16 = OPS_IN_FLIGHT_MAX as u16;

/// Pings of a waiting peer within the time after which silence is a stall.
pub const PINGS_PER_STALL: u32 = 4;
