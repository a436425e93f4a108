//! A few words for kernels only: counters in device memory.

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::host_words::HostWords;

/// Zeroed words in device memory, or in host memory without a device, so that their owners can still be created.
#[derive(Debug)]
pub(crate) enum KernelWords {
    Device(GpuMemory),
    Host(HostWords),
}

impl KernelWords {
    /// Allocates words on this device, on the current one, or on the host if there is none.
    pub(crate) fn open(gpu: Option<Gpu>, bytes: usize) -> Result<Self, CudaError> {
        let gpu = match gpu {
            Some(gpu) => gpu,
            None if Gpu::unavailable_reason().is_some() => return Ok(Self::Host(HostWords::plain(bytes))),
            None => Gpu::current()?,
        };
        GpuMemory::zeroed(&gpu, bytes).map(Self::Device)
    }

    /// The device address.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Device(memory) => memory.address(),
            Self::Host(words) => words.device_address(),
        }
    }
}
