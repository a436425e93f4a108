//! An all-reduce in host memory while its input is still copied from a device, and its result copied back.

use crate::Error;
use crate::all_reduce::{HostBuffers, ReduceInfo};
use crate::driver::{Driver, Ended};
use crate::engine::{Engine, Waiting};
use crate::workspace::FinalRanges;
use core::ops::Range;
use ringfold_cuda::{CudaError, PieceDownload, ScratchUpload};
use ringfold_fabric::memory::{Lease, Memory, View};
use ringfold_proto::id::CallId;
use std::sync::Arc;

/// Shorter tensors are copied as a whole: their copies take less time than waking threads.
pub(super) const BYTES_MIN: usize = 4 << 20;

/// The bytes that are copied between two looks at an operation: less than 0.1 ms of a fast bus.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// An input whose pieces arrive one after the other.
pub(super) trait ArrivingInput {
    /// The bytes, which can be read as they arrive.
    fn view(&self) -> View;
    /// Waits for more. False if all has arrived.
    fn wait_next(&mut self) -> Result<bool, CudaError>;
}

/// A copy of the result, made before it is decided.
pub(super) trait EarlyOutput {
    /// Copies a range, which is not written any more.
    fn add(&mut self, range: Range<usize>) -> Result<(), CudaError>;
}

impl ArrivingInput for PieceDownload {
    fn view(&self) -> View {
        self.view()
    }

    fn wait_next(&mut self) -> Result<bool, CudaError> {
        self.wait_next()
    }
}

impl EarlyOutput for ScratchUpload {
    fn add(&mut self, range: Range<usize>) -> Result<(), CudaError> {
        self.add(range)
    }
}

/// A launched all-reduce without buffers.
pub(super) struct Pipeline<'a> {
    pub(super) engine: &'a Engine,
    pub(super) call: CallId,
    pub(super) waiting: Waiting,
}

/// The result of a committed all-reduce, on the host and, if it was complete there in time, in the output.
pub(super) struct PipelineResult<O> {
    pub(super) info: ReduceInfo,
    pub(super) result: Memory,
    pub(super) output: Option<O>,
}

impl Pipeline<'_> {
    /// Runs the operation. No thread but this one waits for the copies: steps whose input is missing are put off.
    ///
    /// The operation begins with the first piece, which may have to wait for the user's work on the device.
    pub(super) fn run<O: EarlyOutput>(
        &self,
        input: &mut impl ArrivingInput,
        target: Memory,
        open_output: impl FnOnce(Lease) -> Option<O>,
    ) -> Result<PipelineResult<O>, Error> {
        let result = target.lease(0..target.len());
        let finals = Arc::new(FinalRanges::new(PIECE_BYTES));
        let begun = input.wait_next().map(|_| HostBuffers::OutOfPlace { source: input.view(), target });
        let begun = begun.map(|buffers| {
            // If the engine has failed, the wait for the end reports it.
            let _ = self.engine.with(|driver| driver.supply_arriving(self.call, buffers, finals.clone()));
        });
        let mut copy = EarlyCopy { finals, output: None };
        let copied_in = match begun {
            Ok(()) => {
                copy.output = open_output(result);
                self.copy_in(input, &mut copy)
            }
            Err(error) => {
                let _ = self.engine.with_waiter(|driver| driver.supply(self.call, None));
                Err(error)
            }
        };
        let ended = self.copy_out(&mut copy);
        copied_in?;
        let ended = ended?;
        ended.result?;
        let Some(HostBuffers::OutOfPlace { target: result, .. }) = ended.buffers else {
            return Err(Error::Internal("the result of a staged all-reduce is missing".into()));
        };
        copy.add_finals();
        Ok(PipelineResult { info: ended.info, result, output: copy.output })
    }

    /// Waits for all pieces, and lets the operation continue after each. It fails if one cannot be copied.
    fn copy_in<O: EarlyOutput>(
        &self,
        input: &mut impl ArrivingInput,
        copy: &mut EarlyCopy<O>,
    ) -> Result<(), CudaError> {
        loop {
            match input.wait_next() {
                Ok(true) => _ = self.engine.with(|driver| driver.note_input(self.call)),
                Ok(false) => return Ok(()),
                Err(error) => {
                    let _ = self.engine.with_waiter(|driver| driver.fail_input(self.call));
                    return Err(error);
                }
            }
            if copy.finals.is_enough() {
                copy.add_finals();
            }
        }
    }

    /// Waits for the end of the operation, and copies what is final meanwhile.
    fn copy_out<O: EarlyOutput>(&self, copy: &mut EarlyCopy<O>) -> Result<Ended, Error> {
        let finals = copy.finals.clone();
        let news = |driver: &mut Driver| {
            let is_running = driver.is_running(self.call);
            (!is_running || finals.is_enough()).then_some(is_running)
        };
        loop {
            match self.engine.ask(self.waiting, news) {
                Ok(true) => copy.add_finals(),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                // If the engine has stopped, the operation may have ended before.
                Ok(false) | Err(_) => return Ok(self.engine.wait_as(self.waiting, self.call)),
            }
        }
    }
}

/// The output, and what can be copied to it.
struct EarlyCopy<O> {
    finals: Arc<FinalRanges>,
    /// None if there is none, or it has failed: then the result is copied when it is decided.
    output: Option<O>,
}

impl<O: EarlyOutput> EarlyCopy<O> {
    fn add_finals(&mut self) {
        let ranges = self.finals.take();
        if let Some(output) = &mut self.output
            && let Err(error) = ranges.into_iter().try_for_each(|range| output.add(range))
        {
            tracing::debug!(%error, "cannot copy a result before it is decided");
            self.output = None;
        }
    }
}
