//! The order of a group's collectives: one after the other, as they were asked for.
//!
//! A collective that is waited for at once runs on the caller's thread if nothing is before it. The others wait in a
//! line, and a thread of the group's own takes them from there.

use super::core::Core;
use super::operation::{GroupBuffers, Operation};
use crate::Error;
use parking_lot::{Condvar, Mutex};
use ringfold_fabric::reactor::panic_text;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Operations that may wait in line.
const WAITING_MAX: usize = 65_536;

/// Added to the number of operations when the lane takes nothing more: it is never idle again.
const RETIRED: usize = 1 << (usize::BITS - 2);

/// Added when it is closed.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The line.
#[derive(Default)]
pub(super) struct Lane {
    state: Mutex<State>,
    /// Something was added, or the lane is closing.
    changed: Condvar,
    /// Operations that wait or run.
    ahead: AtomicUsize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Job>>,
    has_worker: bool,
    /// What waits is worked off, and nothing more is taken.
    is_retiring: bool,
    is_closing: bool,
}

/// What is done when an operation has succeeded, before anyone is told.
pub(super) type Then = Box<dyn FnOnce(&GroupBuffers) + Send>;

/// An operation in line.
pub(super) struct Job {
    pub(super) deadline: Instant,
    then: Mutex<Option<Then>>,
    operation: Mutex<Option<Operation>>,
    end: Mutex<Option<Result<(), Error>>>,
    buffers: Mutex<Option<GroupBuffers>>,
    ended: Condvar,
}

impl Job {
    pub(super) fn new(deadline: Instant, operation: Operation, then: Option<Then>) -> Arc<Self> {
        let (operation, end, buffers) = (Mutex::new(Some(operation)), Mutex::new(None), Mutex::new(None));
        Arc::new(Self { deadline, then: Mutex::new(then), operation, end, buffers, ended: Condvar::new() })
    }

    pub(super) fn take(&self) -> Option<Operation> {
        self.operation.lock().take()
    }

    /// Does what is to be done when it has succeeded, if it has. If that panics, this operation fails on this rank alone:
    /// the others have their result.
    pub(super) fn complete(
        &self,
        result: Result<(), Error>,
        buffers: Option<&GroupBuffers>,
    ) -> Result<(), Error> {
        let then = self.then.lock().take();
        let (Some(buffers), Some(then)) = (buffers.filter(|_| result.is_ok()), then) else { return result };
        catch_unwind(AssertUnwindSafe(|| then(buffers))).map_err(|panic| {
            let what = panic_text(&*panic);
            Error::Internal(format!("the closure that follows an operation panicked: {what}"))
        })
    }

    /// It has ended. Its memory is kept until someone takes it, or nobody can any more.
    pub(super) fn finish(&self, result: Result<(), Error>, buffers: Option<GroupBuffers>) {
        drop(self.then.lock().take());
        *self.buffers.lock() = buffers;
        self.end.lock().get_or_insert(result);
        self.ended.notify_all();
    }

    /// Its memory, once it has ended.
    pub(super) fn take_buffers(&self) -> Option<GroupBuffers> {
        self.buffers.lock().take()
    }

    pub(super) fn is_done(&self) -> bool {
        self.end.lock().is_some()
    }

    /// Waits until it has ended, or until a time.
    pub(super) fn wait(&self, until: Option<Instant>) -> Option<Result<(), Error>> {
        let mut end = self.end.lock();
        while end.is_none() {
            match until {
                None => self.ended.wait(&mut end),
                Some(until) => {
                    if self.ended.wait_until(&mut end, until).timed_out() {
                        break;
                    }
                }
            }
        }
        end.clone()
    }
}

impl Lane {
    /// Whether nothing waits or runs, so that a caller may run at once.
    pub(super) fn is_idle(&self) -> bool {
        self.ahead.load(Ordering::Acquire) == 0
    }

    /// Whether nothing may begin any more. Whoever is about to work on the board asks when it has the board.
    pub(super) fn is_closed(&self) -> bool {
        self.ahead.load(Ordering::Acquire) >= CLOSED
    }

    /// Whether users may begin nothing any more.
    pub(super) fn is_retired(&self) -> bool {
        self.ahead.load(Ordering::Acquire) >= RETIRED
    }

    /// Puts an operation at the end of the line.
    pub(super) fn submit(&self, core: &Arc<Core>, job: Arc<Job>) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.is_closing || state.is_retiring {
            return Err(Error::Left);
        }
        if state.waiting.len() >= WAITING_MAX {
            return Err(Error::Misuse(format!("{WAITING_MAX} operations wait already")));
        }
        state.need_worker(core)?;
        self.ahead.fetch_add(1, Ordering::AcqRel);
        state.waiting.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes nothing more. Its thread works off what waits, and takes leave of the group then. Says whether it will: not
    /// if that was said before, or there can be no thread.
    pub(super) fn retire(&self, core: &Arc<Core>) -> Result<bool, Error> {
        let mut state = self.state.lock();
        if state.is_closing || state.is_retiring {
            return Ok(false);
        }
        state.need_worker(core)?;
        state.is_retiring = true;
        self.ahead.fetch_add(RETIRED, Ordering::AcqRel);
        drop(state);
        self.changed.notify_all();
        Ok(true)
    }

    /// The next operation in line; none when the lane is closed, or retired and empty.
    pub(super) fn next(&self) -> Option<Arc<Job>> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            if state.is_closing || state.is_retiring {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// The operation that came from [`Lane::next`] has ended.
    pub(super) fn passed(&self) {
        self.ahead.fetch_sub(1, Ordering::AcqRel);
    }

    /// Nothing is taken any more, and what waits fails.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        if !core::mem::replace(&mut state.is_closing, true) {
            self.ahead.fetch_add(CLOSED, Ordering::AcqRel);
        }
        let waiting = core::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        for job in waiting {
            drop(job.take());
            job.finish(Err(Error::Left), None);
            self.passed();
        }
    }
}

impl State {
    /// Starts the thread that works the line off, if there is none yet.
    fn need_worker(&mut self, core: &Arc<Core>) -> Result<(), Error> {
        if !self.has_worker {
            let core = core.clone();
            std::thread::Builder::new()
                .name("ringfold-group".into())
                .spawn(move || core.work_off())
                .map_err(|error| Error::system("no thread can be started", &error))?;
            self.has_worker = true;
        }
        Ok(())
    }
}
