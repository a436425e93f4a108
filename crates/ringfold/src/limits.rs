//! Every bound of this crate in one place.

use core::time::Duration;

/// Probes that a peer answers at the same time.
pub(crate) const PROBES_ANSWERED_MAX: usize = 8;

/// How long a probe may take to connect.
pub(crate) const PROBE_CONNECT_MAX: Duration = Duration::from_millis(500);

/// How long a link may take to be made, before its other end is reported as unreachable.
pub(crate) const LINK_MAX: Duration = Duration::from_secs(4);

/// After so long without a sign of life on a link that owes something, it is reported. Longer than the time after
/// which a silent peer is put out: whoever is silent everywhere is no trouble of one link.
pub(crate) const STALL_AFTER: Duration = Duration::from_secs(4);

/// After a blocking call the background thread leaves the sockets alone for so long: most likely the next call comes
/// soon, and two threads that watch the same sockets wake each other for nothing.
pub(crate) const LINGER: Duration = Duration::from_millis(3);

/// The stack of a thread that stages an all-reduce. There may be many of them, and they call nothing deep.
pub(crate) const STAGING_STACK_BYTES: usize = 512 << 10;

/// How long an operation of a group of fixed ranks may take, where nothing else is said or can be counted.
pub(crate) const OPERATION_MAX: Duration = Duration::from_secs(600);

/// How long a group of fixed ranks may take to form, where nothing else is said.
pub(crate) const MEETING_MAX: Duration = Duration::from_secs(300);

/// A rank of a group shows so many times within an operation's time that it waits...
pub(crate) const SIGNS_PER_TIMEOUT: u32 = 16;

/// ... and at least so often...
pub(crate) const SIGN_EVERY_MAX: Duration = Duration::from_millis(250);

/// ... and whoever has missed so many times to do so is the one that is waited for.
pub(crate) const SIGNS_MISSED_MAX: u32 = 4;

/// How long the reason of a failure may be behind the failure.
pub(crate) const FAULT_NEWS_MAX: Duration = Duration::from_millis(200);

/// How often it is asked for.
pub(crate) const FAULT_NEWS_PAUSE: Duration = Duration::from_millis(1);

/// How long ranks of a group that has failed may take to tell each other which results count.
pub(crate) const DECISION_NEWS_MAX: Duration = Duration::from_millis(50);

/// How long a group that is retired with nothing to do may keep its caller, to say goodbye.
pub(crate) const GOODBYE_MAX: Duration = Duration::from_millis(20);

/// Bytes that a group that restores keeps at hand for the next operation.
pub(crate) const SPARE_BYTES_MAX: usize = 256 << 20;

/// How long one attempt to connect two ranks' windows may take, for the one that dials...
pub(crate) const WINDOW_DIAL_MAX: Duration = Duration::from_secs(10);

/// ... and for the one that waits for it.
pub(crate) const WINDOW_VISIT_MAX: Duration = Duration::from_secs(15);

/// Bytes that a rank may tell the others about its memory.
pub(crate) const WINDOW_ABOUT_BYTES_MAX: usize = 512;
