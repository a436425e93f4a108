//! Operations of a group that go on while the caller computes.

use super::core::Core;
use super::driver::GroupEnded;
use super::lane::Job;
use super::operation::GroupBuffers;
use crate::Error;
use parking_lot::Mutex;
use ringfold_proto::id::CallId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An operation that was submitted. Whoever drops it lets it run on; its memory is kept until it has ended.
pub struct GroupWork {
    kind: Kind,
}

enum Kind {
    /// A collective, in line with the others.
    Collective { core: Arc<Core>, job: Arc<Job> },
    /// A transfer, which has an order of its own.
    Transfer { core: Arc<Core>, call: CallId, end: Mutex<Option<GroupEnded>> },
}

impl GroupWork {
    pub(super) fn collective(core: Arc<Core>, job: Arc<Job>) -> Self {
        Self { kind: Kind::Collective { core, job } }
    }

    pub(super) fn transfer(core: Arc<Core>, call: CallId) -> Self {
        Self { kind: Kind::Transfer { core, call, end: Mutex::new(None) } }
    }

    /// Waits for the end. May be called again. If the group's watch has it leave off, that is [`Error::LeftOff`], and
    /// the operation goes on.
    pub fn wait(&self) -> Result<(), Error> {
        if let Some(watch) = &self.core().watch {
            return watch.wait(|until| self.wait_until(until)).unwrap_or(Err(Error::LeftOff));
        }
        match &self.kind {
            Kind::Collective { job, .. } => job.wait(None).unwrap_or(Err(Error::Left)),
            Kind::Transfer { core, call, end } => {
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

    /// Waits for the end for so long; none if it has not ended by then.
    pub fn wait_for(&self, patience: Duration) -> Option<Result<(), Error>> {
        // Longer than any clock goes is for ever.
        let Some(until) = Instant::now().checked_add(patience) else { return Some(self.wait()) };
        self.wait_until(until)
    }

    fn wait_until(&self, until: Instant) -> Option<Result<(), Error>> {
        match &self.kind {
            Kind::Collective { job, .. } => job.wait(Some(until)),
            Kind::Transfer { core, call, end } => {
                // Whoever waits without end holds it.
                let mut end = end.try_lock_until(until)?;
                if end.is_none() {
                    *end = Some(core.engine().wait_until(*call, Some(until))?);
                }
                end.as_ref().map(|end| end.result.clone())
            }
        }
    }

    /// Waits for the end, and takes the memory back. After a failure there may be none.
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

    /// Takes the memory back, if it has ended and was waited for.
    pub fn take_buffers(&self) -> Option<GroupBuffers> {
        match &self.kind {
            Kind::Collective { job, .. } => job.take_buffers(),
            Kind::Transfer { end, .. } => {
                end.try_lock()?.as_mut().and_then(|end| end.buffers.take()).map(GroupBuffers::from)
            }
        }
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        match &self.kind {
            Kind::Collective { job, .. } => job.is_done(),
            Kind::Transfer { core, call, end } => {
                end.try_lock().is_some_and(|end| end.is_some()) || core.engine().has_ended(*call)
            }
        }
    }
}

impl Drop for GroupWork {
    fn drop(&mut self) {
        if let Kind::Transfer { core, call, end } = &mut self.kind
            && end.get_mut().is_none()
        {
            core.engine().abandon(*call);
        }
    }
}
