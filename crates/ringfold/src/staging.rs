//! All-reduces of CUDA device memory: between peers of one host in device memory, otherwise staged through pinned host
//! memory.
//!
//! The operation is in flight from its launch on: its tag is taken and votes include it. Its data plane starts when the
//! first piece of the input has been downloaded, and steps that need other pieces wait for these (`pipeline.rs`). Parts
//! of the result that are final are uploaded to scratch memory of the device meanwhile. The user's memory is written only
//! if the operation succeeded, so a failure leaves it unchanged.

mod device_exchange;
mod exchange_pool;
mod exchange_work;
mod piece_order;
mod pipeline;
mod state;
#[cfg(test)]
mod tests;
mod weights;

pub(crate) use exchange_pool::ExchangePool;
pub(crate) use piece_order::piece_order;
pub(crate) use state::StagedState;

use crate::Error;
use crate::all_reduce::{Buffers, DevicePair, HostBuffers, ReduceInfo};
use crate::driver::Driver;
use crate::engine::{Engine, Waiting};
use crate::limits::STAGING_STACK_BYTES;
use crate::work::WorkEnd;
use parking_lot::{Condvar, Mutex};
use pipeline::Pipeline;
use ringfold_cuda::{
    CudaError, DefaultStreamMark, Download, PieceDownload, Pinned, ScratchUpload, UploadPiece, upload,
};
use ringfold_fabric::memory::Memory;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{CallId, Tag};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// A launched all-reduce whose input is not downloaded yet.
pub(crate) struct Staging {
    engine: Arc<Engine>,
    call: CallId,
    descriptor: Descriptor,
    /// Whether its quantisation error is carried over.
    feedback: bool,
    pair: DevicePair,
    queued: DefaultStreamMark,
}

impl Staging {
    /// Starts the operation. Its copies follow the work that the user has queued so far.
    pub(crate) fn launch(
        engine: &Arc<Engine>,
        tag: Tag,
        descriptor: Descriptor,
        feedback: bool,
        pair: DevicePair,
    ) -> Result<Self, Error> {
        let queued = DefaultStreamMark::record([&pair.0, &pair.1])?;
        let call = engine.with_waiter(|driver| driver.start(tag, descriptor, feedback, None))??;
        Ok(Self { engine: engine.clone(), call, descriptor, feedback, pair, queued })
    }

    /// Runs on the caller's thread; its waits can be cancelled.
    pub(crate) fn run_blocking(self) -> WorkEnd {
        self.run(Waiting::Cancellable)
    }

    /// Runs on a new thread.
    pub(crate) fn run_in_background(self) -> Result<StagedWork, Error> {
        let (engine, call) = (self.engine.clone(), self.call);
        let outcome = Arc::new(StagedOutcome::default());
        let shared = outcome.clone();
        let work = move || {
            let end = self.run(Waiting::ToTheEnd);
            *shared.end.lock() = Some(end);
            shared.ended.notify_all();
        };
        let thread =
            std::thread::Builder::new().name("ringfold-staging".into()).stack_size(STAGING_STACK_BYTES);
        if let Err(error) = thread.spawn(work) {
            give_up(&engine, call)?;
            return Err(Error::system("starting a thread for an all-reduce failed", &error));
        }
        Ok(StagedWork { engine, outcome })
    }

    fn run(self, waiting: Waiting) -> WorkEnd {
        let result = catch_unwind(AssertUnwindSafe(|| self.reduce(waiting))).unwrap_or_else(|_| {
            // The other peers wait for this one.
            let _ = give_up(&self.engine, self.call);
            Err(Error::Internal("staging an all-reduce panicked".into()))
        });
        let (source, target) = self.pair;
        WorkEnd { result, buffers: Some(Buffers::Device { source, target }) }
    }

    fn reduce(&self, waiting: Waiting) -> Result<ReduceInfo, Error> {
        if let Some(info) = self.reduce_on_device(waiting)? {
            return Ok(info);
        }
        if self.pair.0.len() >= pipeline::BYTES_MIN {
            return self.reduce_pipelined(waiting);
        }
        let (buffers, failure) = match self.download() {
            Ok(buffers) => (Some(buffers), None),
            Err(error) => (None, Some(error)),
        };
        // If the engine has failed, the wait reports it.
        let _ = self.engine.with_waiter(|driver| driver.supply(self.call, buffers));
        let ended = self.engine.wait_as(waiting, self.call);
        if let Some(error) = failure {
            return Err(error.into());
        }
        ended.result?;
        let Some(HostBuffers::OutOfPlace { target: result, .. }) = ended.buffers else {
            return Err(Error::Internal("the result of a staged all-reduce is missing".into()));
        };
        self.upload(&result)?;
        Ok(ended.info)
    }

