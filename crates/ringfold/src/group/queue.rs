//! The queue of a group's collectives: they run one after the other, in the order of their calls.
//!
//! A blocking collective runs on the caller's thread if the queue is empty. All others wait here for a thread of the
//! group.

use super::core::Core;
use super::operation::{GroupBuffers, Operation};
use crate::Error;
use parking_lot::{Condvar, Mutex};
use ringfold_fabric::reactor::{panic_text, run_guarded};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Operations that may wait in the queue.
const WAITING_MAX: usize = 65_536;

/// Added to the number of operations when the queue accepts nothing more: it is never idle again.
const RETIRED: usize = 1 << (usize::BITS - 2);

/// Added when it is closed.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The queue.
#[derive(Default)]
pub(super) struct CollectiveQueue {
    state: Mutex<State>,
    /// Something was added, or the queue is closing.
    changed: Condvar,
    /// Operations that wait or run.
    pending: AtomicUsize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<QueuedCollective>>,
    has_worker: bool,
    /// What waits still runs, and nothing more is accepted.
    is_retiring: bool,
    is_closing: bool,
}

/// User code that runs when an operation has succeeded, before its waiters are woken.
pub(super) type Then = Box<dyn FnOnce(&GroupBuffers) + Send>;

/// An operation in the queue.
pub(super) struct QueuedCollective {
    pub(super) deadline: Instant,
    work: Mutex<Option<(Operation, Option<Then>)>>,
    result: Mutex<Option<Result<(), Error>>>,
    buffers: Mutex<Option<GroupBuffers>>,
    ended: Condvar,
}

impl QueuedCollective {
    pub(super) fn new(deadline: Instant, operation: Operation, then: Option<Then>) -> Arc<Self> {
        let work = Mutex::new(Some((operation, then)));
        let (result, buffers) = (Mutex::new(None), Mutex::new(None));
        Arc::new(Self { deadline, work, result, buffers, ended: Condvar::new() })
    }

    pub(super) fn take(&self) -> Option<(Operation, Option<Then>)> {
        self.work.lock().take()
    }

    /// It has ended. Its memory is kept until it is taken.
    pub(super) fn finish(&self, result: Result<(), Error>, buffers: Option<GroupBuffers>) {
        *self.buffers.lock() = buffers;
        self.result.lock().get_or_insert(result);
        self.ended.notify_all();
    }

    /// Its memory, once it has ended.
    pub(super) fn take_buffers(&self) -> Option<GroupBuffers> {
        self.buffers.lock().take()
    }

    pub(super) fn is_done(&self) -> bool {
        self.result.lock().is_some()
    }

    /// Waits until it has ended, or until a time.
    pub(super) fn wait(&self, until: Option<Instant>) -> Option<Result<(), Error>> {
        let mut result = self.result.lock();
        while result.is_none() {
            match until {
                None => self.ended.wait(&mut result),
                Some(until) => {
                    if self.ended.wait_until(&mut result, until).timed_out() {
                        break;
                    }
                }
            }
        }
        result.clone()
    }
}

/// Runs the closure that follows an operation, or drops it if the operation has failed. If that panics, the operation
/// fails on this rank alone: the others have their result.
pub(super) fn run_then(
    then: Option<Then>,
    result: Result<(), Error>,
    buffers: Option<&GroupBuffers>,
) -> Result<(), Error> {
    let buffers = buffers.filter(|_| result.is_ok());
    let run = || match (then, buffers) {
        (Some(then), Some(buffers)) => then(buffers),
        (then, _) => drop(then),
    };
    let ran = catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let what = panic_text(&*panic);
        Error::Internal(format!("the closure that follows an operation panicked: {what}"))
    });
    result.and(ran)
}

impl CollectiveQueue {
    /// Whether nothing waits or runs, so that a caller may run at once.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Whether no operation may begin any more. Asked by threads that have locked the board.
    pub(super) fn is_closed(&self) -> bool {
        self.pending.load(Ordering::Acquire) >= CLOSED
    }

    /// Whether users may begin no operation any more.
    pub(super) fn is_retired(&self) -> bool {
        self.pending.load(Ordering::Acquire) >= RETIRED
    }

    /// Appends an operation.
    pub(super) fn submit(&self, core: &Arc<Core>, queued: Arc<QueuedCollective>) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.is_closing || state.is_retiring {
            return Err(Error::Left);
        }
        if state.waiting.len() >= WAITING_MAX {
            return Err(Error::Misuse(format!("{WAITING_MAX} operations wait already")));
        }
        state.need_worker(core)?;
        self.pending.fetch_add(1, Ordering::AcqRel);
        state.waiting.push_back(queued);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Accepts nothing more. Its thread runs what waits, and then leaves the group. False if that was asked before, or
    /// the queue is closed.
    pub(super) fn retire(&self, core: &Arc<Core>) -> Result<bool, Error> {
        let mut state = self.state.lock();
        if state.is_closing || state.is_retiring {
            return Ok(false);
        }
        state.need_worker(core)?;
        state.is_retiring = true;
        self.pending.fetch_add(RETIRED, Ordering::AcqRel);
        drop(state);
        self.changed.notify_all();
        Ok(true)
    }

    /// Waits for the next operation; none when the queue is closed, or retired and empty.
    pub(super) fn next(&self) -> Option<Arc<QueuedCollective>> {
        let mut state = self.state.lock();
        loop {
            if let Some(queued) = state.waiting.pop_front() {
                return Some(queued);
            }
            if state.is_closing || state.is_retiring {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// The operation that came from [`CollectiveQueue::next`] has ended.
    pub(super) fn finish_one(&self) {
        self.pending.fetch_sub(1, Ordering::AcqRel);
    }

    /// Accepts nothing more, and what waits fails.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        if !core::mem::replace(&mut state.is_closing, true) {
            self.pending.fetch_add(CLOSED, Ordering::AcqRel);
        }
        let waiting = core::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        for queued in waiting {
            // Closures and memory are the user's, and so is the code that drops them.
            run_guarded("dropping an operation", || drop(queued.take()));
            queued.finish(Err(Error::Left), None);
            self.finish_one();
        }
    }
}

impl State {
    /// Starts the thread that runs the queue, if there is none yet.
    fn need_worker(&mut self, core: &Arc<Core>) -> Result<(), Error> {
        if !self.has_worker {
            let core = core.clone();
            std::thread::Builder::new()
                .name("ringfold-group".into())
                .spawn(move || core.run_queue())
                .map_err(|error| Error::system("cannot start a thread", &error))?;
            self.has_worker = true;
        }
        Ok(())
    }
}
