//! Owned, zeroed device memory.

use crate::device::Device;
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::limits::ZEROING_MAX;
use std::sync::Arc;
use std::time::Instant;

/// An allocation in device memory. Clones share it; it is freed with the last clone.
#[derive(Clone)]
pub struct GpuMemory {
    allocation: Arc<DeviceAllocation>,
    bytes: usize,
}

impl GpuMemory {
    /// Allocates `bytes` zeroed bytes.
    pub fn zeroed(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        let device = gpu.0;
        // The driver rejects empty allocations.
        let whole = bytes.max(1);
        let allocation = DeviceAllocation { device, address: device.allocate(whole)? };
        // SAFETY: nothing else uses the memory yet, and it is not freed before the stream is done with it, or broken.
        unsafe { device.side_stream.fill(allocation.address, 0, whole) }?;
        device.side_stream.synchronize(Instant::now() + ZEROING_MAX)?;
        Ok(Self { allocation: Arc::new(allocation), bytes })
    }

    /// Writes to the start of it, and waits until that is done. Nothing may use the memory yet.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), CudaError> {
        if bytes.len() > self.bytes {
            return Err(CudaError::Argument(format!("{} bytes do not fit into {self:?}", bytes.len())));
        }
        let stream = &self.allocation.device.side_stream;
        // SAFETY: the bytes fit, and are pageable memory, which the driver has read when the call returns.
        unsafe { stream.copy(self.address(), bytes.as_ptr().addr() as u64, bytes.len()) }?;
        stream.synchronize(Instant::now() + ZEROING_MAX)
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.allocation.address
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The device.
    pub fn gpu(&self) -> Gpu {
        Gpu(self.allocation.device)
    }

    /// The same memory, as the type that copies and collectives take.
    pub fn memory(&self) -> DeviceMemory {
        DeviceMemory::owned(self.allocation.device, self.address(), self.bytes, self.allocation.clone())
    }
}

debug_as!(GpuMemory, self => "{} bytes at {:#x} of {:?}", self.bytes, self.address(), self.gpu());

struct DeviceAllocation {
    device: &'static Device,
    address: u64,
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated there, and every user holds a reference.
        unsafe { self.device.free(self.address) };
    }
}
