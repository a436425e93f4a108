//! A copy from the host to a device that begins before its data is decided.

use crate::default_stream_mark::DefaultStreamMark;
use crate::device::Device;
use crate::device_memory::DeviceMemory;
use crate::error::{CudaError, check};
use crate::scratch::Scratch;
use core::ops::Range;
use ringfold_fabric::memory::Lease;

/// An upload in parts into scratch memory of a device. The target is written at once, when the upload is finished.
///
/// Dropping it waits for all copies, and leaves the target unchanged.
pub struct ScratchUpload {
    device: &'static Device,
    target: DeviceMemory,
    scratch: Scratch,
    bytes: Lease,
    uploaded: usize,
    /// Whether copies may be running.
    is_busy: bool,
}

impl ScratchUpload {
    /// Takes scratch memory for an upload of `bytes`, page-locked memory as long as the target. Fails if the device has too little memory.
    pub fn new(target: &DeviceMemory, bytes: Lease) -> Result<Self, CudaError> {
        let unfit = || CudaError::Argument(format!("invalid upload of {} bytes to {target:?}", bytes.len()));
        let device = target.device().filter(|_| target.len() == bytes.len()).ok_or_else(unfit)?;
        let scratch = Scratch::acquire(device, target.len())?;
        Ok(Self { device, target: target.clone(), scratch, bytes, uploaded: 0, is_busy: false })
    }

    /// Queues the upload of a range, which is not written any more.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn add(&mut self, range: Range<usize>) -> Result<(), CudaError> {
        let len = self.bytes.len();
        assert!(range.start <= range.end && range.end <= len, "{range:?} is out of bounds of {len} bytes");
        let device = self.device;
        let _current = device.current()?;
        self.is_busy = true;
        let address = self.scratch.address() + range.start as u64;
        // SAFETY: both have so many bytes from the start of the range on, and are held until the copy is done.
        let code = unsafe {
            let from = self.bytes.start().add(range.start);
            (device.api.copy_up)(address, from.cast(), range.len(), device.upload_stream.handle)
        };
        check(device.api, "copying to a CUDA device", code)?;
        self.uploaded += range.len();
        Ok(())
    }

    /// Whether as many bytes were added as the target has.
    pub fn is_complete(&self) -> bool {
        self.uploaded == self.bytes.len()
    }

    /// Copies the scratch memory to the target, after the mark, and waits for that.
    pub fn finish(mut self, after: &DefaultStreamMark) -> Result<(), CudaError> {
        let device = self.device;
        let _current = device.current()?;
        after.make_wait(&device.upload_stream, device.ordinal)?;
        self.is_busy = true;
        // SAFETY: both have so many bytes, and are held until the copy is done.
        let code = unsafe {
            let (to, from) = (self.target.address(), self.scratch.address());
            (device.api.copy_within)(to, from, self.target.len(), device.upload_stream.handle)
        };
        check(device.api, "copying CUDA memory", code)?;
        device.upload_stream.record_event()?.wait()?;
        self.is_busy = false;
        Ok(())
    }
}

impl Drop for ScratchUpload {
    fn drop(&mut self) {
        let stream = &self.device.upload_stream;
        if self.is_busy && stream.record_event().and_then(|last| last.wait()).is_err() {
            stream.drain();
        }
    }
}
