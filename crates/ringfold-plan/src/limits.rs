//! Every bound of this crate in one place, with those of the vocabulary that it relies on. A remote that
//! exceeds one is at fault and is told so.

pub use ringfold_proto::limits::{
    EAGER_SLOTS_MAX, OPS_IN_FLIGHT_MAX, PAYLOAD_BYTES_MAX, SLOTS_MAX, WINDOW_SLOTS_MAX, WORLD_MAX,
};

/// Epochs that a link may speak of before they are open here.
pub const PENDING_EPOCHS_MAX: usize = 4;

/// Epochs that were closed and are still known by name. Most frames of closed epochs are recognised by
/// a counter that is too low; this memory is for those that never had a successor.
pub const CLOSED_EPOCHS_REMEMBERED_MAX: usize = 64;

/// Lives of masters, per group, whose newest epoch is remembered.
pub const LINEAGES_REMEMBERED_MAX: usize = 64;

/// Slots per pair and epoch that are kept for the first slot of each operation: windows grow only while
/// more than these are left, so that each started operation can own one.
pub const SLOTS_RESERVED: u16 = OPS_IN_FLIGHT_MAX as u16;

/// How often, within the time after which silence is a stall, a waiting peer shows that it is alive.
pub const PINGS_PER_STALL: u32 = 4;
