//! All limits of this crate.

use core::time::Duration;
use std::time::Instant;

/// Probes that a peer answers at the same time.
pub(crate) const PROBES_ANSWERED_MAX: usize = 8;

/// Examinations of a peer at the same time.
pub(crate) const EXAMINATIONS_MAX: usize = 2;

/// Time limit for connecting a probe: at least three round trips by TCP, and one more by QUIC.
pub(crate) const PROBE_CONNECT_MAX: Duration = Duration::from_millis(900);

/// The same, if the link to the peer goes through a relay.
pub(crate) const RELAYED_PROBE_CONNECT_MAX: Duration = Duration::from_millis(1000);

/// Time limit for establishing a link, after which the other end is reported as unreachable.
pub(crate) const LINK_MAX: Duration = Duration::from_secs(4);

/// A link that owes data is reported after this long without any. Longer than the time after which the master evicts
/// a silent peer: a peer that is silent on all its links is not a problem of one link.
pub(crate) const STALL_AFTER: Duration = Duration::from_secs(4);

/// After a blocking call the background thread leaves the sockets alone for this long. Most likely the next call
/// follows soon, and two threads that poll the same sockets wake each other for nothing.
pub(crate) const LINGER: Duration = Duration::from_millis(3);

/// The stack of a thread that stages an all-reduce. There may be many of these threads.
pub(crate) const STAGING_STACK_BYTES: usize = 512 << 10;

/// Default timeout of an operation of a group.
pub(crate) const OPERATION_MAX: Duration = Duration::from_secs(600);

/// Default time limit for forming a group.
pub(crate) const BOOTSTRAP_MAX: Duration = Duration::from_secs(300);

/// A waiting rank sends this many signs of life within the timeout of an operation.
pub(crate) const SIGNS_PER_TIMEOUT: u32 = 16;

/// The longest interval between two signs of life.
pub(crate) const SIGN_EVERY_MAX: Duration = Duration::from_millis(250);

/// A rank that has missed this many signs of life is the one that the others wait for.
pub(crate) const SIGNS_MISSED_MAX: u32 = 4;

/// How long after a failure its cause may arrive.
pub(crate) const FAULT_DELAY_MAX: Duration = Duration::from_millis(200);

/// The interval at which a failed call asks for the cause.
pub(crate) const FAULT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How long the ranks of a failed group may take to agree which results count.
pub(crate) const DECISION_MAX: Duration = Duration::from_millis(50);

/// How long retiring an idle group may block its caller.
pub(crate) const GOODBYE_MAX: Duration = Duration::from_millis(20);

/// Bytes of backup memory that a group that restores keeps for the next operation.
pub(crate) const SPARE_BYTES_MAX: usize = 256 << 20;

/// Time limit of the dialling rank for one attempt to connect two ranks' windows.
pub(crate) const WINDOW_DIAL_MAX: Duration = Duration::from_secs(10);

/// Time limit of the accepting rank for the same.
pub(crate) const WINDOW_ACCEPT_MAX: Duration = Duration::from_secs(15);

/// Bytes of user data that a rank may attach to its memory in a window.
pub(crate) const WINDOW_ABOUT_BYTES_MAX: usize = 512;

/// The end of a timeout; a timeout beyond the range of the clock ends in a year.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(365 * 86_400))
}

/// After how long the search for an active master is logged.
pub(crate) const WARN_SEARCH_AFTER: Duration = Duration::from_secs(5);

/// How long one of several masters may take to answer a dial, before the next one is dialled.
pub(crate) const ONE_MASTER_ANSWER_MAX: Duration = Duration::from_millis(1500);

/// How long a master may take to accept an observer.
pub(crate) const OBSERVER_CONNECT_MAX: Duration = Duration::from_secs(5);

/// The same while other masters of the list have not been asked: a frozen one delays a command little.
pub(crate) const OBSERVER_FIRST_ATTEMPT_MAX: Duration = Duration::from_millis(900);

/// How long it may take to answer one.
pub(crate) const OBSERVER_ANSWER_MAX: Duration = Duration::from_secs(10);
