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
    /// The last of all, also if it is done.
    last_stream: Option<usize>,
}

struct Queued {
    end: Event,
    /// Not let go of before the end.
    _operands: [DeviceMemory; 2],
}

impl Line {
    /// Has what is queued on a stream from now on begin after all that was queued before, wherever. While a stream is
    /// captured, that can't be said: what was queued outside is none of the graph's business, and whoever replays it
    /// orders it by the stream that it is replayed on.
    pub(super) fn join(&mut self, stream: &Stream, is_capturing: bool) -> Result<(), Error> {
        self.forget_done()?;
        if let Some(last) = self.queued.back()
            && !is_capturing
            && self.last_stream != Some(stream.raw())
        {
            stream.wait(&last.end)?;
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
        let end = match self.spare.pop() {
            Some(event) => event,
            None => Event::create(gpu)?,
        };
        stream.record(&end)?;
        self.last_stream = Some(stream.raw());
        self.queued.push_back(Queued { end, _operands: operands });
        if self.queued.len() > KEPT_MAX {
            let oldest = &self.queued[0].end;
            oldest.wait_until(Instant::now() + Duration::from_secs(3600))?;
        }
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
