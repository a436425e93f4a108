//! An owned buffer in device memory.

use crate::default_stream_mark::DefaultStreamMark;
use crate::device_memory::DeviceMemory;
use crate::download::Download;
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::upload::{UploadPiece, upload};

/// A buffer allocated on a device, for programs that use no other CUDA library.
#[derive(Debug)]
pub struct DeviceBuffer {
    memory: DeviceMemory,
}

impl DeviceBuffer {
    /// Allocates a buffer on device `ordinal` and fills it with `bytes`.
    pub fn new(ordinal: i32, bytes: &[u8]) -> Result<Self, CudaError> {
        let buffer = Self { memory: GpuMemory::zeroed(&Gpu::open(ordinal)?, bytes.len())?.memory() };
        buffer.write(bytes)?;
        Ok(buffer)
    }

    /// The memory, which is freed when the buffer and all clones of the memory are dropped.
    pub fn memory(&self) -> DeviceMemory {
        self.memory.clone()
    }

    /// Copies the bytes to the host.
    pub fn read(&self) -> Result<Vec<u8>, CudaError> {
        let mark = DefaultStreamMark::record([&self.memory])?;
        let memories = Download::start(vec![self.memory()], &mark)?.finish()?;
        Ok(memories[0].as_slice().to_vec())
    }

    /// Overwrites the first bytes.
    ///
    /// # Panics
    /// If `bytes` is longer than the buffer.
    pub fn write(&self, bytes: &[u8]) -> Result<(), CudaError> {
        let mark = DefaultStreamMark::record([&self.memory])?;
        upload(&[UploadPiece { target: &self.memory, offset: 0, bytes }], &mark)
    }
}