    fn upload(&self, result: &Memory) -> Result<(), CudaError> {
        upload(&[UploadPiece { target: &self.pair.1, offset: 0, bytes: result.as_slice() }], &self.queued)
    }

    /// Copies in, reduces and copies out at the same time.
    fn reduce_pipelined(&self, waiting: Waiting) -> Result<ReduceInfo, Error> {
        let target = &self.pair.1;
        let pipeline = Pipeline { engine: &self.engine, call: self.call, waiting };
        let started = self.start_download().and_then(|input| Ok((input, Pinned::for_tensor(target)?)));
        let (mut input, result) = match started {
            Ok(started) => started,
            Err(error) => {
                let _ = self.engine.with_waiter(|driver| driver.supply(self.call, None));
                let _ = self.engine.wait_as(waiting, self.call);
                return Err(error.into());
            }
        };
        let scratch = |bytes| match self.descriptor.weight {
            // Nothing of a weighted average is final before it is decided.
            Some(_) => None,
            None => ScratchUpload::new(target, bytes)
                .inspect_err(|error| tracing::debug!(%error, "the result is uploaded when it is decided"))
                .ok(),
        };
        let reduced = pipeline.run(&mut input, result, scratch)?;
        match reduced.output.filter(ScratchUpload::is_complete) {
            Some(output) => output.finish(&self.queued)?,
            None => self.upload(&reduced.result)?,
        }
        Ok(reduced.info)
    }

    /// Starts the download, in the order in which the operation needs the pieces.
    fn start_download(&self) -> Result<PieceDownload, CudaError> {
        let source = &self.pair.0;
        let bytes = source.len();
        let order = |driver: &mut Driver| driver.input_order(self.call, bytes, pipeline::PIECE_BYTES);
        // If the engine has failed, the wait reports it.
        let order = self.engine.with_waiter(order).ok().flatten();
        let order = order.unwrap_or_else(|| (0..bytes.div_ceil(pipeline::PIECE_BYTES)).collect());
        PieceDownload::start(source.clone(), pipeline::PIECE_BYTES, &order, &self.queued)
    }

    fn download(&self) -> Result<HostBuffers, CudaError> {
        let (source, target) = &self.pair;
        let download = Download::start(vec![source.clone()], &self.queued)?;
        // The result's memory is allocated while the input is copied.
        let target = Pinned::for_tensor(target)?;
        let source = download.finish()?.remove(0).into_view();
        Ok(HostBuffers::OutOfPlace { source, target })
    }
}

/// Votes a call down that nobody waits for.
fn give_up(engine: &Engine, call: CallId) -> Result<(), Error> {
    engine.with(|driver| {
        driver.supply(call, None);
        driver.fail_input(call);
    })?;
    engine.abandon(call);
    Ok(())
}

/// A staged all-reduce that runs on its own thread.
pub(crate) struct StagedWork {
    engine: Arc<Engine>,
    outcome: Arc<StagedOutcome>,
}

#[derive(Default)]
struct StagedOutcome {
    end: Mutex<Option<WorkEnd>>,
    ended: Condvar,
}

impl StagedWork {
    /// Waits for the end. If the wait is cancelled the peer leaves the run, which ends the operation soon.
    pub(crate) fn wait(&self) -> Result<ReduceInfo, Error> {
        let Some(cancel) = self.engine.watch() else { return self.wait_to_the_end() };
        cancel.wait(|until| self.wait_until(until)).unwrap_or_else(|| {
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
            self.outcome.ended.wait(&mut end);
        }
    }

    pub(crate) fn wait_until(&self, until: Instant) -> Option<Result<ReduceInfo, Error>> {
        let mut end = self.outcome.end.lock();
        while end.is_none() && !self.outcome.ended.wait_until(&mut end, until).timed_out() {}
        end.as_ref().map(|end| end.result.clone())
    }

    pub(crate) fn is_done(&self) -> bool {
        self.outcome.end.lock().is_some()
    }

    /// The memory; only once, and after the end.
    pub(crate) fn take_buffers(&self) -> Option<Buffers> {
        self.outcome.end.lock().as_mut().and_then(|end| end.buffers.take())
    }
}
