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

/// Bytes of one control message.
pub const CONTROL_BYTES_MAX: usize = 8 << 20;

/// Bytes of one message on a data connection that is not data.
pub const LINK_MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Messages of a session that may be unacknowledged; a peer that falls further behind is put out.
pub const OUTBOX_MAX: usize = 16_384;

/// Bytes of a peer's name.
pub const NAME_BYTES_MAX: usize = 128;

/// Addresses that a peer may listen on.
pub const ADDRESSES_MAX: usize = 8;

/// Entries of a shared state.
pub const STATE_ENTRIES_MAX: usize = 32_768;

/// Bytes of a shared state's key.
pub const STATE_KEY_BYTES_MAX: usize = 256;

/// Worlds up to this size link every pair; larger ones only neighbours on the ring.
pub const MESH_WORLD_MAX: usize = 16;

/// Names that an error lists before it stops.
pub const NAMES_IN_ERROR_MAX: usize = 8;

/// Distinct tags that one epoch may see; each costs a few bytes until the epoch ends.
pub const TAGS_PER_EPOCH_MAX: usize = 1 << 20;

/// Aborted outcomes per tag that a peer remembers for others after the last committed one.
pub const OUTCOMES_REMEMBERED_MAX: usize = 64;

/// Steps in which the master's phases may push each other on after one input. Each step ends, opens
/// or starts something, so the true bound is the number of peers and operations.
pub const ADVANCE_STEPS_MAX: usize = 1 << 20;
