//! One device: its primary context, and two streams of ours.

use crate::api::{Address, Api, Handle};
use crate::error::{CudaError, check, check_memory};
use crate::stream::Stream;
use core::ffi::c_int;

/// A device whose primary context is retained.
pub(crate) struct Device {
    pub(crate) api: &'static Api,
    pub(crate) ordinal: i32,
    context: Handle,
    /// Copies to the host, and copies from it: the two directions do not wait for each other.
    pub(crate) down: Stream,
    pub(crate) up: Stream,
}

// SAFETY: contexts, streams and events may be used from any thread; the driver locks what it has to.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn open(api: &'static Api, ordinal: i32) -> Result<Self, CudaError> {
        let (mut device, mut context): (c_int, Handle) = (0, core::ptr::null_mut());
        // SAFETY: the device can be written.
        check(api, "choosing a CUDA device", unsafe { (api.device)(&raw mut device, ordinal) })?;
        // SAFETY: the context can be written, and is not released before the process ends.
        let code = unsafe { (api.retain_context)(&raw mut context, device) };
        check(api, "opening a CUDA device", code)?;
        let _current = Current::push(api, context)?;
        let (down, up) = (Stream::create(api)?, Stream::create(api)?);
        Ok(Self { api, ordinal, context, down, up })
    }

    /// Makes the device the one that this thread's calls are for, until the guard is dropped.
    pub(crate) fn current(&self) -> Result<Current, CudaError> {
        Current::push(self.api, self.context)
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<Address, CudaError> {
        let _current = self.current()?;
        let mut address = 0;
        // SAFETY: the address can be written.
        let code = unsafe { (self.api.allocate)(&raw mut address, bytes) };
        let lacking = CudaError::OutOfMemory { device: self.ordinal, bytes };
        check_memory(self.api, "allocating memory of a CUDA device", code, lacking)?;
        Ok(address)
    }

    /// # Safety
    /// The address came from `allocate`, and nothing uses its memory.
    pub(crate) unsafe fn free(&self, address: Address) {
        if let Ok(_current) = self.current() {
            // SAFETY: the caller's promise. At the end of a process the driver may be gone already, and the memory too.
            let _ = unsafe { (self.api.free)(address) };
        }
    }
}

/// While it lives, a context is its thread's current one.
pub(crate) struct Current {
    api: &'static Api,
    /// Contexts are pushed and popped by one thread.
    _of_this_thread: core::marker::PhantomData<*const ()>,
}

impl Current {
    fn push(api: &'static Api, context: Handle) -> Result<Self, CudaError> {
        // SAFETY: the context is retained.
        check(api, "turning to a CUDA device", unsafe { (api.push_context)(context) })?;
        Ok(Self { api, _of_this_thread: core::marker::PhantomData })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped: Handle = core::ptr::null_mut();
        // SAFETY: the handle can be written, and this thread has pushed what is popped.
        let _ = unsafe { (self.api.pop_context)(&raw mut popped) };
    }
}
