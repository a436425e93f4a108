//! A thread that gives memory back to the driver.
//!
//! The driver may not free memory, or close another process's, before every kernel of the process has ended. Whoever lets
//! go of memory may be the one that a kernel waits for, or may hold a lock that it needs. So nobody does that himself.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

type Job = Box<dyn FnOnce() + Send>;

/// The way to the thread; none if there can't be one.
static QUEUE: LazyLock<Option<Sender<Job>>> = LazyLock::new(|| {
    let (queue, jobs) = channel::<Job>();
    let work = move || jobs.into_iter().for_each(|job| job());
    std::thread::Builder::new().name("ringfold-cleaner".into()).spawn(work).ok().map(|_| queue)
});

/// Whether the process ends.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Has something done that may take until all kernels have ended. What is handed over in one order is done in it.
pub(crate) fn leave_to_cleaner(job: impl FnOnce() + Send + 'static) {
    if ENDS.load(Ordering::Relaxed) {
        // The system takes all memory back soon, and the driver may be gone before.
        core::mem::forget(job);
        return;
    }
    let refused = match &*QUEUE {
        Some(queue) => queue.send(Box::new(job)).err().map(|refused| refused.0),
        None => Some(Box::new(job) as Job),
    };
    if let Some(job) = refused {
        job();
    }
}

/// From now on nothing is cleaned up any more: the process ends.
pub(crate) fn stop_cleaning() {
    ENDS.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn whoever_lets_go_of_something_does_not_wait_for_its_end() {
        let (go, gate) = channel::<()>();
        let (told, heard) = channel();
        let first = told.clone();
        leave_to_cleaner(move || {
            let _ = gate.recv_timeout(Duration::from_secs(10));
            let _ = first.send(1);
        });
        leave_to_cleaner(move || told.send(2).unwrap_or_default());
        assert!(heard.try_recv().is_err());
        go.send(()).unwrap();
        let order = [(); 2].map(|()| heard.recv_timeout(Duration::from_secs(10)).unwrap());
        assert_eq!(order, [1, 2]);
    }
}
