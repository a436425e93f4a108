//! Streams: queues of copies and kernels.

mod put_graph;
mod put_kernels;

use crate::api::{self, Api, DriverHandle};
use crate::context::Context;
use crate::error::{CudaError, check};
use crate::event::Event;
use crate::word_ring::WordRing;
use core::ffi::c_uint;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
pub(crate) use put_graph::Put;
use put_graph::PutGraph;
use std::sync::Arc;
use std::time::Instant;

/// A stream. Streams created here are non-blocking: they do not synchronise with the default stream.
pub struct Stream {
    pub(crate) context: Context,
    pub(crate) handle: DriverHandle,
    is_owned: bool,
    /// Whether the stream supports `cuStreamWriteValue64`.
    writes_words: AtomicBool,
    /// The source of words if it does not; none before the first word.
    ring: Mutex<Option<WordRing>>,
    /// Small puts; none before [`Self::prepare_puts`], or if the driver does not support it.
    puts: Mutex<Option<PutGraph>>,
    /// The event of the last wait, for reuse.
    event: Mutex<Option<Event>>,
}

/// Nodes of a graph that is being captured.
#[derive(Clone, Default)]
pub struct CapturedNodes(Arc<[DriverHandle]>);

fn no_capture_nodes() -> CudaError {
    CudaError::Unsupported("the CUDA driver is too old for this operation in a graph: 11.3 is needed".into())
}

impl Stream {
    pub(crate) fn open(context: Context) -> Result<Self, CudaError> {
        let mut handle = 0;
        // SAFETY: the handle can be written.
        let create = |api: &Api| unsafe { (api.create_stream)(&raw mut handle, api::STREAM_NON_BLOCKING) };
        context.call("creating a CUDA stream", create)?;
        Ok(Self::from_handle(context, handle, true))
    }

    /// The legacy default stream.
    pub(crate) fn legacy(context: Context) -> Self {
        Self::borrowed(context, api::LEGACY_STREAM)
    }

    /// Wraps a stream that outlives the value; 0 is the default stream.
    pub(crate) fn borrowed(context: Context, raw: usize) -> Self {
        Self::from_handle(context, raw, false)
    }

    fn from_handle(context: Context, handle: DriverHandle, is_owned: bool) -> Self {
        let writes_words = AtomicBool::new(context.writes_words);
        let (ring, puts, event) = (Mutex::new(None), Mutex::new(None), Mutex::new(None));
        Self { context, handle, is_owned, writes_words, ring, puts, event }
    }

    /// The driver's handle.
    pub fn raw(&self) -> usize {
        self.handle
    }

    /// The driver's number of the stream, which it never reuses; none if the driver does not report it.
    pub fn id(&self) -> Option<u64> {
        let (query, mut id) = (self.context.api.stream_id?, 0);
        // SAFETY: the number can be written.
        (unsafe { query(self.handle, &raw mut id) } == api::SUCCESS).then_some(id)
    }

