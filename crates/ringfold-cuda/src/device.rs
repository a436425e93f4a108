//! One device: its primary context, and streams of ours.

use crate::api::{self, Address, Api};
use crate::context::{self, Context};
use crate::error::{CudaError, check_memory};
use crate::stream::Stream;
use core::ops::Deref;

/// A device whose primary context is retained.
pub(crate) struct Device {
    context: Context,
    /// Copies to the host, and copies from it: the two directions do not wait for each other.
    pub(crate) down: Stream,
    pub(crate) up: Stream,
    /// For what waits for nobody, whatever the user has queued: zeroing, and setting a module's words.
    pub(crate) aside: Stream,
    pub(crate) multiprocessors: u32,
    /// The compute capability.
    pub(crate) capability: (i32, i32),
}

impl Device {
    pub(crate) fn open(api: &'static Api, ordinal: i32) -> Result<Self, CudaError> {
        let context = Context::retain(api, ordinal)?;
        let ask = |number| context::attribute(api, ordinal, number);
        let multiprocessors = u32::try_from(ask(api::DEVICE_MULTIPROCESSORS)?).unwrap_or(0);
        let capability = (ask(api::DEVICE_CAPABILITY_MAJOR)?, ask(api::DEVICE_CAPABILITY_MINOR)?);
        let stream = || Stream::open(context);
        Ok(Self { context, down: stream()?, up: stream()?, aside: stream()?, multiprocessors, capability })
    }

    pub(crate) fn context(&self) -> Context {
        self.context
    }

    pub(crate) fn attribute(&self, number: i32) -> Result<i32, CudaError> {
        context::attribute(self.api, self.ordinal, number)
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

impl Deref for Device {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}
