//! All-reduces of memory that only a CUDA device can reach: brought down to the host, reduced there, brought up again.
//!
//! The operation is in flight from its launch on, so that its tag is taken and votes know of it; its data plane starts
//! when the input is down. The result goes to other memory than the input, and up only if the operation succeeded:
//! after a failure the device holds what it held.

mod state;
#[cfg(test)]
mod tests;

pub(crate) use state::Staged as StagedState;

use crate::Error;
use crate::all_reduce::{Buffers, DevicePair, HostBuffers, ReduceInfo};
use crate::driver::Ended;
use crate::engine::Engine;
use crate::limits::STAGING_STACK_BYTES;
use crate::work::End;
use parking_lot::{Condvar, Mutex};
use ringfold_cuda::{CudaError, Download, Piece, Pinned, Queued, upload};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{CallId, Tag};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// An all-reduce that was launched, and whose input is still on its device.
pub(crate) struct Staging {
    engine: Arc<Engine>,
    call: CallId,
    pair: DevicePair,
    queued: Queued,
}

impl Staging {
    /// Takes the tag. Copies will begin after what the user has queued by now.
    pub(crate) fn launch(
        engine: &Arc<Engine>,
        tag: Tag,
        descriptor: Descriptor,
        pair: DevicePair,
    ) -> Result<Self, Error> {
        let queued = Queued::now([&pair.0, &pair.1])?;
        let call = engine.with_waiter(|driver| driver.start(tag, descriptor, None))??;
        Ok(Self { engine: engine.clone(), call, pair, queued })
    }

    /// Does it all in the caller's thread, whose waits are watched.
    pub(crate) fn run_here(self) -> End {
        self.run(Engine::wait)
    }

    /// Has a thread of its own do it.
    pub(crate) fn run_beside(self) -> Result<Errand, Error> {
        let (engine, call) = (self.engine.clone(), self.call);
        let outcome = Arc::new(Outcome::default());
        let told = outcome.clone();
        let work = move || {
            let end = catch_unwind(AssertUnwindSafe(|| self.run(Engine::wait_to_the_end)));
            told.tell(end.unwrap_or_else(|_| End {
                result: Err(Error::Internal("staging an all-reduce panicked".into())),
                buffers: None,
            }));
        };
        let thread =
            std::thread::Builder::new().name("ringfold-staging".into()).stack_size(STAGING_STACK_BYTES);
        if let Err(error) = thread.spawn(work) {
            engine.with(|driver| driver.supply(call, None))?;
            engine.abandon(call);
            return Err(Error::system("starting a thread for an all-reduce", &error));
        }
        Ok(Errand { engine, outcome })
    }

    fn run(self, wait: fn(&Engine, CallId) -> Ended) -> End {
        let result = self.reduce(wait);
        let (source, target) = self.pair;
        End { result, buffers: Some(Buffers::Device { source, target }) }
    }

    fn reduce(&self, wait: fn(&Engine, CallId) -> Ended) -> Result<ReduceInfo, Error> {
        let down = self.bring_down();
        let (buffers, failure) = match down {
            Ok(buffers) => (Some(buffers), None),
            Err(error) => (None, Some(error)),
        };
        // If the engine is broken the wait says so.
        let _ = self.engine.with_waiter(|driver| driver.supply(self.call, buffers));
        let ended = wait(&self.engine, self.call);
        if let Some(error) = failure {
            return Err(error.into());
        }
        ended.result?;
        let Some(HostBuffers::OutOfPlace { target: result, .. }) = ended.buffers else {
            return Err(Error::Internal("a result has not come back".into()));
        };
        upload(&[Piece { target: &self.pair.1, offset: 0, bytes: result.as_slice() }], &self.queued)?;
        Ok(ended.info)
    }

    fn bring_down(&self) -> Result<HostBuffers, CudaError> {
        let (source, target) = &self.pair;
        let download = Download::start(vec![source.clone()], &self.queued)?;
        // Room for the result is found while the input is on its way.
        let target = Pinned::beside(target)?;
        let source = download.finish()?.remove(0).into_view();
        Ok(HostBuffers::OutOfPlace { source, target })
    }
}

/// An all-reduce that a thread of its own sees to.
pub(crate) struct Errand {
    engine: Arc<Engine>,
    outcome: Arc<Outcome>,
}

#[derive(Default)]
struct Outcome {
    end: Mutex<Option<End>>,
    told: Condvar,
}

impl Outcome {
    fn tell(&self, end: End) {
        *self.end.lock() = Some(end);
        self.told.notify_all();
    }
}

impl Errand {
    /// Waits for the end. If the wait has to be left off, the peer leaves the run, which ends the operation soon.
    pub(crate) fn wait(&self) -> Result<ReduceInfo, Error> {
        let Some(watch) = self.engine.watch() else { return self.wait_to_the_end() };
        watch.wait(|until| self.wait_until(until)).unwrap_or_else(|| {
            self.engine.close();
            let _ = self.wait_to_the_end();
            Err(Error::Interrupted)
        })
    }

    fn wait_to_the_end(&self) -> Result<ReduceInfo, Error> {
        let mut end = self.outcome.end.lock();
        loop {
            if let Some(end) = &*end {
                return end.result.clone();
            }
            self.outcome.told.wait(&mut end);
        }
    }

    /// Waits for the end until a time; none if it has not ended by then.
    pub(crate) fn wait_until(&self, until: Instant) -> Option<Result<ReduceInfo, Error>> {
        let mut end = self.outcome.end.lock();
        while end.is_none() && !self.outcome.told.wait_until(&mut end, until).timed_out() {}
        end.as_ref().map(|end| end.result.clone())
    }

    /// Whether it has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.outcome.end.lock().is_some()
    }

    /// The memory, once, after the end.
    pub(crate) fn take_buffers(&self) -> Option<Buffers> {
        self.outcome.end.lock().as_mut().and_then(|end| end.buffers.take())
    }
}
