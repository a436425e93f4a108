//! A thread that lets go of memory for others.
//!
//! The driver may not free memory, or close another process's, before every kernel of the process has ended, and others of
//! its calls wait meanwhile. While a connection is open, what is written over it may be what a kernel waits for, and whoever
//! lets go of memory may be the one that would write. So as long as there is one, others' memory is not closed, and
//! page-locked memory not freed; a thread does so when the last connection is gone.
//!
//! Without a connection, whoever lets go of memory gives it back himself, as the driver's users are used to: done by a thread
//! it would surprise the next kernel, which may wait for the host. So does, always, whoever lets go of memory of our own
//! devices ([`crate::GpuMemory`]).

use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::LazyLock;

/// How much is kept while connections are open, in pieces and in bytes. Beyond, the oldest is given back, though somebody
/// may have to wait.
const KEPT_MAX: usize = 256;
const KEPT_BYTES_MAX: usize = 1 << 30;

type Job = Box<dyn FnOnce() + Send>;

/// What is to be done.
#[derive(Default)]
struct Yard {
    heap: Mutex<Heap>,
    change: Condvar,
}

#[derive(Default)]
struct Heap {
    now: VecDeque<Job>,
    /// What goes back to the driver, and how many bytes that are.
    kept: VecDeque<(usize, Job)>,
    kept_bytes: usize,
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

/// Has something let go of, soon. What is handed over in one order is done in it.
pub(crate) fn leave_to_cleaner(job: impl FnOnce() + Send + 'static) {
    leave(job, |heap, job| {
        heap.now.push_back(job);
        None
    });
}

/// Has so many bytes given back to the driver, as soon as no connection is open: now, if there is none.
pub(crate) fn give_back(bytes: usize, job: impl FnOnce() + Send + 'static) {
    leave(job, |heap, job| heap.keep(bytes, job));
}

/// Leaves a job to the thread, or does it here if it comes back.
fn leave(job: impl FnOnce() + Send + 'static, put: impl FnOnce(&mut Heap, Job) -> Option<Job>) {
    if ENDS.load(Ordering::Relaxed) {
        // The system takes all memory back soon, and the driver may be gone before.
        core::mem::forget(job);
    } else if *STARTED {
        let back = put(&mut YARD.heap.lock(), Box::new(job));
        match back {
            Some(job) => job(),
            None => _ = YARD.change.notify_all(),
        }
    } else {
        job();
    }
}

/// From now on nothing is cleaned up any more: the process ends.
pub(crate) fn stop_cleaning() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Nothing is given back to the driver as long as there is one of these.
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
    /// What is to be done next, when there is something.
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
    /// Keeps a job while a connection is open; otherwise it comes back.
    fn keep(&mut self, bytes: usize, job: Job) -> Option<Job> {
        if self.holds == 0 {
            return Some(job);
        }
        self.kept_bytes += bytes;
        self.kept.push_back((bytes, job));
        None
    }

    fn next(&mut self) -> Option<Job> {
        if let Some(job) = self.now.pop_front() {
            return Some(job);
        }
        let is_too_much = self.kept.len() > KEPT_MAX || self.kept_bytes > KEPT_BYTES_MAX;
        if self.holds > 0 && !is_too_much {
            return None;
        }
        let (bytes, job) = self.kept.pop_front()?;
        self.kept_bytes -= bytes;
        Some(job)
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
        let job = |number: usize| {
            let told = told.clone();
            Box::new(move || told.send(number).unwrap())
        };
        let next = || yard.heap.lock().next().map(|job| job());
        let (one, other) = (Hold::on(yard), Hold::on(yard));
        for number in 0..=KEPT_MAX {
            assert!(yard.heap.lock().keep(1, job(number)).is_none());
        }
        yard.heap.lock().now.push_back(job(1000));
        while next().is_some() {}
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [1000, 0]);
        assert!(yard.heap.lock().keep(KEPT_BYTES_MAX - 10, job(2000)).is_none());
        drop(one);
        while next().is_some() {}
        // So many that the rest has no more bytes than may be kept.
        let given = heard.try_iter().collect::<Vec<_>>();
        assert_eq!(given, (1..=KEPT_MAX - 10).collect::<Vec<_>>());
        drop(other);
        while next().is_some() {}
        let rest = (KEPT_MAX - 9..=KEPT_MAX).chain([2000]).collect::<Vec<_>>();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), rest);
        assert_eq!(yard.heap.lock().kept_bytes, 0);
        assert!(yard.heap.lock().keep(1, job(3000)).is_some(), "whoever lets go of it gives it back");
    }
}
