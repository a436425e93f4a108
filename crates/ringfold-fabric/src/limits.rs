//! Every bound of this crate in one place.

use core::time::Duration;

/// How long a handshake may take, from the first byte to the last.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// How long a TCP connection to one address may take to be made.
pub const CONNECT_MAX: Duration = Duration::from_secs(3);

/// How long a QUIC connection may take to be made, in addition to five round trips. Then the link uses TCP.
pub const QUIC_CONNECT_MAX: Duration = Duration::from_millis(1500);

/// Links with shorter round trips use TCP: there it fills the pipe, and needs less processor time.
pub const QUIC_ROUND_TRIP_MIN: Duration = Duration::from_millis(3);

/// Connections that may be in their handshake at once, at one listener, by default; see [`handshakes_max`].
pub const HANDSHAKES_MAX: usize = 1024;

/// The same for a process with few descriptors.
pub const HANDSHAKES_MIN: usize = 64;

/// Connections that may be in their handshake at once, at a listener of this process: a quarter of its descriptors, within
/// the limits above. If there are more, those of the address with the most of them are dropped.
pub fn handshakes_max() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = descriptors.map_or(HANDSHAKES_MAX, |all| usize::try_from(all / 4).unwrap_or(HANDSHAKES_MAX));
    share.clamp(HANDSHAKES_MIN, HANDSHAKES_MAX)
}

/// Where too many handshakes are in progress, one of so many is dropped at once if they have not begun.
pub(crate) const CROWD_SHARE: usize = 16;

/// The same for those that have begun.
pub(crate) const CROWD_SHARE_BEGUN: usize = 64;

/// How long a handshake that has begun may take where too many are in progress and its address has most of them.
pub const CROWDING_MAX: Duration = Duration::from_millis(100);

/// The time in which encrypted sessions that were begun in vain are counted, for each address. One that has had
/// [`handshakes_max`] of them is not accepted for the rest of it.
pub const WASTED_PERIOD: Duration = Duration::from_secs(1);

/// How long nothing is accepted after the process ran out of file descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that may be closing at once; beyond that the oldest is cut.
pub const CLOSING_MAX: usize = 256;

/// A wait on the shared-memory board that takes longer is reported to the group.
pub const LONG_WAIT: Duration = Duration::from_millis(250);

/// How long the host at the other end of a connection may answer nothing, by default.
pub(crate) const UNREACHABLE_AFTER: Duration = Duration::from_secs(15);

/// The shortest such time; the kernel counts keepalive in whole seconds.
pub(crate) const UNREACHABLE_AFTER_MIN: Duration = Duration::from_secs(3);

/// Checks of a connection within that time.
pub(crate) const HEALTH_CHECKS: u32 = 16;

/// Connections that may wait in a listener's backlog; the system may allow fewer.
pub const BACKLOG: i32 = 4096;

/// Connections that are taken from a listener in one turn.
pub const ACCEPTS_PER_TURN: usize = 32;

/// Streams that a link may have.
pub const STREAMS_MAX: u16 = 64;

/// Frames are given to a stream of several while fewer bytes are queued on it.
pub const STREAM_BYTES: usize = 1 << 20;

/// The same on a long path. There the system, too, takes no more than this before it can send it: what is given to a slow stream
/// cannot go by a faster one.
pub const LONG_STREAM_BYTES: usize = 128 * 1024;

/// Early frames of a link, per stream.
pub const EARLY_FRAMES_PER_STREAM_MAX: usize = 64;

/// Bytes of messages and heads that may be queued on one socket. Payloads wait in the memory of their owners, and do not count:
/// their puts end when they have left.
pub const QUEUED_BYTES_MAX: usize = 256 << 20;

/// Pieces that one write takes at most.
pub const PIECES_PER_WRITE: usize = 32;

/// How often a thread that spins looks at the expected socket itself before it also asks the poller.
pub const LOOKS_PER_POLL: u32 = 16;

/// Arrivals of one link that are delivered before other links are read.
pub const ARRIVALS_PER_TURN: usize = 64;

/// Bytes of unused slot memory that are kept.
pub const SPARE_SLOT_BYTES_MAX: usize = 64 << 20;

/// How long closing a connection may take.
pub const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// The pause between two attempts to make a link.
pub const REDIAL_PAUSE: Duration = Duration::from_millis(25);

/// How long the side that has to dial may take before the other side dials, too.
pub const DIAL_HEAD_START: Duration = Duration::from_millis(300);

/// How long two members try to reach each other before they meet at a relay: long enough for a lost packet of the direct
/// attempts to be sent again.
pub const RELAY_HEAD_START: Duration = Duration::from_millis(1500);

/// How long a relay is tried alone.
pub const RELAY_NEXT_AFTER: Duration = Duration::from_millis(700);

