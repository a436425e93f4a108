//! A queue of copies and kernels.

mod copy_graph;

use crate::api::{self, GraphCopy, Handle};
use crate::context::Context;
use crate::error::{CudaError, check};
use crate::event::Event;
use crate::limits::GRAPH_COPY_MAX;
use crate::word_ring::WordRing;
use copy_graph::CopyGraph;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use std::time::Instant;

/// A stream. One of ours waits for no other unless it is told to, not even for the default one.
pub struct Stream {
    pub(crate) context: Context,
    pub(crate) handle: Handle,
    is_ours: bool,
    /// Whether the device sets words of memory by itself.
    writes_words: AtomicBool,
    /// What words are copied from if it does not; none before the first.
    ring: Mutex<Option<WordRing>>,
    /// What small copies go by.
    copies: Mutex<Copies>,
    /// The event of the last wait, for the next one.
    mark: Mutex<Option<Event>>,
}

/// How small copies are queued.
enum Copies {
    /// There was none yet.
    Untried,
    Graph(CopyGraph),
    /// By the driver's call, as large ones.
    Call,
}

// SAFETY: streams may be used from any thread; the driver locks what it has to.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn open(context: Context) -> Result<Self, CudaError> {
        let _current = context.current()?;
        let mut handle: Handle = core::ptr::null_mut();
        // SAFETY: the handle can be written.
        let code = unsafe { (context.api.create_stream)(&raw mut handle, api::STREAM_NON_BLOCKING) };
        check(context.api, "making a CUDA stream", code)?;
        Ok(Self::of(context, handle, true))
    }

    /// The stream that queues what names no stream.
    pub(crate) fn legacy(context: Context) -> Self {
        Self::borrowed(context, api::LEGACY_STREAM)
    }

    /// A stream by its handle, which exists for as long as the value; 0 is the default stream.
    pub(crate) fn borrowed(context: Context, raw: usize) -> Self {
        Self::of(context, core::ptr::without_provenance_mut(raw), false)
    }

    fn of(context: Context, handle: Handle, is_ours: bool) -> Self {
        let writes_words = AtomicBool::new(context.writes_words);
        let (ring, copies, mark) = (Mutex::new(None), Mutex::new(Copies::Untried), Mutex::new(None));
        Self { context, handle, is_ours, writes_words, ring, copies, mark }
    }

    /// The driver's handle.
    pub fn raw(&self) -> usize {
        self.handle.addr()
    }

    /// Queues a copy between any two places, of devices or of the host.
    ///
    /// # Safety
    /// Both places have so many bytes until the copy is done, and are used by nothing that the copy is not ordered with.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.context.current()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.api.copy)(to, from, bytes, self.handle) };
        check(self.context.api, "copying memory of a CUDA device", code)
    }

    /// As `copy`, between two places of devices, which the driver need not find out then. The stream is not captured.
    ///
    /// # Safety
    /// As for `copy`. Both places are of devices.
    pub(crate) unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.context.current()?;
        // SAFETY: the caller's promise.
        if bytes <= GRAPH_COPY_MAX && unsafe { self.copy_by_graph(&GraphCopy::new(to, from, bytes)) } {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.api.copy_within)(to, from, bytes, self.handle) };
        check(self.context.api, "copying memory of a CUDA device", code)
    }

    /// Queues a copy within devices by a graph, on the current context. False if it can't be done so.
    ///
    /// # Safety
    /// As for `copy_within`.
    unsafe fn copy_by_graph(&self, copy: &GraphCopy) -> bool {
        let mut copies = self.copies.lock();
        if let Copies::Untried = &*copies {
            *copies = CopyGraph::new(self.context, copy).map_or(Copies::Call, Copies::Graph);
        }
        let Copies::Graph(graph) = &mut *copies else { return false };
        // SAFETY: the caller's promise.
        let is_queued = unsafe { graph.launch(copy, self.handle) };
        if !is_queued {
            // Such memory can't be copied so, and neither will what comes after it.
            *copies = Copies::Call;
        }
        is_queued
    }

    /// Queues that bytes are overwritten with a value.
    ///
    /// # Safety
    /// As for `copy`.
    pub unsafe fn fill(&self, address: u64, value: u8, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.context.current()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.api.fill)(address, value, bytes, self.handle) };
        check(self.context.api, "filling memory of a CUDA device", code)
    }

    /// Queues that an aligned word of eight bytes is set, at once for whoever looks. What was queued before can be seen
    /// by those who see it.
    ///
    /// # Safety
    /// As for `copy`. The word is in a device's memory, or in mapped memory of the host by its device address.
    pub unsafe fn write_word(&self, address: u64, value: u64) -> Result<(), CudaError> {
        if !address.is_multiple_of(8) {
            return Err(CudaError::Argument(format!(
                "{address:#x} is no address of a word: it is no multiple of 8"
            )));
        }
        let _current = self.context.current()?;
        if let Some(write_word) = self.context.api.write_word
            && self.writes_words.load(Ordering::Relaxed)
        {
            // SAFETY: the caller's promise.
            let code = unsafe { write_word(self.handle, address, value, 0) };
            match code {
                // Not on this device, after all.
                api::NOT_SUPPORTED => self.writes_words.store(false, Ordering::Relaxed),
                // Not into memory of this kind; if it is nobody's, the copy will tell.
                api::INVALID_VALUE => {}
                code => return check(self.context.api, "setting a word by a CUDA stream", code),
            }
        }
        let mut ring = self.ring.lock();
        let ring = match &mut *ring {
            Some(ring) => ring,
            none => none.insert(WordRing::open(self.context)?),
        };
        let from = ring.place(value, |event| self.record(event))?;
        // SAFETY: the caller's promise for the word; the ring keeps its own until it was copied.
        let code = unsafe { (self.context.api.copy)(address, from, 8, self.handle) };
        check(self.context.api, "setting a word by a CUDA stream", code)
    }

    /// Copies a few bytes into a device's memory, and returns when they are there, or it is too late for that.
    ///
    /// # Safety
    /// There is room for so many bytes, which nothing uses that the copy is not ordered with. They are not page-locked.
    pub(crate) unsafe fn set(&self, to: u64, bytes: &[u8], deadline: Instant) -> Result<(), CudaError> {
        {
            let _current = self.context.current()?;
            // SAFETY: the caller's promise. The driver has read bytes that are not page-locked when it returns.
            let code =
                unsafe { (self.context.api.copy_up)(to, bytes.as_ptr().cast(), bytes.len(), self.handle) };
            check(self.context.api, "copying to a CUDA device", code)?;
        }
        self.synchronize(deadline)
    }

    /// The event is reached when all that is queued now is done.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        let _current = self.context.current()?;
        // SAFETY: event and stream exist, on one device.
        let code = unsafe { (self.context.api.record_event)(event.handle, self.handle) };
        check(self.context.api, "marking a CUDA stream", code)
    }

    /// An event that is reached when all that is queued now is done.
    pub(crate) fn mark(&self) -> Result<Event, CudaError> {
        let event = Event::open(self.context, api::EVENT_BLOCKING_SYNC | api::EVENT_DISABLE_TIMING)?;
        self.record(&event)?;
        Ok(event)
    }

    /// What is queued from now on begins after the event.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        let _current = self.context.current()?;
        // SAFETY: stream and event exist, and may be of different devices.
        let code = unsafe { (self.context.api.stream_wait)(self.handle, event.handle, 0) };
        check(self.context.api, "waiting for work of a CUDA device", code)
    }

    /// Returns when all that is queued now is done, or it is too late for that.
    pub fn synchronize(&self, deadline: Instant) -> Result<(), CudaError> {
        let kept = self.mark.lock().take();
        let mark = match kept {
            Some(mark) => mark,
            None => Event::open(self.context, api::EVENT_DISABLE_TIMING)?,
        };
        self.record(&mark)?;
        let end = mark.wait_until(deadline);
        *self.mark.lock() = Some(mark);
        end
    }

    /// Whether all that is queued is done.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _current = self.context.current()?;
        // SAFETY: the stream exists.
        let code = unsafe { (self.context.api.query_stream)(self.handle) };
        if code == api::NOT_READY {
            return Ok(false);
        }
        check(self.context.api, "waiting for work of a CUDA device", code).map(|()| true)
    }

    /// Whether what is queued becomes part of a graph instead of being done.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        let _current = self.context.current()?;
        let mut status = api::CAPTURE_STATUS_NONE;
        // SAFETY: the status can be written, and the stream exists.
        let code = unsafe { (self.context.api.is_capturing)(self.handle, &raw mut status) };
        check(self.context.api, "asking whether a CUDA stream is captured", code)?;
        Ok(status != api::CAPTURE_STATUS_NONE)
    }

    /// The number of the capture that what is queued becomes part of, which no other one of this process has; 0 if the
    /// driver does not tell. None if it is done instead.
    pub fn capture(&self) -> Result<Option<u64>, CudaError> {
        let Some(capture_info) = self.context.api.capture_info else {
            return Ok(self.is_capturing()?.then_some(0));
        };
        let _current = self.context.current()?;
        let (mut status, mut number) = (api::CAPTURE_STATUS_NONE, 0);
        let (graph, nodes, count) = (core::ptr::null_mut(), core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: status and number can be written, the rest is not asked for, and the stream exists.
        let code =
            unsafe { capture_info(self.handle, &raw mut status, &raw mut number, graph, nodes, count) };
        check(self.context.api, "asking whether a CUDA stream is captured", code)?;
        Ok((status != api::CAPTURE_STATUS_NONE).then_some(number))
    }

    /// Returns when all that is queued is done, or can't be.
    pub(crate) fn drain(&self) {
        if let Ok(_current) = self.context.current() {
            // SAFETY: the stream exists.
            let _ = unsafe { (self.context.api.stream_synchronize)(self.handle) };
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_ours
            && let Ok(_current) = self.context.current()
        {
            // The words on their way are read until the stream has done with them.
            if self.ring.get_mut().is_some() {
                // SAFETY: the stream exists.
                let _ = unsafe { (self.context.api.stream_synchronize)(self.handle) };
            }
            // SAFETY: the stream exists, and nobody queues anything any more; what is queued is still done.
            let _ = unsafe { (self.context.api.destroy_stream)(self.handle) };
        }
    }
}

#[cfg(test)]
mod tests;
