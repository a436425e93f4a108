//! Every bound of the master's driver in one place.

use core::time::Duration;
use ringfold_fabric::limits::HANDSHAKES_MAX;
use ringfold_proto::limits::WORLD_MAX;

/// Connections that have proven themselves: one for each peer, and some for those who come back on another
/// one or are about to be turned away.
pub(super) const LINES_MAX: usize = WORLD_MAX + HANDSHAKES_MAX;

/// How long a connection that has proven itself may take to say who it is, where silence is borne longer.
pub(super) const INTRODUCTION_MAX: Duration = Duration::from_secs(10);

/// Messages of one connection that are handled before others get their turn.
pub(super) const MESSAGES_PER_TURN: usize = 64;

/// Bytes of incomplete messages that all connections may hold together.
pub(super) const HELD_BYTES_MAX: usize = 1 << 30;

/// The longest sleep; whatever matters ends it earlier.
pub(super) const SLEEP_MAX: Duration = Duration::from_secs(60);

/// How long a ring is sought before the first answer, unless the machine waits less.
pub(super) const TOUR_FIRST_MAX: Duration = Duration::from_millis(500);

/// How long a better ring is sought after that.
pub(super) const TOUR_IMPROVE_MAX: Duration = Duration::from_secs(10);

/// Better rings are told this often at most.
pub(super) const TOUR_REPORT_PAUSE: Duration = Duration::from_secs(1);

/// Groups whose last ring is remembered.
pub(super) const TOURS_REMEMBERED_MAX: usize = 64;
