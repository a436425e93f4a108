//! The order of what a rank queues: each call begins after the one before, on whatever streams they are.

use crate::Error;
use core::time::Duration;
use ringfold_cuda::{DeviceMemory, Event, Gpu, Stream};
use std::collections::VecDeque;
use std::time::Instant;

/// Calls whose memory is kept until they are done; there are seldom more under way.
const KEPT_MAX: usize = 4096;

/// What was queued, oldest first.
#[derive(Default)]
pub(super) struct Line {
    queued: VecDeque<Queued>,
    /// Events to be used again.
    spare: Vec<Event>,
    /// What was captured last: the number of the capture, and the place in it.
    captured: Option<(u64, Event)>,
}

struct Queued {
    end: Event,
    /// Not let go of before the end.
    _operands: [DeviceMemory; 2],
}

impl Line {
    /// Has what is queued on a stream from now on begin after all that was queued before, wherever: also on the same stream,
    /// as far as its handle tells, which may be that of a stream that is gone, or of each thread's own one.
    ///
    /// In a capture (which has a number), it begins after what was captured before, on whatever branch. What was queued
    /// outside is none of the graph's business: whoever replays it orders it by the stream that it is replayed on.
    pub(super) fn join(&mut self, stream: &Stream, capture: Option<u64>) -> Result<(), Error> {
        self.forget_done()?;
        let before = match (capture, &self.captured) {
            (None, _) => self.queued.back().map(|last| &last.end),
            (Some(capture), Some((last, place))) if capture == *last && capture != 0 => Some(place),
            (Some(_), _) => None,
        };
        if let Some(before) = before {
            stream.wait(before)?;
        }
        Ok(())
    }

    /// Something was queued on a stream.
    pub(super) fn push(
        &mut self,
        gpu: &Gpu,
        stream: &Stream,
        operands: [DeviceMemory; 2],
    ) -> Result<(), Error> {
        let end = self.event(gpu)?;
        stream.record(&end)?;
        self.queued.push_back(Queued { end, _operands: operands });
        if self.queued.len() > KEPT_MAX {
            let oldest = &self.queued[0].end;
            oldest.wait_until(Instant::now() + Duration::from_secs(3600))?;
        }
        Ok(())
    }

    /// Something was captured on a stream.
    pub(super) fn push_captured(&mut self, gpu: &Gpu, stream: &Stream, capture: u64) -> Result<(), Error> {
        // Not one of the spare ones, and never one of them: an event of a capture can't be asked whether it is reached.
        let place = match self.captured.take() {
            Some((_, place)) => place,
            None => gpu.create_event()?,
        };
        stream.record(&place)?;
        self.captured = Some((capture, place));
        Ok(())
    }

    /// Waits until all is done.
    pub(super) fn settle(&mut self, deadline: Instant) -> Result<(), Error> {
        if let Some(last) = self.queued.back() {
            last.end.wait_until(deadline)?;
        }
        self.forget_done()
    }

    /// The end of what was queued last, if that may still be under way.
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
