//! Handles of asynchronous operations of a group.

use super::core::Core;
use super::driver::GroupEnded;
use super::operation::GroupBuffers;
use super::queue::QueuedCollective;
use crate::Error;
use parking_lot::Mutex;
use ringfold_fabric::limits::LONG_WAIT;
use ringfold_proto::id::CallId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A handle of a submitted operation. Dropping it neither stops the operation nor frees its memory.
pub struct GroupWork {
    kind: Kind,
}

enum Kind {
    /// A collective, in the queue.
    Collective { core: Arc<Core>, job: Arc<QueuedCollective> },
    Transfer {
        core: Arc<Core>,
        call: CallId,
        end: Mutex<Option<GroupEnded>>,
        /// Whether the driver knows that a caller waits.
        is_waited: AtomicBool,
    },
}

impl GroupWork {
    pub(super) fn collective(core: Arc<Core>, job: Arc<QueuedCollective>) -> Self {
        Self { kind: Kind::Collective { core, job } }
    }

    pub(super) fn transfer(core: Arc<Core>, call: CallId) -> Self {
        let (end, is_waited) = (Mutex::new(None), AtomicBool::new(false));
        Self { kind: Kind::Transfer { core, call, end, is_waited } }
    }

    /// Waits for the end of the operation. May be called again.
    ///
    /// If the group's cancel callback ends the wait, the error is [`Error::WaitCancelled`], and the operation continues.
    pub fn wait(&self) -> Result<(), Error> {
        if let Some(cancel) = &self.core().cancel {
            return cancel.wait(|until| self.wait_until(until)).unwrap_or(Err(Error::WaitCancelled));
        }
        match &self.kind {
            Kind::Collective { job, .. } => job.wait(None).unwrap_or(Err(Error::Left)),
            Kind::Transfer { core, call, end, .. } => {
                if let Some(result) = self.wait_until(Instant::now() + LONG_WAIT) {
                    return result;
                }
                let mut end = end.lock();
                end.get_or_insert_with(|| core.engine().wait(*call)).result.clone()
            }
        }
    }

    fn core(&self) -> &Core {
        match &self.kind {
            Kind::Collective { core, .. } | Kind::Transfer { core, .. } => core,
        }
    }

    /// As [`GroupWork::wait`], with a timeout; `None` if the operation has not ended by then.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<(), Error>> {
        let Some(until) = Instant::now().checked_add(timeout) else { return Some(self.wait()) };
        self.wait_until(until)
    }

    fn wait_until(&self, until: Instant) -> Option<Result<(), Error>> {
        match &self.kind {
            Kind::Collective { job, .. } => job.wait(Some(until)),
            Kind::Transfer { core, call, end, is_waited } => {
                // A thread in `wait` holds the lock.
                let mut end = end.try_lock_until(until)?;
                if end.is_none() {
                    *end = core.engine().wait_until(*call, Some(until));
                }
                if end.is_none() && !is_waited.swap(true, Ordering::Relaxed) {
                    let _ = core.engine().with(|driver| driver.note_waiter(*call));
                }
                end.as_ref().map(|end| end.result.clone())
            }
        }
    }

    /// Waits for the end, and returns the memory; `None` after some failures.
    ///
    /// ```
    /// use ringfold::{DType, Group, GroupBuffers, GroupOp, Memory, Operation, ReduceOp};
    ///
    /// let group = Group::builder().rank(0).world(1).connect()?;
    /// let work = group.submit(Operation {
    ///     op: GroupOp::AllReduce(ReduceOp::Sum),
    ///     dtype: DType::U8,
    ///     buffers: GroupBuffers::InPlace(Memory::from(vec![1, 2, 3])),
    ///     timeout: None,
    /// })?;
    /// let (result, buffers) = work.finish();
    /// result?;
    /// let Some(GroupBuffers::InPlace(memory)) = buffers else { unreachable!() };
    /// assert_eq!(memory.as_slice(), [1, 2, 3]);
    /// # Ok::<(), ringfold::Error>(())
    /// ```
    pub fn finish(self) -> (Result<(), Error>, Option<GroupBuffers>) {
        (self.wait(), self.take_buffers())
    }

    /// Takes the memory back, after a successful or failed wait.
    pub fn take_buffers(&self) -> Option<GroupBuffers> {
        match &self.kind {
            Kind::Collective { job, .. } => job.take_buffers(),
            Kind::Transfer { end, .. } => {
                end.try_lock()?.as_mut().and_then(|end| end.buffers.take()).map(GroupBuffers::from)
            }
        }
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        match &self.kind {
            Kind::Collective { job, .. } => job.is_done(),
            Kind::Transfer { core, call, end, .. } => {
                end.try_lock().is_some_and(|end| end.is_some()) || core.engine().has_ended(*call)
            }
        }
    }
}

impl Drop for GroupWork {
    fn drop(&mut self) {
        if let Kind::Transfer { core, call, end, .. } = &mut self.kind
            && end.get_mut().is_none()
        {
            core.engine().abandon(*call);
        }
    }
}
