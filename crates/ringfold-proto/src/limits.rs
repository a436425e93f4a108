//! Every bound of this crate in one place. A remote that exceeds one is at fault and is told so.

/// Members of one group, and peers of one run.
pub const WORLD_MAX: usize = 1024;

/// Elements' bytes in one data frame; an abort takes effect at the next one.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;

/// Payload bytes of one data frame: a chunk, and the parameters of its quantisation.
pub const PAYLOAD_BYTES_MAX: usize = CHUNK_BYTES_MAX + 64;

/// The rate that links between members are expected to have at most, 10 Gbit/s: windows are made for it.
pub const LINK_BYTES_PER_US: u32 = 1250;

/// Slots that one operation may be granted per sender.
pub const WINDOW_SLOTS_MAX: u16 = 256;

/// Slots per pair and epoch that may be filled without a grant.
pub const EAGER_SLOTS_MAX: u16 = 64;

/// Slots per pair and epoch altogether.
pub const SLOTS_MAX: u16 = 16_384;

/// Bytes of a slot of the memory that a group on one host shares: at least, at most, and in steps of a cache
/// line.
pub const BOARD_SLOT_BYTES_MIN: u32 = 4096;
/// See above.
pub const BOARD_SLOT_BYTES_MAX: u32 = 16 << 20;
/// See above.
pub const BOARD_SLOT_BYTES_STEP: u32 = 64;

/// Slots of each rank there: at least, and at most.
pub const BOARD_DEPTH_MIN: u16 = 4;
/// See above.
pub const BOARD_DEPTH_MAX: u16 = 256;

/// Nanoseconds that anything may cost in the tuning's prices.
pub const PRICE_NS_MAX: u32 = 1_000_000_000;

/// Operations of one peer that are in flight at once.
pub const OPS_IN_FLIGHT_MAX: usize = 1024;

/// Bytes of one control message.
pub const CONTROL_BYTES_MAX: usize = 12 << 20;

/// Bytes of one message on a data connection that is not data.
pub const LINK_MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Messages of a session that may be unacknowledged; a peer that falls further behind is put out.
pub const OUTBOX_MAX: usize = 16_384;

/// Bytes of such messages.
pub const OUTBOX_BYTES_MAX: usize = 64 << 20;

/// A peer acknowledges at least every so many messages, also between its heartbeats: what other peers make the master
/// send does not fill its outbox.
pub const ACKNOWLEDGE_EVERY: u64 = OUTBOX_MAX as u64 / 16;

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

/// Distinct tags that one epoch may see; then another is opened. A member that returns to a restarted
/// master tells of them all, so they must fit into [`OPS_IN_RESUME_MAX`].
pub const TAGS_PER_EPOCH_MAX: usize = 1 << 15;

/// Peer groups that a run remembers: those with members, and those whose state may be taken up again.
pub const GROUPS_MAX: usize = 4096;

/// Numbers that a returning member may bring to be counted on from: more than any run can reach.
pub const COUNTER_MAX: u64 = 1 << 48;

/// Aborted outcomes per tag that a peer remembers for others after the last committed one.
pub const OUTCOMES_REMEMBERED_MAX: usize = 64;

/// Steps in which the master's phases may push each other on after one input. Each step ends, opens
/// or starts something, so the true bound is the number of peers and operations.
pub const ADVANCE_STEPS_MAX: usize = 1 << 20;

/// Bytes that the lists of one decoded control message may take up in memory. Elements are larger in
/// memory than on the wire, so without this bound a small frame could become a large message. While
/// a list grows, its old and its new place exist together: decoding takes at most three times this,
/// and once more the bytes of the frame for its strings.
pub const CONTROL_DECODED_BYTES_MAX: usize = 4 * CONTROL_BYTES_MAX;

/// The same for a message on a data connection.
pub const LINK_MESSAGE_DECODED_BYTES_MAX: usize = 2 * LINK_MESSAGE_BYTES_MAX;

/// Bytes of a buffer that a connection keeps between frames; what a larger frame needed is given back.
pub const FRAME_BUFFER_KEPT_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a name on the wire. Longer than [`NAME_BYTES_MAX`], to which the master cuts it, so that a
/// long name is cut and not an offence.
pub const NAME_ON_WIRE_BYTES_MAX: usize = 4 * NAME_BYTES_MAX;

/// Bytes of any other text on the wire: reasons, and calls that someone waits in.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;

/// Epochs that a returning peer may tell of: one that is open and one that is proposed.
pub const EPOCHS_IN_RESUME_MAX: usize = 2;

/// Pairs of one group without a link.
pub const MISSING_PAIRS_MAX: usize = WORLD_MAX * (WORLD_MAX - 1) / 2;

/// Operations that a returning member tells of: those in flight come first, then outcomes by tag.
pub const OPS_IN_RESUME_MAX: usize = 65_536;

/// Operations in a resume beyond which the causes of aborted ones are not told.
pub const CAUSES_IN_RESUME_MAX: usize = 2048;

/// Connections on which the master fell silent that a peer keeps until it finds the master again.
pub const STALE_CONNECTIONS_MAX: usize = 2;
