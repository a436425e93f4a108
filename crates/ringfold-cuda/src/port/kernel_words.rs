//! A few words that kernels alone read and write: counters that are quick to change where the kernels run.

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::host_words::HostWords;

/// Zeroed words in the memory of a device; of the host where there is no device, so that what has them can be made.
#[derive(Debug)]
pub(crate) enum KernelWords {
    Device(GpuMemory),
    Host(HostWords),
}

impl KernelWords {
    /// On a device, if there is one: this one, or the one that the calling thread works with.
    pub(crate) fn open(gpu: Option<Gpu>, bytes: usize) -> Result<Self, CudaError> {
        let gpu = match gpu {
            Some(gpu) => gpu,
            None if Gpu::why_not().is_some() => return Ok(Self::Host(HostWords::plain(bytes))),
            None => Gpu::current()?,
        };
        GpuMemory::zeroed(&gpu, bytes).map(Self::Device)
    }

    /// Where kernels find them.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Device(memory) => memory.address(),
            Self::Host(words) => words.device_address(),
        }
    }
}
