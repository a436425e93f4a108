//! Groups that were retired: they take nothing more, and leave when what was begun has ended.

use super::core::Core;
use crate::limits;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Those that have not left yet.
static RETIRED: Mutex<Vec<Arc<Core>>> = Mutex::new(Vec::new());

/// One of them has left.
static LEFT: Condvar = Condvar::new();

/// Waits until all groups of this process that were [retired](crate::Group::retire) have left. Those that have not left
/// by then are given up, which the others hear; says how many that were. For the end of a program: threads end with it.
pub fn finish_retired(patience: Duration) -> usize {
    let until = Instant::now().checked_add(patience).unwrap_or(Instant::now() + limits::OPERATION_MAX);
    // A forked child may have been made while another thread held the lock; it has nothing to wait for.
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

/// It has something to do yet.
pub(super) fn add(core: &Arc<Core>) {
    RETIRED.lock().push(core.clone());
}

/// It has left.
pub(super) fn remove(core: &Arc<Core>) {
    RETIRED.lock().retain(|other| !Arc::ptr_eq(other, core));
    LEFT.notify_all();
}

/// Waits until it has left, but not for long.
pub(super) fn await_end(core: &Arc<Core>, patience: Duration) {
    let until = Instant::now() + patience;
    let mut retired = RETIRED.lock();
    while retired.iter().any(|other| Arc::ptr_eq(other, core)) {
        if LEFT.wait_until(&mut retired, until).timed_out() {
            break;
        }
    }
}
