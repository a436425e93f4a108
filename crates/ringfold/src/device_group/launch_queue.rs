//! Orders the calls of a rank: each starts after the previous one, on any stream.

use crate::Error;
use core::time::Duration;
use ringfold_cuda::{CapturedNodes, CudaError, DeviceMemory, Event, Gpu, Stream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The maximum number of unfinished calls whose memory is kept alive.
const KEPT_MAX: usize = 4096;

/// The number of queued calls from which on finished ones are looked for: each query of an event costs time.
const QUERIED_MIN: usize = 32;

/// The unfinished calls, oldest first.
#[derive(Default)]
pub(super) struct LaunchQueue {
    queued: VecDeque<QueuedCall>,
    /// The number of the stream of the last call.
    last_stream: Option<u64>,
    /// The number of calls so far, except those in graphs.
    issued: u64,
    /// The same, for other threads.
    launched: Option<Arc<AtomicU64>>,
    spare: Vec<Event>,
    /// The id of the last capture, and the nodes after its last call.
    captured: Option<(u64, CapturedNodes)>,
}

/// The end of a queued call.
#[derive(Clone, Default)]
pub struct CallEnd {
    /// None if there is nothing to wait for.
    event: Option<Arc<Event>>,
    /// The capture that the call is in, and its last nodes.
    captured: Option<(u64, CapturedNodes)>,
}

impl CallEnd {
    /// Whether the call has ended. Captured ones have.
    pub fn is_done(&self) -> Result<bool, Error> {
        Ok(self.event.as_deref().map_or(Ok(true), Event::query)?)
    }

    /// Waits for the end. False after the deadline.
    pub fn wait_until(&self, deadline: Instant) -> Result<bool, Error> {
        match self.event.as_deref().map_or(Ok(()), |end| end.wait_until(deadline)) {
            Ok(()) => Ok(true),
            Err(CudaError::TimedOut { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes later work on a stream wait for the end; that of a captured call only in its capture.
    pub fn order_after(&self, stream: &Stream) -> Result<(), Error> {
        match (&self.event, &self.captured) {
            (Some(event), _) => Ok(stream.wait(event)?),
            (None, Some((id, nodes))) if stream.capture()? == Some(*id) => Ok(stream.wait_captured(nodes)?),
            _ => Ok(()),
        }
    }

    /// The id of the capture that the call is in.
    pub fn capture(&self) -> Option<u64> {
        self.captured.as_ref().map(|(id, _)| *id)
    }
}

struct QueuedCall {
    end: Arc<Event>,
    _operands: Vec<DeviceMemory>,
}

impl LaunchQueue {
    /// A queue that counts its calls for other threads.
    pub(super) fn counted(launched: Arc<AtomicU64>) -> Self {
        Self { launched: Some(launched), ..Self::default() }
    }

    /// Makes later work on a stream start after all calls queued before, on any stream.
    ///
    /// Streams are told apart by their numbers: a handle may be that of a destroyed stream, or of the per-thread stream. In a
    /// capture, work starts after the calls captured before, on any branch. Calls outside of the capture are not
    /// ordered: the stream on which the graph is replayed does that.
    pub(super) fn join(&mut self, stream: &Stream, capture: Option<u64>) -> Result<(), Error> {
        if self.queued.len() >= QUERIED_MIN {
            self.forget_done()?;
        }
        match (capture, &self.captured) {
            (None, _) => {
                let (id, last) = (stream.id(), self.last_stream);
                self.last_stream = id;
                if let Some(before) = self.queued.back().filter(|_| id.is_none() || id != last) {
                    stream.wait(&before.end)?;
                }
            }
            (Some(capture), Some((last, nodes))) if capture == *last => stream.wait_captured(nodes)?,
            (Some(_), _) => {}
        }
        Ok(())
    }

    /// Ends a call: what was queued on the stream belongs to it, with its memory.
    pub(super) fn end(
        &mut self,
        gpu: &Gpu,
        stream: &Stream,
        capture: Option<u64>,
        operands: Vec<DeviceMemory>,
    ) -> Result<CallEnd, Error> {
        match capture {
            None => self.push(gpu, stream, operands),
            Some(capture) => {
                let end = (capture, stream.captured_nodes()?);
                self.captured = Some(end.clone());
                Ok(CallEnd { event: None, captured: Some(end) })
            }
        }
    }

    fn push(&mut self, gpu: &Gpu, stream: &Stream, operands: Vec<DeviceMemory>) -> Result<CallEnd, Error> {
        let end = Arc::new(self.event(gpu)?);
        stream.record(&end)?;
        self.queued.push_back(QueuedCall { end: end.clone(), _operands: operands });
        self.issued += 1;
        if let Some(launched) = &self.launched {
            launched.store(self.issued, Ordering::Relaxed);
        }
        if self.queued.len() > KEPT_MAX {
            let oldest = &self.queued[0].end;
            oldest.wait_until(Instant::now() + Duration::from_secs(3600))?;
        }
        Ok(CallEnd { event: Some(end), captured: None })
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

    fn event(&mut self, gpu: &Gpu) -> Result<Event, Error> {
        match self.spare.pop() {
            Some(event) => Ok(event),
            None => Ok(gpu.create_event()?),
        }
    }

    /// The number of calls so far, except those in graphs.
    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    /// Whether the first so many calls are done.
    pub(super) fn has_ended(&mut self, calls: u64) -> bool {
        self.unfinished().is_ok_and(|unfinished| self.issued - unfinished as u64 >= calls)
    }

    /// Whether all calls are done, except those in graphs.
    pub(super) fn is_idle(&mut self) -> bool {
        self.unfinished().is_ok_and(|calls| calls == 0)
    }

    fn forget_done(&mut self) -> Result<(), Error> {
        while let Some(oldest) = self.queued.front()
            && oldest.end.query()?
        {
            let done = self.queued.pop_front();
            // Others may still ask whether it has ended.
            self.spare.extend(done.and_then(|done| Arc::into_inner(done.end)));
        }
        Ok(())
    }
}
