//! Handles of asynchronous all-reduces.

use crate::all_reduce::{Buffers, ReduceInfo};
use crate::driver::Ended;
use crate::engine::Engine;
use crate::staging::StagedWork;
use crate::{Element, Error};
use core::marker::PhantomData;
use parking_lot::Mutex;
use ringfold_proto::id::CallId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A handle of an all-reduce. Dropping it neither stops the operation nor frees its memory.
pub struct Work {
    kind: Kind,
}

enum Kind {
    /// An all-reduce of host memory.
    Plain {
        engine: Arc<Engine>,
        call: CallId,
        end: Mutex<Option<WorkEnd>>,
    },
    Staged(StagedWork),
}

/// The result of an all-reduce, and its memory until it is taken.
pub(crate) struct WorkEnd {
    pub(crate) result: Result<ReduceInfo, Error>,
    pub(crate) buffers: Option<Buffers>,
}

impl From<Ended> for WorkEnd {
    fn from(ended: Ended) -> Self {
        Self { result: ended.result.map(|_| ended.info), buffers: ended.buffers.map(Buffers::from) }
    }
}

impl Work {
    pub(crate) fn new(engine: Arc<Engine>, call: CallId) -> Self {
        Self { kind: Kind::Plain { engine, call, end: Mutex::new(None) } }
    }

    pub(crate) fn staged(work: StagedWork) -> Self {
        Self { kind: Kind::Staged(work) }
    }

    /// Waits for the end of the operation. May be called again.
    pub fn wait(&self) -> Result<ReduceInfo, Error> {
        match &self.kind {
            Kind::Plain { engine, call, end } => {
                end.lock().get_or_insert_with(|| engine.wait(*call).into()).result.clone()
            }
            Kind::Staged(work) => work.wait(),
        }
    }

    /// As [`Work::wait`], with a timeout; `None` if the operation has not ended by then.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<ReduceInfo, Error>> {
        let Some(until) = Instant::now().checked_add(timeout) else { return Some(self.wait()) };
        match &self.kind {
            Kind::Plain { engine, call, end } => {
                // A thread in `wait` holds the lock.
                let mut end = end.try_lock_until(until)?;
                if end.is_none() {
                    *end = Some(engine.wait_until(*call, Some(until))?.into());
                }
                end.as_ref().map(|end| end.result.clone())
            }
            Kind::Staged(work) => work.wait_until(until),
        }
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        match &self.kind {
            Kind::Plain { engine, call, end } => {
                end.try_lock().is_some_and(|end| end.is_some()) || engine.has_ended(*call)
            }
            Kind::Staged(work) => work.is_done(),
        }
    }

    /// Waits for the end of the operation, and returns its memory.
    pub(crate) fn finish(self) -> (Result<ReduceInfo, Error>, Option<Buffers>) {
        let result = self.wait();
        let buffers = match &self.kind {
            Kind::Plain { end, .. } => end.lock().as_mut().and_then(|end| end.buffers.take()),
            Kind::Staged(work) => work.take_buffers(),
        };
        (result, buffers)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Kind::Plain { engine, call, end } = &mut self.kind
            && end.get_mut().is_none()
        {
            engine.abandon(*call);
        }
    }
}

/// An asynchronous all-reduce that owns its vector.
pub struct Pending<T> {
    work: Work,
    element: PhantomData<T>,
}

impl<T: Element> Pending<T> {
    pub(crate) fn new(work: Work) -> Self {
        Self { work, element: PhantomData }
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Waits for the end, and returns the vector: with the result, or restored after a failure.
    pub fn wait(self) -> (Vec<T>, Result<ReduceInfo, Error>) {
        let (result, buffers) = self.work.finish();
        let data = match buffers {
            Some(Buffers::InPlace(memory)) => memory.into_vec(),
            _ => Vec::new(),
        };
        (data, result)
    }
}