    /// Queues a copy between any two addresses, of devices or of the host.
    ///
    /// # Safety
    /// Both ranges stay allocated until the copy is done, and are not used by work that is not ordered with it.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.context.call("copying CUDA memory", |api| unsafe { (api.copy)(to, from, bytes, self.handle) })
    }

    /// Loads what fast puts need. Called before kernels wait for puts: loading may wait for all running kernels.
    pub(crate) fn prepare_puts(&self) {
        let mut puts = self.puts.lock();
        if puts.is_none() {
            *puts = PutGraph::new(self.context);
        }
    }

    /// Queues a copy between addresses that the device can access, and the store of a word after it, as by `write_word`.
    /// The stream must not be captured.
    ///
    /// # Safety
    /// As for `copy` and `write_word`.
    pub(crate) unsafe fn put(&self, put: &Put) -> Result<(), CudaError> {
        let _current = self.context.current()?;
        if put.bytes > 0 {
            if let Some(graph) = &mut *self.puts.lock()
                // SAFETY: the caller's promise.
                && unsafe { graph.launch(put, self.handle) }
            {
                return Ok(());
            }
            // SAFETY: the caller's promise.
            let code = unsafe { (self.context.api.copy_within)(put.to, put.from, put.bytes, self.handle) };
            check(self.context.api, "copying CUDA memory", code)?;
        }
        // SAFETY: the caller's promise.
        put.word.map_or(Ok(()), |(word, value)| unsafe { self.write_word(word, value) })
    }

    /// Queues a fill of bytes with a value.
    ///
    /// # Safety
    /// As for `copy`.
    pub unsafe fn fill(&self, address: u64, value: u8, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let fill = |api: &Api| unsafe { (api.fill)(address, value, bytes, self.handle) };
        self.context.call("filling CUDA memory", fill)
    }

    /// Queues an atomic store of an aligned word of eight bytes, with release order after all work queued before.
    ///
    /// # Safety
    /// As for `copy`. The word is in device memory, or in mapped host memory given by its device address.
    pub unsafe fn write_word(&self, address: u64, value: u64) -> Result<(), CudaError> {
        if !address.is_multiple_of(8) {
            return Err(CudaError::Argument(format!(
                "invalid word address {address:#x}: not a multiple of 8"
            )));
        }
        let _current = self.context.current()?;
        if let Some(write_word) = self.context.api.write_word
            && self.writes_words.load(Ordering::Relaxed)
        {
            // SAFETY: the caller's promise.
            let code = unsafe { write_word(self.handle, address, value, 0) };
            match code {
                // Not on this device.
                api::NOT_SUPPORTED => self.writes_words.store(false, Ordering::Relaxed),
                // Not into memory of this kind; if the address is invalid, the copy reports it.
                api::INVALID_VALUE => {}
                code => return check(self.context.api, "writing a word on a CUDA stream", code),
            }
        }
        let mut ring = self.ring.lock();
        let ring = match &mut *ring {
            Some(ring) => ring,
            none => none.insert(WordRing::open(self.context)?),
        };
        let from = ring.store(value, |event| self.record(event))?;
        // SAFETY: the caller's promise for the word; the ring keeps its own until it was copied.
        let code = unsafe { (self.context.api.copy)(address, from, 8, self.handle) };
        check(self.context.api, "writing a word on a CUDA stream", code)
    }

    /// Copies a few bytes to device memory, and waits for the copy.
    ///
    /// # Safety
    /// The target has so many bytes, and is not used by work that is not ordered with the copy. `bytes` is pageable memory.
    pub(crate) unsafe fn set(&self, to: u64, bytes: &[u8], deadline: Instant) -> Result<(), CudaError> {
        // SAFETY: the caller's promise. The driver has read pageable memory when the call returns.
        let copy = |api: &Api| unsafe { (api.copy_up)(to, bytes.as_ptr().cast(), bytes.len(), self.handle) };
        self.context.call("copying to a CUDA device", copy)?;
        self.synchronize(deadline)
    }

    /// Records an event, which completes when all work queued before is done.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: event and stream exist, on one device.
        let record = |api: &Api| unsafe { (api.record_event)(event.handle, self.handle) };
        self.context.call("recording a CUDA event", record)
    }

    /// Records a new event.
    pub(crate) fn record_event(&self) -> Result<Event, CudaError> {
        let event = Event::open(self.context, api::EVENT_BLOCKING_SYNC | api::EVENT_DISABLE_TIMING)?;
        self.record(&event)?;
        Ok(event)
    }

    /// Makes work queued from now on wait for the event.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: stream and event exist, and may be of different devices.
        let wait = |api: &Api| unsafe { (api.stream_wait)(self.handle, event.handle, 0) };
        self.context.call("making a CUDA stream wait", wait)
    }

    /// Waits until all queued work is done or the deadline passes.
    pub fn synchronize(&self, deadline: Instant) -> Result<(), CudaError> {
        let last = self.event.lock().take();
        let event = match last {
            Some(event) => event,
            None => Event::open(self.context, api::EVENT_DISABLE_TIMING)?,
        };
        self.record(&event)?;
        let result = event.wait_until(deadline);
        *self.event.lock() = Some(event);
        result
    }

    /// Whether all queued work is done.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _current = self.context.current()?;
        // SAFETY: the stream exists.
        let code = unsafe { (self.context.api.query_stream)(self.handle) };
        if code == api::NOT_READY {
            return Ok(false);
        }
        check(self.context.api, "querying a CUDA stream", code).map(|()| true)
    }

    /// Whether the stream is being captured into a graph.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        let mut status = api::CAPTURE_STATUS_NONE;
        // SAFETY: the status can be written, and the stream exists.
        let query = |api: &Api| unsafe { (api.is_capturing)(self.handle, &raw mut status) };
        self.context.call("querying the capture of a CUDA stream", query)?;
        Ok(status != api::CAPTURE_STATUS_NONE)
    }

    /// The id of the capture that the stream is in, unique in this process; 0 if the driver does not report it.
    pub fn capture(&self) -> Result<Option<u64>, CudaError> {
        let Some(capture_info) = self.context.api.capture_info else {
            return Ok(self.is_capturing()?.then_some(0));
        };
        let (mut status, mut number) = (api::CAPTURE_STATUS_NONE, 0);
        let (graph, nodes, count) = (core::ptr::null_mut(), core::ptr::null_mut(), core::ptr::null_mut());
        self.context.call("querying the capture of a CUDA stream", |_| {
            // SAFETY: status and number can be written, the rest is null, and the stream exists.
            unsafe { capture_info(self.handle, &raw mut status, &raw mut number, graph, nodes, count) }
        })?;
        Ok((status != api::CAPTURE_STATUS_NONE).then_some(number))
    }

    /// The last nodes of the captured stream: what is queued next waits for these. Valid while the capture lasts.
    pub fn captured_nodes(&self) -> Result<CapturedNodes, CudaError> {
        let api = self.context.api;
        let info = api.capture_info.ok_or_else(no_capture_nodes)?;
        let (mut status, mut number) = (api::CAPTURE_STATUS_NONE, 0);
        let (mut graph, mut nodes, mut count) = (0, core::ptr::null(), 0);
        self.context.call("querying the capture of a CUDA stream", |_| {
            // SAFETY: all values can be written, and the stream exists.
            unsafe {
                info(
                    self.handle,
                    &raw mut status,
                    &raw mut number,
                    &raw mut graph,
                    &raw mut nodes,
                    &raw mut count,
                )
            }
        })?;
        if status == api::CAPTURE_STATUS_NONE || count == 0 {
            return Ok(CapturedNodes::default());
        }
        // SAFETY: the driver's array is valid until the next call for this stream.
        Ok(CapturedNodes(unsafe { core::slice::from_raw_parts(nodes, count) }.into()))
    }

    /// Makes later work of the captured stream wait for nodes of the same capture, too.
    pub fn wait_captured(&self, nodes: &CapturedNodes) -> Result<(), CudaError> {
        self.update_captured(nodes, api::ADD_CAPTURE_DEPENDENCIES)
    }

    /// Queues work in a branch of the graph that is being captured: later work of the stream does not wait for it. The branch
    /// need not be joined: a graph ends when all its branches have ended.
    pub fn branch<T>(&self, queue: impl FnOnce() -> T) -> Result<T, CudaError> {
        let before = self.captured_nodes()?;
        let queued = queue();
        self.update_captured(&before, api::SET_CAPTURE_DEPENDENCIES)?;
        Ok(queued)
    }

    fn update_captured(&self, nodes: &CapturedNodes, flags: c_uint) -> Result<(), CudaError> {
        let update = self.context.api.update_capture.ok_or_else(no_capture_nodes)?;
        // SAFETY: the driver only reads the nodes, which belong to the capture of the stream.
        let call =
            |_: &Api| unsafe { update(self.handle, nodes.0.as_ptr().cast_mut(), nodes.0.len(), flags) };
        self.context.call("ordering a captured CUDA stream", call)
    }

    /// Waits until all queued work is done or has failed.
    pub(crate) fn drain(&self) {
        // SAFETY: the stream exists.
        let wait = |api: &Api| unsafe { (api.stream_synchronize)(self.handle) };
        let _ = self.context.call("waiting for a CUDA stream", wait);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_owned {
            // The stream may still read words of the ring.
            if self.ring.get_mut().is_some() {
                self.drain();
            }
            // SAFETY: the stream exists, and nothing more is queued; the driver completes what is queued.
            let destroy = |api: &Api| unsafe { (api.destroy_stream)(self.handle) };
            let _ = self.context.call("destroying a CUDA stream", destroy);
        }
    }
}

#[cfg(test)]
mod tests;
