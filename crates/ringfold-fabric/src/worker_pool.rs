//! Threads that do parts of the work of another thread, which waits for them.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A fixed number of threads. Between two works they spin for a moment, and then sleep.
///
/// ```
/// use ringfold_fabric::worker_pool::WorkerPool;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let pool = WorkerPool::start(3).unwrap();
/// let sum = AtomicUsize::new(0);
/// pool.run(&|part| {
///     sum.fetch_add(part, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 0 + 1 + 2);
/// ```
#[derive(Debug)]
pub struct WorkerPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The process that has the threads.
    process: u32,
    /// One work at a time.
    turn: Mutex<()>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is work, or the pool is closed.
    begun: Condvar,
    /// All workers have done their part.
    done: Condvar,
    /// The number of the newest work, for workers that spin.
    newest: AtomicU64,
    /// Workers that have not done their part of it.
    remaining: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    work: Option<Work>,
    is_closed: bool,
    has_panicked: bool,
}

/// A function of the thread that waits in [`WorkerPool::run`].
#[derive(Clone, Copy)]
struct Work(*const (dyn Fn(usize) + Sync));

// SAFETY: the function is `Sync`, so that other threads may call it, and it lives as long as they do that: see `run`.
unsafe impl Send for Work {}

impl core::fmt::Debug for Work {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Work")
    }
}

/// Looks at the other threads before a thread sleeps. The parts of a work take some microseconds.
const LOOKS: u32 = 4000;

impl WorkerPool {
    /// Starts so many threads less one: the thread that calls [`run`](Self::run) does a part, too.
    pub fn start(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            begun: Condvar::new(),
            done: Condvar::new(),
            newest: AtomicU64::new(0),
            remaining: AtomicUsize::new(0),
        });
        let mut pool =
            Self { shared, workers: Vec::new(), process: std::process::id(), turn: Mutex::default() };
        for part in 1..threads {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new().name("ringfold-worker".into());
            // If one cannot be started, the pool is dropped with the others.
            pool.workers.push(thread.spawn(move || shared.work(part))?);
        }
        Ok(pool)
    }

    /// The number of parts of a work.
    pub fn parts(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls the function once per part, on all threads at the same time, and waits for all. In a forked child, which does not
    /// have the threads, this thread does all parts.
    ///
    /// # Panics
    /// If the function panics, on any thread.
    pub fn run(&self, function: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || self.process != std::process::id() {
            return (0..self.parts()).for_each(function);
        }
        let _turn = self.turn.lock();
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The function is called until `remaining` is 0, for which this function waits
        // before it returns, also if it unwinds.
        let erased = unsafe {
            core::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(
                function,
            )
        };
        shared.remaining.store(self.workers.len(), Ordering::Relaxed);
        let mut state = shared.state.lock();
        state.work = Some(Work(erased));
        shared.newest.fetch_add(1, Ordering::Release);
        drop(state);
        shared.begun.notify_all();
        let end = WaitForWorkers(shared);
        function(0);
        drop(end);
        let has_panicked = core::mem::take(&mut shared.state.lock().has_panicked);
        assert!(!has_panicked, "a part of the work panicked on another thread");
    }
}

/// Waits for all workers when it is dropped.
struct WaitForWorkers<'a>(&'a Shared);

impl Drop for WaitForWorkers<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        let is_done = || shared.remaining.load(Ordering::Acquire) == 0;
        for _ in 0..LOOKS {
            if is_done() {
                break;
            }
            core::hint::spin_loop();
        }
        let mut state = shared.state.lock();
        while !is_done() {
            shared.done.wait(&mut state);
        }
        state.work = None;
    }
}

impl Shared {
    /// Does its part of each work until the pool is closed.
    fn work(&self, part: usize) {
        let mut seen = 0;
        while let Some(Work(function)) = self.next(&mut seen) {
            // SAFETY: the thread in `run` keeps the function until this worker has done its part.
            let call = AssertUnwindSafe(|| unsafe { (*function)(part) });
            let has_panicked = catch_unwind(call).is_err();
            if has_panicked {
                self.state.lock().has_panicked = true;
            }
            if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                // Under the lock, so that the other thread does not miss it between its check and its wait.
                let _state = self.state.lock();
                self.done.notify_one();
            }
        }
    }

    /// Waits for work that it has not seen; none if the pool is closed.
    fn next(&self, seen: &mut u64) -> Option<Work> {
        for _ in 0..LOOKS {
            if self.newest.load(Ordering::Acquire) != *seen {
                break;
            }
            core::hint::spin_loop();
        }
        let mut state = self.state.lock();
        loop {
            let newest = self.newest.load(Ordering::Acquire);
            if newest != *seen {
                *seen = newest;
                return state.work;
            }
            if state.is_closed {
                return None;
            }
            self.begun.wait(&mut state);
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The threads are in the parent.
            core::mem::take(&mut self.workers).into_iter().for_each(core::mem::forget);
            return;
        }
        self.shared.state.lock().is_closed = true;
        self.shared.begun.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_done_once_in_each_of_many_works() {
        let pool = WorkerPool::start(4).unwrap();
        let counts: [AtomicUsize; 4] = Default::default();
        for round in 0..200 {
            // Workers that spin, and workers that sleep.
            if round % 50 == 0 {
                std::thread::sleep(core::time::Duration::from_millis(5));
            }
            pool.run(&|part| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == round + 1));
        }
    }

    #[test]
    fn a_panic_on_any_thread_is_one_of_the_caller_and_the_pool_goes_on() {
        let pool = WorkerPool::start(2).unwrap();
        for guilty in 0..2 {
            let run = || pool.run(&|part| assert!(part != guilty, "wanted"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        }
        pool.run(&|_| {});
    }

    #[test]
    fn one_thread_needs_no_other() {
        let pool = WorkerPool::start(1).unwrap();
        let calls = AtomicUsize::new(0);
        pool.run(&|part| {
            calls.fetch_add(part + 1, Ordering::Relaxed);
        });
        assert_eq!((pool.parts(), calls.into_inner()), (1, 1));
    }
}
