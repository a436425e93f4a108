//! Every bound of this crate in one place. A remote that exceeds one is at fault and is told so.

/// Members of one group, and peers of one run.
pub const WORLD_MAX: usize = 1024;

/// Elements' bytes in one data frame; an abort takes effect at the next one.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;

/// Payload bytes of one data frame: a chunk, and the parameters of its quantisation.
pub const PAYLOAD_BYTES_MAX: usize = CHUNK_BYTES_MAX + 64;

/// Slots that one operation may be granted per sender.
pub const WINDOW_SLOTS_MAX: u16 = 256;

/// Slots per pair and epoch that may be filled without a grant.
pub const EAGER_SLOTS_MAX: u16 = 64;

/// Slots per pair and epoch altogether.
pub const SLOTS_MAX: u16 = 16_384;

/// Operations of one peer that are in flight at once.
pub const OPS_IN_FLIGHT_MAX: usize = 1024;
