//! All-reduces that go on while the caller computes.

use crate::all_reduce::{Buffers, ReduceInfo};
use crate::driver::Ended;
use crate::engine::Engine;
use crate::staging::Errand;
use crate::{Element, Error};
use core::marker::PhantomData;
use parking_lot::Mutex;
use ringfold_proto::id::CallId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A collective that was started. Whoever drops it lets it run on; its memory is kept until it has ended.
pub struct Work {
    kind: Kind,
}

enum Kind {
    Plain(Plain),
    Staged(Errand),
}

/// A collective that works on the user's memory.
struct Plain {
    engine: Arc<Engine>,
    call: CallId,
    end: Mutex<Option<End>>,
}

/// How it ended, and its memory until someone takes it.
pub(crate) struct End {
    pub(crate) result: Result<ReduceInfo, Error>,
    pub(crate) buffers: Option<Buffers>,
}

impl From<Ended> for End {
    fn from(ended: Ended) -> Self {
        Self { result: ended.result.map(|_| ended.info), buffers: ended.buffers.map(Buffers::from) }
    }
}

impl Work {
    pub(crate) fn new(engine: Arc<Engine>, call: CallId) -> Self {
        Self { kind: Kind::Plain(Plain { engine, call, end: Mutex::new(None) }) }
    }

    pub(crate) fn staged(errand: Errand) -> Self {
        Self { kind: Kind::Staged(errand) }
    }

    /// Waits for the end. May be called again.
    pub fn wait(&self) -> Result<ReduceInfo, Error> {
        match &self.kind {
            Kind::Plain(plain) => plain.wait(),
            Kind::Staged(errand) => errand.wait(),
        }
    }

    /// Waits for the end for so long; none if it has not ended by then.
    pub fn wait_for(&self, patience: Duration) -> Option<Result<ReduceInfo, Error>> {
        // Longer than any clock goes is for ever.
        let Some(until) = Instant::now().checked_add(patience) else { return Some(self.wait()) };
        match &self.kind {
            Kind::Plain(plain) => plain.wait_until(until),
            Kind::Staged(errand) => errand.wait_until(until),
        }
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        match &self.kind {
            Kind::Plain(plain) => plain.is_done(),
            Kind::Staged(errand) => errand.is_done(),
        }
    }

    /// Waits for the end, and takes the memory back.
    pub(crate) fn finish(self) -> (Result<ReduceInfo, Error>, Option<Buffers>) {
        let result = self.wait();
        let buffers = match &self.kind {
            Kind::Plain(plain) => plain.end.lock().as_mut().and_then(|end| end.buffers.take()),
            Kind::Staged(errand) => errand.take_buffers(),
        };
        (result, buffers)
    }
}

impl Plain {
    fn wait(&self) -> Result<ReduceInfo, Error> {
        let mut end = self.end.lock();
        end.get_or_insert_with(|| self.engine.wait(self.call).into()).result.clone()
    }

    fn wait_until(&self, until: Instant) -> Option<Result<ReduceInfo, Error>> {
        let mut end = self.end.lock();
        if end.is_none() {
            *end = Some(self.engine.wait_until(self.call, Some(until))?.into());
        }
        end.as_ref().map(|end| end.result.clone())
    }

    fn is_done(&self) -> bool {
        self.end.try_lock().is_some_and(|end| end.is_some()) || self.engine.has_ended(self.call)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.end.get_mut().is_none() {
            self.engine.abandon(self.call);
        }
    }
}

/// An all-reduce of a vector that comes back when it has ended.
pub struct Pending<T> {
    work: Work,
    element: PhantomData<T>,
}

impl<T: Element> Pending<T> {
    pub(crate) fn new(work: Work) -> Self {
        Self { work, element: PhantomData }
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Waits for the end. The vector holds the result, or what it held before.
    pub fn wait(self) -> (Vec<T>, Result<ReduceInfo, Error>) {
        let (result, buffers) = self.work.finish();
        let data = match buffers {
            Some(Buffers::InPlace(memory)) => memory.into_vec(),
            _ => Vec::new(),
        };
        (data, result)
    }
}
