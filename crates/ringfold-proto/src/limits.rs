//! All limits of this crate.

use core::time::Duration;

/// Members of one group, and peers of one run.
pub const WORLD_MAX: usize = 1024;

/// Ranks of a replica.
pub const REPLICA_RANKS_MAX: u32 = WORLD_MAX as u32;

/// Relays of an epoch.
pub const RELAYS_MAX: usize = 4;

/// Masters of a run.
pub const MASTERS_MAX: usize = 9;

/// Electorates that may be in force at the same time: one, two while the members change, and another one for each takeover
/// that does not come to an end.
pub const ELECTORATES_MAX: usize = 16;

/// Bytes of elements in one data frame. An abort takes effect after a frame.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;

/// Payload bytes of one data frame: a chunk and the parameters of its quantization.
pub const PAYLOAD_BYTES_MAX: usize = CHUNK_BYTES_MAX + 64;

/// The highest expected rate of a link, 10 Gbit/s. Windows are sized for it.
pub const LINK_BYTES_PER_US: u32 = 1250;

/// Round trips from here on are long: hops cost more than bytes, and grants are worth avoiding.
pub const LONG_ROUND_TRIP: Duration = Duration::from_millis(3);

/// The assumed cost of 1024 bytes on a link with a long round trip: 1 Gbit/s.
pub const LONG_LINK_NS_PER_KIB: u32 = 8192;

/// Slots granted to one operation per sender.
pub const WINDOW_SLOTS_MAX: u16 = 512;

/// Slots per pair and epoch that need no grant.
pub const EAGER_SLOTS_MAX: u16 = 64;

/// From so many eager slots on, half of them may be on their way back when an operation begins.
pub const EAGER_SLOTS_MANY: usize = 16;

/// As many full chunks as this part of the window may be in eager slots, if there are many.
pub const EAGER_PARTS_OF_WINDOW: usize = 4;

/// All slots per pair and epoch.
pub const SLOTS_MAX: u16 = 16_384;

/// Fewest bytes of a slot of a shared-memory board.
pub const BOARD_SLOT_BYTES_MIN: u32 = 4096;
/// Most bytes of a slot of a shared-memory board.
pub const BOARD_SLOT_BYTES_MAX: u32 = 16 << 20;
/// The step of these sizes: a cache line.
pub const BOARD_SLOT_BYTES_STEP: u32 = 64;

/// Fewest slots of a rank on a board.
pub const BOARD_DEPTH_MIN: u16 = 4;
/// Most slots of a rank on a board.
pub const BOARD_DEPTH_MAX: u16 = 256;

/// Most nanoseconds of a cost in the tuning.
pub const COST_NS_MAX: u32 = 1_000_000_000;

/// Operations of one peer in flight at once.
pub const OPS_IN_FLIGHT_MAX: usize = 1024;

/// Bytes of one control message.
pub const CONTROL_BYTES_MAX: usize = 12 << 20;

/// Bytes of one message on a data connection.
pub const LINK_MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// The longest record by which a member offers device memory to others.
pub const MEMORY_OFFER_BYTES_MAX: usize = 1024;

/// Unacknowledged messages of a session. A peer that falls further behind is evicted.
pub const OUTBOX_MAX: usize = 16_384;

/// Bytes of unacknowledged messages of a session.
pub const OUTBOX_BYTES_MAX: usize = 64 << 20;

/// A peer acknowledges after this many messages, also between its heartbeats, so that the outbox of the master does not
/// fill up.
pub const ACKNOWLEDGE_EVERY: u64 = OUTBOX_MAX as u64 / 16;

/// Bytes of a peer's name.
pub const NAME_BYTES_MAX: usize = 128;

/// Listening addresses of a peer.
pub const ADDRESSES_MAX: usize = 8;

/// Runs of cores that a peer may use; it leaves out further ones.
pub const CORE_RUNS_MAX: usize = 64;

/// Entries of a shared state.
pub const STATE_ENTRIES_MAX: usize = 32_768;

/// Bytes of a shared state's key.
pub const STATE_KEY_BYTES_MAX: usize = 256;

/// Worlds up to this size have links between all pairs; larger ones only along the ring.
pub const MESH_WORLD_MAX: usize = 16;

