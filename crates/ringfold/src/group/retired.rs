//! Retired groups: they accept no more operations, and leave when those in flight have ended.

use super::core::Core;
use crate::limits;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Retired groups that have not left yet.
static RETIRED: Mutex<Vec<Arc<Core>>> = Mutex::new(Vec::new());

/// Signalled when one of them has left.
static LEFT: Condvar = Condvar::new();

/// Waits until all [retired](crate::Group::retire) groups of this process have left.
///
/// To be called before the program exits. Groups that have not left by the timeout are closed, which the other ranks see as a failure. Returns their number.
pub fn finish_retired(timeout: Duration) -> usize {
    let until = limits::deadline_after(timeout);
    // In a forked child the lock may be held by a thread that does not exist there.
    let Some(mut retired) = RETIRED.try_lock_until(until) else { return 0 };
    while retired.iter().any(|core| !core.engine().is_of_parent()) {
        if LEFT.wait_until(&mut retired, until).timed_out() {
            break;
        }
    }
    let late: Vec<_> = retired.iter().filter(|core| !core.engine().is_of_parent()).cloned().collect();
    drop(retired);
    late.iter().for_each(|core| core.close());
    late.len()
}

pub(super) fn add(core: &Arc<Core>) {
    RETIRED.lock().push(core.clone());
}

pub(super) fn remove(core: &Arc<Core>) {
    RETIRED.lock().retain(|other| !Arc::ptr_eq(other, core));
    LEFT.notify_all();
}

/// Waits until a group has left, with a timeout.
pub(super) fn await_end(core: &Arc<Core>, timeout: Duration) {
    let until = Instant::now() + timeout;
    let mut retired = RETIRED.lock();
    while retired.iter().any(|other| Arc::ptr_eq(other, core)) {
        if LEFT.wait_until(&mut retired, until).timed_out() {
            break;
        }
    }
}
