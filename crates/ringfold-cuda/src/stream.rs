//! A queue of copies.

use crate::api::{self, Api, Handle};
use crate::device::Device;
use crate::error::{CudaError, check};
use crate::event::Event;

/// A stream of ours, which is kept for the life of the process and waits for no other unless it is told to.
pub(crate) struct Stream {
    pub(crate) handle: Handle,
}

impl Stream {
    /// On the device whose context is current.
    pub(crate) fn create(api: &'static Api) -> Result<Self, CudaError> {
        let mut handle: Handle = core::ptr::null_mut();
        // SAFETY: the handle can be written.
        let code = unsafe { (api.create_stream)(&raw mut handle, api::STREAM_NON_BLOCKING) };
        check(api, "making a CUDA stream", code)?;
        Ok(Self { handle })
    }

    /// The stream that queues what names no stream, of whatever device is current.
    pub(crate) fn legacy() -> Self {
        Self { handle: core::ptr::without_provenance_mut(api::LEGACY_STREAM) }
    }

    /// What is queued from now on begins after the event.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        let api = event.device.api;
        // SAFETY: stream and event exist, and may be of different devices.
        check(api, "waiting for work of a CUDA device", unsafe {
            (api.stream_wait)(self.handle, event.handle, 0)
        })
    }

    /// Returns when all that is queued is done, or can't be.
    pub(crate) fn drain(&self, device: &Device) {
        if let Ok(_current) = device.current() {
            // SAFETY: the stream exists.
            let _ = unsafe { (device.api.stream_synchronize)(self.handle) };
        }
    }
}
