//! A thread that gives memory back to the driver.
//!
//! The driver may not free memory, or close another process's, before every kernel of the process has ended, and others of
//! its calls wait meanwhile. Whoever lets go of memory may be the one that a kernel waits for, or may hold a lock that it
//! needs. So nobody does that himself, and nothing is given back while a connection is open: what is written over it may be
//! what a kernel waits for.

use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::LazyLock;

/// How much is kept for connections that are open. Beyond, the oldest is given back, though somebody may have to wait.
const KEPT_MAX: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// What is to be given back.
#[derive(Default)]
struct Yard {
    heap: Mutex<Heap>,
    change: Condvar,
}

#[derive(Default)]
struct Heap {
    jobs: VecDeque<Job>,
    /// How many connections are open.
    holds: usize,
}

static YARD: LazyLock<Yard> = LazyLock::new(Yard::default);

/// Whether there is a thread.
static STARTED: LazyLock<bool> = LazyLock::new(|| {
    let work = || loop {
        (YARD.next())();
    };
    std::thread::Builder::new().name("ringfold-cleaner".into()).spawn(work).is_ok()
});

/// Whether the process ends.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Has something done that may take until all kernels have ended. What is handed over in one order is done in it.
pub(crate) fn leave_to_cleaner(job: impl FnOnce() + Send + 'static) {
    if ENDS.load(Ordering::Relaxed) {
        // The system takes all memory back soon, and the driver may be gone before.
        core::mem::forget(job);
    } else if *STARTED {
        YARD.push(Box::new(job));
    } else {
        job();
    }
}

/// From now on nothing is cleaned up any more: the process ends.
pub(crate) fn stop_cleaning() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Nothing is given back as long as there is one of these.
pub(crate) struct Hold(&'static Yard);

impl Hold {
    pub(crate) fn new() -> Self {
        Self::on(&YARD)
    }

    fn on(yard: &'static Yard) -> Self {
        yard.heap.lock().holds += 1;
        Self(yard)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.heap.lock().holds -= 1;
        self.0.change.notify_all();
    }
}

impl Yard {
    fn push(&self, job: Job) {
        self.heap.lock().jobs.push_back(job);
        self.change.notify_all();
    }

    /// The oldest, when it may be done.
    fn next(&self) -> Job {
        let mut heap = self.heap.lock();
        loop {
            if let Some(job) = heap.next() {
                return job;
            }
            self.change.wait(&mut heap);
        }
    }
}

impl Heap {
    fn next(&mut self) -> Option<Job> {
        if self.holds > 0 && self.jobs.len() <= KEPT_MAX { None } else { self.jobs.pop_front() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
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

    #[test]
    fn nothing_is_given_back_while_a_connection_is_open_but_what_is_too_much() {
        let yard: &'static Yard = Box::leak(Box::default());
        let (told, heard) = channel();
        let next = || yard.heap.lock().next().map(|job| job());
        let (one, other) = (Hold::on(yard), Hold::on(yard));
        for number in 0..=KEPT_MAX {
            let told = told.clone();
            yard.push(Box::new(move || told.send(number).unwrap()));
        }
        assert!(next().is_some());
        assert_eq!(heard.try_recv(), Ok(0));
        assert!(next().is_none());
        drop(one);
        assert!(next().is_none());
        drop(other);
        while next().is_some() {}
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), (1..=KEPT_MAX).collect::<Vec<_>>());
    }
}
