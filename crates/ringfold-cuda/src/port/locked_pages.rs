//! Page-locking of existing host memory, for access by kernels.

use crate::api::{HOST_ALLOC_MAPPED, HOST_ALLOC_PORTABLE};
use crate::context::Context;
use crate::error::{CudaError, check};
use crate::gpu::Gpu;
use core::ffi::c_void;

/// Pages that are locked and mapped for all devices until this is dropped.
pub(crate) struct LockedPages {
    context: Context,
    start: usize,
    device_address: u64,
}

impl LockedPages {
    /// Locks the pages of these bytes.
    ///
    /// # Safety
    /// The bytes stay mapped until this is dropped, and nothing else locks their pages.
    pub(crate) unsafe fn lock(gpu: &Gpu, start: usize, bytes: usize) -> Result<Self, CudaError> {
        let context = gpu.context();
        let (api, pages) = (context.api, core::ptr::with_exposed_provenance_mut::<c_void>(start));
        let _current = context.current()?;
        // SAFETY: the caller's promise. The flags mean the same as for allocation.
        let code = unsafe { (api.lock_pages)(pages, bytes, HOST_ALLOC_PORTABLE | HOST_ALLOC_MAPPED) };
        check(api, "locking pages of host memory", code)?;
        // From here on, its drop unlocks the pages.
        let mut locked = Self { context, start, device_address: 0 };
        // SAFETY: the address can be written, and the pages are locked.
        let code = unsafe { (api.mapped_address)(&raw mut locked.device_address, pages, 0) };
        check(api, "mapping host memory for a CUDA device", code)?;
        Ok(locked)
    }

    pub(crate) fn device_address(&self) -> u64 {
        self.device_address
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        let pages = core::ptr::with_exposed_provenance_mut::<c_void>(self.start);
        // SAFETY: they were locked so, and are still mapped.
        let _ = self.context.call("unlocking pages", |api| unsafe { (api.unlock_pages)(pages) });
    }
}
