//! Orders the calls of a rank: each starts after the previous one, on any stream.

use crate::Error;
use core::time::Duration;
use ringfold_cuda::{DeviceMemory, Event, Gpu, Stream};
use std::collections::VecDeque;
use std::time::Instant;

/// The maximum number of unfinished calls whose memory is kept alive.
const KEPT_MAX: usize = 4096;

/// The unfinished calls, oldest first.
#[derive(Default)]
pub(super) struct LaunchQueue {
    queued: VecDeque<QueuedCall>,
    spare: Vec<Event>,
    /// The id of the last capture, and an event after its last call.
    captured: Option<(u64, Event)>,
}

struct QueuedCall {
    end: Event,
    _operands: Vec<DeviceMemory>,
}

impl LaunchQueue {
    /// Makes later work on a stream start after all calls queued before, on any stream.
    ///
    /// This includes the same stream: its handle may be that of a destroyed stream, or of the per-thread stream. In a
    /// capture, work starts after the calls captured before, on any branch. Calls outside of the capture are not
    /// ordered: the stream on which the graph is replayed does that.
    pub(super) fn join(&mut self, stream: &Stream, capture: Option<u64>) -> Result<(), Error> {
        self.forget_done()?;
        let before = match (capture, &self.captured) {
            (None, _) => self.queued.back().map(|last| &last.end),
            (Some(capture), Some((last, event))) if capture == *last && capture != 0 => Some(event),
            (Some(_), _) => None,
        };
        if let Some(before) = before {
            stream.wait(before)?;
        }
        Ok(())
    }

    pub(super) fn push(
        &mut self,
        gpu: &Gpu,
        stream: &Stream,
        operands: Vec<DeviceMemory>,
    ) -> Result<(), Error> {
        let end = self.event(gpu)?;
        stream.record(&end)?;
        self.queued.push_back(QueuedCall { end, _operands: operands });
        if self.queued.len() > KEPT_MAX {
            let oldest = &self.queued[0].end;
            oldest.wait_until(Instant::now() + Duration::from_secs(3600))?;
        }
        Ok(())
    }

    pub(super) fn push_captured(&mut self, gpu: &Gpu, stream: &Stream, capture: u64) -> Result<(), Error> {
        // Never shared with the spare events: a captured event cannot be queried.
        let event = match self.captured.take() {
            Some((_, event)) => event,
            None => gpu.create_event()?,
        };
        stream.record(&event)?;
        self.captured = Some((capture, event));
        Ok(())
    }

    pub(super) fn synchronize(&mut self, deadline: Instant) -> Result<(), Error> {
        if let Some(last) = self.queued.back() {
            last.end.wait_until(deadline)?;
        }
        self.forget_done()
    }

    /// The number of unfinished calls, except those in graphs.
    pub(super) fn unfinished(&mut self) -> Result<usize, Error> {
        self.forget_done()?;
        Ok(self.queued.len())
    }

    /// The end of the last call, unless it is known to be done.
    pub(super) fn last(&self) -> Option<&Event> {
        self.queued.back().map(|queued| &queued.end)
    }

    fn event(&mut self, gpu: &Gpu) -> Result<Event, Error> {
        match self.spare.pop() {
            Some(event) => Ok(event),
            None => Ok(gpu.create_event()?),
        }
    }

    fn forget_done(&mut self) -> Result<(), Error> {
        while let Some(oldest) = self.queued.front()
            && oldest.end.query()?
        {
            let done = self.queued.pop_front();
            self.spare.extend(done.map(|done| done.end));
        }
        Ok(())
    }
}
