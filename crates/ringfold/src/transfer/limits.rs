//! Every bound of the transfer.

use core::time::Duration;

/// Bytes of one request.
pub(super) const REQUEST_BYTES_MAX: usize = 4096;

/// Sources that are fetched from at once; others stand by.
pub(super) const SOURCES_MAX: usize = 8;

/// Bytes of a part: what is asked for at a time. A slow source holds up the end by one part at most.
pub(super) const PART_BYTES_MAX: usize = 1 << 20;

/// The least bytes of a part, however many sources there are.
pub(super) const PART_BYTES_MIN: usize = 256 << 10;

/// Bytes that a source may owe at most, and however slow it is.
pub(super) const OWED_BYTES_MAX: u64 = 32 << 20;
pub(super) const OWED_BYTES_MIN: u64 = 2 << 20;

/// Bytes that a source may owe of which nothing has arrived yet.
pub(super) const OWED_BYTES_FIRST: u64 = 4 << 20;

/// A source may owe what it delivers in this time and two round trips.
pub(super) const OWED_TIME: Duration = Duration::from_millis(200);

/// The rate of a source is that of about this time.
pub(super) const PACE_MEMORY: Duration = Duration::from_secs(1);

/// Bytes of requests that a source may owe the answers of. They fit into any socket's buffers, so that two ends
/// never wait for each other to read.
pub(super) const REQUESTS_OWED_BYTES_MAX: usize = 32 << 10;

/// Bytes that are read or written at a time: few enough to be still in the cache when they are hashed.
pub(super) const STRIDE_BYTES: usize = 256 << 10;

/// How long a source may take to be connected with.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(8);

/// How long a source may owe something without sending a byte.
pub(super) const STALL_MAX: Duration = Duration::from_secs(5);

/// How long a fetcher may not take what it asked for.
pub(super) const UNREAD_MAX: Duration = Duration::from_secs(10);

/// How long a fetcher may ask for nothing.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(120);

/// How long a fetcher waits here for our own assignment, which the master may have sent it before us.
pub(super) const ASSIGNMENT_WAIT_MAX: Duration = Duration::from_secs(30);

/// Times in a row that a source may fail without having sent a leaf.
pub(super) const STRIKES_MAX: u32 = 4;

/// The pause after the first failure; it doubles.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How long a part may take at least before an idle worker takes it from its source.
pub(super) const STRAGGLE_MIN: Duration = Duration::from_secs(1);

/// How many times longer than the idle worker's own source it may then take.
pub(super) const STRAGGLE_FACTOR: u32 = 2;

/// And by how much longer.
pub(super) const STRAGGLE_MARGIN: Duration = Duration::from_millis(250);

/// How often an idle worker looks for such parts.
pub(super) const STRAGGLE_LOOK: Duration = Duration::from_millis(100);

/// Fetchers that are served at once.
pub(super) const SERVED_MAX: usize = ringfold_proto::limits::WORLD_MAX;
