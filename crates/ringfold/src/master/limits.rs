//! All limits of the master's driver.

use core::time::Duration;
use ringfold_proto::limits::{MASTERS_MAX, WORLD_MAX};

/// Authenticated connections: one per peer, and some for peers that reconnect or are about to be rejected.
pub(super) const CONNECTIONS_MAX: usize = WORLD_MAX + 256;

/// How long an authenticated connection may take to send `Join` or `Resume`.
pub(super) const JOIN_MAX: Duration = Duration::from_secs(10);

/// Messages of one connection that are handled before those of others.
pub(super) const MESSAGES_PER_TURN: usize = 64;

/// The part of this process's memory that peers may make the master keep, all together: incomplete messages, what they reported
/// and have not acknowledged, and what they do not read. In memory it may take twice as much.
pub(super) const MEMORY_SHARE: u64 = 4;

/// The least and the most such bytes.
pub(super) const HELD_BYTES: (u64, u64) = (64 << 20, 4 << 30);

/// After this part of it has arrived or was queued, the master looks how much it keeps.
pub(super) const HELD_LOOKS: usize = 16;

/// A peer with more queued bytes is not told why it is dismissed.
pub(super) const FAREWELL_BYTES_MAX: usize = 64 << 10;

/// The longest sleep without an event.
pub(super) const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Search time before the first answer, unless the machine waits less.
pub(super) const TOUR_FIRST_MAX: Duration = Duration::from_millis(500);

/// Search time for a better ring after that.
pub(super) const TOUR_IMPROVE_MAX: Duration = Duration::from_secs(10);

/// The shortest interval between two reports of better rings.
pub(super) const TOUR_REPORT_PAUSE: Duration = Duration::from_secs(1);

/// The number of groups whose last ring is remembered.
pub(super) const TOURS_REMEMBERED_MAX: usize = 64;

/// Connections of other masters: one each, and some that replace lost ones.
pub(super) const MASTER_CONNECTIONS_MAX: usize = 4 * MASTERS_MAX;

/// Connections of observers. If there are more, those of the address with the most of them give way.
pub(super) const OBSERVERS_MAX: usize = 64;

/// Connections of operators, in the same way.
pub(super) const OPERATORS_MAX: usize = 16;

/// Refused connections of one source that are logged one by one, in [`REFUSED_PERIOD`]. The others are counted.
pub(super) const REFUSALS_LOGGED_MAX: u64 = 4;

/// The period after which the count is logged.
pub(super) const REFUSED_PERIOD: Duration = Duration::from_secs(60);

/// Sources of refused connections that are told apart.
pub(super) const REFUSED_SOURCES_MAX: usize = 32;

/// How long an observer may ask nothing.
pub(super) const OBSERVER_IDLE_MAX: Duration = Duration::from_secs(60);

/// How long another master may take to answer a dial.
pub(super) const MASTER_ANSWER_MAX: Duration = Duration::from_millis(1500);

/// The pause between two attempts to dial another master.
pub(super) const MASTER_REDIAL: Duration = Duration::from_millis(200);

/// How often the certificates of connected peers are compared with a revocation list that may have changed.
pub(super) const CERTIFICATES_EVERY: Duration = Duration::from_secs(1);

/// Valid signatures that a master remembers: more than members return with together.
pub(super) const VERIFIED_MAX: usize = 1 << 16;