/// Operations that an epoch resumes.
pub const RESUMED_OPS_MAX: usize = 64;

/// Plans are chosen for newer measurements if operations get faster by more than this.
pub const REPLAN_GAIN_PERCENT: u32 = 15;

/// Tags of an epoch that newer measurements are used for.
pub const REPLANNED_TAGS_MAX: usize = 256;

/// Names that an error lists.
pub const NAMES_IN_ERROR_MAX: usize = 8;

/// The status of a run as text.
pub const STATUS_BYTES_MAX: usize = 8 << 20;

/// A peer that was heard in this time is alive, as texts say.
pub const HEARD_LATELY_MS: u32 = 2_000;

/// Distinct tags of one epoch; then another epoch opens. All must fit into a resume ([`OPS_IN_RESUME_MAX`]).
pub const TAGS_PER_EPOCH_MAX: usize = 1 << 15;

/// Peer groups of a run: those with members, and those whose state may be resumed.
pub const GROUPS_MAX: usize = 4096;

/// Highest counter in a resume: more than any run can reach.
pub const COUNTER_MAX: u64 = 1 << 48;

/// Outcomes per tag that a peer remembers since the last committed one.
pub const OUTCOMES_REMEMBERED_MAX: usize = 64;

/// Steps of the master's phases after one input. Each step ends, opens or starts something, so the real limit is the
/// number of peers and operations.
pub const ADVANCE_STEPS_MAX: usize = 1 << 20;

/// Bytes of memory for the lists of one decoded control message. Elements may be larger in memory than on the wire, so
/// without this limit a small frame could become a large message. While a list grows, its old and new memory exist
/// together: decoding takes at most three times this, and the bytes of the frame for its texts.
pub const CONTROL_DECODED_BYTES_MAX: usize = 4 * CONTROL_BYTES_MAX;

/// The same for a message on a data connection.
pub const LINK_MESSAGE_DECODED_BYTES_MAX: usize = 2 * LINK_MESSAGE_BYTES_MAX;

/// Bytes of a buffer that a connection keeps between frames.
pub const FRAME_BUFFER_KEPT_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a name on the wire. The master truncates longer names than [`NAME_BYTES_MAX`].
pub const NAME_ON_WIRE_BYTES_MAX: usize = 4 * NAME_BYTES_MAX;

/// Bytes of other texts on the wire: reasons and calls.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;

/// Epochs in a resume: the open and the proposed one.
pub const EPOCHS_IN_RESUME_MAX: usize = 2;

/// Pairs of one group without a link.
pub const MISSING_PAIRS_MAX: usize = WORLD_MAX * (WORLD_MAX - 1) / 2;

/// Operations in a resume: those in flight first, then outcomes by tag.
pub const OPS_IN_RESUME_MAX: usize = 65_536;

/// Operations in a resume beyond which the causes of aborts are omitted.
pub const CAUSES_IN_RESUME_MAX: usize = 2048;

/// Bytes of a master's signature.
pub const SIGNATURE_BYTES_MAX: usize = 128;

/// Masters whose certificates are in a resume. A master that restores a run signs everything again, so more are not needed.
pub const CHAINS_IN_RESUME_MAX: usize = 4;

/// Certificates of one master in a resume.
pub const CERTIFICATES_IN_CHAIN_MAX: usize = 4;

/// Bytes of one certificate in a resume.
pub const CERTIFICATE_BYTES_MAX: usize = 4096;

/// Bytes that a doctor sends or gets back in one echo.
pub const ECHO_BYTES_MAX: usize = 64 * 1024;

/// Bytes of one message of a doctor: all findings of a peer.
pub const DOCTOR_BYTES_MAX: usize = 256 * 1024;

/// Findings in one message.
pub const FINDINGS_MAX: usize = 64;

/// Bytes of each text of a finding.
pub const FINDING_TEXT_BYTES_MAX: usize = 1024;

/// Connections to a silent master that a peer keeps open until it has reconnected.
pub const STALE_CONNECTIONS_MAX: usize = 2;

/// Bytes of a line of a flight recorder, with its end.
pub const FLIGHT_LINE_BYTES_MAX: usize = 16 << 10;

/// Bytes of a flight recorder.
pub const FLIGHT_BYTES_MAX: u64 = 1 << 30;
