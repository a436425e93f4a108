//! A place in a queue that one can wait for.

use crate::api::{self, Handle};
use crate::device::Device;
use crate::error::{CudaError, check};
use crate::limits::SPIN;
use crate::stream::Stream;
use std::time::Instant;

/// A place in a stream's queue.
pub(crate) struct Event {
    pub(crate) device: &'static Device,
    pub(crate) handle: Handle,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// After all that is queued now. The device must be current.
    pub(crate) fn record(device: &'static Device, stream: &Stream) -> Result<Self, CudaError> {
        let api = device.api;
        let mut handle: Handle = core::ptr::null_mut();
        let flags = api::EVENT_BLOCKING_SYNC | api::EVENT_DISABLE_TIMING;
        // SAFETY: the handle can be written.
        check(api, "making a CUDA event", unsafe { (api.create_event)(&raw mut handle, flags) })?;
        let event = Self { device, handle };
        // SAFETY: event and stream exist, on one device.
        check(api, "marking a CUDA stream", unsafe { (api.record_event)(handle, stream.handle) })?;
        Ok(event)
    }

    /// Whether all before it is done.
    pub(crate) fn is_reached(&self) -> Result<bool, CudaError> {
        // SAFETY: the event exists.
        let code = unsafe { (self.device.api.query_event)(self.handle) };
        if code == api::NOT_READY {
            return Ok(false);
        }
        check(self.device.api, "copying from or to a CUDA device", code).map(|()| true)
    }

    /// Returns when all before it is done.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        let _current = self.device.current()?;
        let began = Instant::now();
        while began.elapsed() < SPIN {
            if self.is_reached()? {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        // SAFETY: the event exists.
        let code = unsafe { (self.device.api.wait_event)(self.handle) };
        check(self.device.api, "copying from or to a CUDA device", code)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: the event exists, and nobody uses it after this.
            let _ = unsafe { (self.device.api.destroy_event)(self.handle) };
        }
    }
}
