//! Memory of a device that is ours, and zeroed.

use crate::device::Device;
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::limits::ZEROING_MAX;
use std::sync::Arc;
use std::time::Instant;

/// Memory of a device, from an allocation of its own. Clones are the same memory, which is freed with the last of them.
#[derive(Clone)]
pub struct GpuMemory {
    allocation: Arc<Allocation>,
    bytes: usize,
}

impl GpuMemory {
    /// So many bytes, all of them zero.
    pub fn zeroed(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        let device = gpu.0;
        // Nothing can't be allocated.
        let whole = bytes.max(1);
        let allocation = Allocation { device, address: device.allocate(whole)? };
        // SAFETY: nobody else knows of the memory yet, and it is not freed before the stream is done with it, or broken.
        unsafe { device.aside.fill(allocation.address, 0, whole) }?;
        device.aside.synchronize(Instant::now() + ZEROING_MAX)?;
        Ok(Self { allocation: Arc::new(allocation), bytes })
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.allocation.address
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its device.
    pub fn gpu(&self) -> Gpu {
        Gpu(self.allocation.device)
    }

    /// The same memory, as copies take it.
    pub fn memory(&self) -> DeviceMemory {
        DeviceMemory::owned(self.allocation.device, self.address(), self.bytes, self.allocation.clone())
    }
}

impl core::fmt::Debug for GpuMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes at {:#x} of {:?}", self.bytes, self.address(), self.gpu())
    }
}

struct Allocation {
    device: &'static Device,
    address: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated there, and whoever uses it holds it.
        unsafe { self.device.free(self.address) };
    }
}
