//! A thread that releases memory on behalf of threads that must not block.
//!
//! The driver cannot free memory, or close another process's memory, before every running kernel of the process has
//! ended, and other driver calls wait meanwhile. A kernel may in turn wait for data that is written over an open
//! connection, possibly by the thread that releases the memory. So while a connection is open, IPC mappings are not
//! closed and page-locked memory is not freed; this thread releases them after the last connection has closed.
//!
//! Without an open connection the caller releases memory itself, as usual with CUDA: a background release could block
//! the next kernel launch. Memory allocated on our own devices ([`crate::GpuMemory`]) is always freed by the caller.

use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::LazyLock;

/// Bounds on what is deferred while connections are open. Beyond them the oldest is released, though that may block.
const DEFERRED_MAX: usize = 256;
const DEFERRED_BYTES_MAX: usize = 1 << 30;

type ReleaseFn = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct ReleaseQueue {
    pending: Mutex<Pending>,
    change: Condvar,
}

#[derive(Default)]
struct Pending {
    now: VecDeque<ReleaseFn>,
    /// Released when no connection is open; each with its number of bytes.
    deferred: VecDeque<(usize, ReleaseFn)>,
    deferred_bytes: usize,
    open_connections: usize,
}

static QUEUE: LazyLock<ReleaseQueue> = LazyLock::new(ReleaseQueue::default);

/// Whether the thread runs; starts it on first use.
static STARTED: LazyLock<bool> = LazyLock::new(|| {
    let work = || loop {
        (QUEUE.next())();
    };
    std::thread::Builder::new().name("ringfold-release".into()).spawn(work).is_ok()
});

static ENDS: AtomicBool = AtomicBool::new(false);

/// Runs `release` on the release thread, in the order of the calls.
pub fn release_soon(release: impl FnOnce() + Send + 'static) {
    submit(release, |pending, release| {
        pending.now.push_back(release);
        None
    });
}

/// Runs `release`, which frees `bytes`, now if no connection is open, otherwise when the last one has closed.
pub(crate) fn release_when_idle(bytes: usize, release: impl FnOnce() + Send + 'static) {
    submit(release, |pending, release| pending.defer(bytes, release));
}

/// Passes `release` to `put`, and runs it here if `put` returns it or there is no thread.
fn submit(
    release: impl FnOnce() + Send + 'static,
    put: impl FnOnce(&mut Pending, ReleaseFn) -> Option<ReleaseFn>,
) {
    if ENDS.load(Ordering::Relaxed) {
        // The system reclaims all memory soon, and the driver may be unloaded before.
        core::mem::forget(release);
    } else if *STARTED {
        let returned = put(&mut QUEUE.pending.lock(), Box::new(release));
        match returned {
            Some(release) => release(),
            None => _ = QUEUE.change.notify_all(),
        }
    } else {
        release();
    }
}

/// Releases nothing from now on: the process is ending.
pub(crate) fn stop_releasing() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Counts one open connection: releases are deferred while any exists.
pub(crate) struct ConnectionHold(&'static ReleaseQueue);

impl ConnectionHold {
    pub(crate) fn new() -> Self {
        Self::on(&QUEUE)
    }

    fn on(queue: &'static ReleaseQueue) -> Self {
        queue.pending.lock().open_connections += 1;
        Self(queue)
    }
}

impl Drop for ConnectionHold {
    fn drop(&mut self) {
        self.0.pending.lock().open_connections -= 1;
        self.0.change.notify_all();
    }
}

impl ReleaseQueue {
    /// Blocks until there is something to release.
    fn next(&self) -> ReleaseFn {
        let mut pending = self.pending.lock();
        loop {
            if let Some(release) = pending.next() {
                return release;
            }
            self.change.wait(&mut pending);
        }
    }
}

impl Pending {
    /// Defers a release while a connection is open; otherwise returns it.
    fn defer(&mut self, bytes: usize, release: ReleaseFn) -> Option<ReleaseFn> {
        if self.open_connections == 0 {
            return Some(release);
        }
        self.deferred_bytes += bytes;
        self.deferred.push_back((bytes, release));
        None
    }

    fn next(&mut self) -> Option<ReleaseFn> {
        if let Some(release) = self.now.pop_front() {
            return Some(release);
        }
        let is_over_limit = self.deferred.len() > DEFERRED_MAX || self.deferred_bytes > DEFERRED_BYTES_MAX;
        if self.open_connections > 0 && !is_over_limit {
            return None;
        }
        let (bytes, release) = self.deferred.pop_front()?;
        self.deferred_bytes -= bytes;
        Some(release)
    }
}

#[cfg(test)]
mod tests;
