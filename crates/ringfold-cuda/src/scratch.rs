//! Temporary device memory.

use crate::api::Address;
use crate::block_cache::{HasCapacity, capacity_for};
use crate::device::Device;
use crate::error::CudaError;
use crate::limits::{SCRATCH_BYTES_MAX, SCRATCH_FREE_SHARE};
use core::sync::atomic::Ordering;

/// Device memory of arbitrary content. Dropping it returns its block to the device's cache.
pub(crate) struct Scratch {
    /// None only while it is dropped.
    block: Option<ScratchBlock>,
}

/// An allocation of a device.
pub(crate) struct ScratchBlock {
    device: &'static Device,
    address: Address,
    capacity: usize,
}

impl Scratch {
    /// Takes `bytes`. Fails if there would be too much scratch memory, or it would take too much of what is free on the device.
    pub(crate) fn acquire(device: &'static Device, bytes: usize) -> Result<Self, CudaError> {
        let cached = device.scratch.lock().take(bytes);
        if cached.is_some() {
            return Ok(Self { block: cached });
        }
        let capacity = capacity_for(bytes);
        let lacking = CudaError::OutOfMemory { device: device.ordinal, bytes: capacity };
        if capacity > device.free_bytes()? / SCRATCH_FREE_SHARE {
            return Err(lacking);
        }
        let more = |bytes: usize| Some(bytes + capacity).filter(|bytes| *bytes <= SCRATCH_BYTES_MAX);
        if device.scratch_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return Err(lacking);
        }
        let allocated = device.allocate(capacity).inspect_err(|_| {
            device.scratch_bytes.fetch_sub(capacity, Ordering::Relaxed);
        });
        Ok(Self { block: Some(ScratchBlock { device, address: allocated?, capacity }) })
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> Address {
        self.block.as_ref().map_or(0, |block| block.address)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let evicted = block.device.scratch.lock().put(block);
            // Dropped without the lock: freeing may wait for kernels.
            drop(evicted);
        }
    }
}

impl HasCapacity for ScratchBlock {
    fn capacity(&self) -> usize {
        self.capacity
    }
}

impl Drop for ScratchBlock {
    fn drop(&mut self) {
        // SAFETY: it was allocated there, and its user has waited for all work with it.
        unsafe { self.device.free(self.address) };
        self.device.scratch_bytes.fetch_sub(self.capacity, Ordering::Relaxed);
    }
}