/// How long a member that dials waits at a relay for the other member.
pub const RELAY_DIAL_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long a connection that stands by waits at a relay. Then it is made anew.
pub const RELAY_STAND_BY_MAX: Duration = Duration::from_secs(60);

/// The shortest pause before a lost connection to a relay is made again.
pub const RELAY_RETRY_MIN: Duration = Duration::from_millis(50);

/// The longest such pause.
pub const RELAY_RETRY_MAX: Duration = Duration::from_secs(1);

/// Connections that wait at one relay.
pub const RELAY_WAITING_MAX: usize = 4096;

/// Of them, those of one member.
pub const RELAY_WAITING_PER_MEMBER_MAX: usize = 256;

/// Of them, those of one pair in one direction. Beyond that the oldest is closed.
pub const RELAY_WAITING_PER_PAIR_MAX: usize = 4;

/// Pairs that one relay joins at the same time.
pub const RELAY_PAIRS_MAX: usize = 1024;

/// How long one end of a joined pair may stay open after the other has closed.
pub const RELAY_HALF_CLOSED_MAX: Duration = Duration::from_secs(5);

/// Reads from one end of a joined pair before other pairs get their turn.
pub const RELAY_READS_PER_TURN: usize = 16;

/// How long one direction of a probe is measured at most, from the first byte that arrives.
pub const PROBE_MEASURE_MAX: Duration = Duration::from_millis(400);

/// How long one direction of a probe is measured at least.
pub const PROBE_MEASURE_MIN: Duration = Duration::from_millis(80);

/// The same on a long path by QUIC, in round trips.
pub const PROBE_ROUND_TRIPS_MIN: u32 = 6;

/// Most round trips of one direction of a probe on a long path.
pub const PROBE_ROUND_TRIPS_MAX: u32 = 10;

/// Most time of one direction of a probe on a long path.
pub const PROBE_MEASURE_LONG_MAX: Duration = Duration::from_millis(1600);

/// How long one direction of a probe may take, round trip included.
pub const PROBE_DIRECTION_MAX: Duration = Duration::from_millis(2700);

/// The second direction of a probe on a long path begins when nothing has arrived for this long: acknowledgements that wait in
/// a queue look like a path that is full.
pub const PROBE_QUIET: Duration = Duration::from_millis(30);

/// It does not wait longer than this.
pub const PROBE_QUIET_MAX: Duration = Duration::from_millis(400);

/// Bytes that a probe sends in one direction at most.
pub const PROBE_BYTES_MAX: u64 = 1 << 33;

/// Payload bytes of one frame of a channel; an abort waits for the frame that has begun.
pub const CHANNEL_FRAME_BYTES_MAX: usize = 256 * 1024;

/// Puts and signals that may be queued on one connection.
pub const CHANNEL_JOBS_MAX: usize = 65_536;

/// Channels of one connection on which signals may wait.
pub const CHANNELS_MAX: usize = 4096;

/// Bytes of the reason of an abort.
pub const ABORT_REASON_BYTES_MAX: usize = 1024;

/// Bytes that one turn of a connection moves in each direction before other connections get theirs.
pub const CHANNEL_TURN_BYTES: usize = 4 << 20;

/// Unsent bytes in the system's buffers of a connection, which an abort has to wait for.
pub const UNSENT_BYTES_MAX: u32 = 512 * 1024;

/// How long the background thread of an endpoint pauses after a caller has waited.
pub const PROGRESS_GRACE: Duration = Duration::from_millis(1);

/// Bytes of the largest segment of shared memory.
pub const SEGMENT_BYTES_MAX: usize = 1 << 40;

/// Bytes of the largest arena.
pub const ARENA_BYTES_MAX: usize = 4 << 30;

/// Bytes of the ring of records, in each direction of a link through memory.
pub const SHARED_RING_BYTES: usize = 64 * 1024;

/// Payloads up to this size lie in the record itself.
pub const SHARED_INLINE_BYTES_MAX: usize = 1024;

/// Larger payloads are put into adjacent cells of this size.
pub const SHARED_CELL_BYTES: usize = 32 * 1024;

/// Cells in each direction of a link through memory; one bit each of a word.
pub const SHARED_CELLS: usize = 64;

/// Payloads may stay in the first so many cells. From the others they are copied at once, so that there is always room
/// for the next one.
pub const SHARED_CELLS_HELD_MAX: usize = 48;

/// Reads of input that is discarded, between two looks at the deadline of closing.
pub const READS_PER_CLOSE: usize = 64;

/// How often a link that is being closed is polled.
pub const FAREWELL_PAUSE: Duration = Duration::from_micros(200);

/// The longest that a reactor sleeps when nothing is due.
pub const IDLE_MAX: Duration = Duration::from_secs(10);

/// How often a reactor's background thread checks whether callers still wait.
pub const STAND_BY: Duration = Duration::from_millis(10);
