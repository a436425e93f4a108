//! Memory of a device that is ours.

use crate::device_memory::DeviceMemory;
use crate::download::Download;
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::queued::Queued;
use crate::upload::{Piece, upload};

/// Memory that is allocated on a device; for programs that have no other library for that.
#[derive(Debug)]
pub struct DeviceBuffer {
    memory: DeviceMemory,
}

impl DeviceBuffer {
    /// On the device with this number, with these bytes.
    pub fn new(ordinal: i32, bytes: &[u8]) -> Result<Self, CudaError> {
        let buffer = Self { memory: GpuMemory::zeroed(&Gpu::open(ordinal)?, bytes.len())?.memory() };
        buffer.write(bytes)?;
        Ok(buffer)
    }

    /// The memory, which is freed when this and all that was lent are gone.
    pub fn memory(&self) -> DeviceMemory {
        self.memory.clone()
    }

    /// A copy of the bytes.
    pub fn read(&self) -> Result<Vec<u8>, CudaError> {
        let memories = Download::start(vec![self.memory()], &Queued::now([&self.memory])?)?.finish()?;
        Ok(memories[0].as_slice().to_vec())
    }

    /// Overwrites the first bytes.
    ///
    /// # Panics
    /// If there are more than the buffer has.
    pub fn write(&self, bytes: &[u8]) -> Result<(), CudaError> {
        let queued = Queued::now([&self.memory])?;
        upload(&[Piece { target: &self.memory, offset: 0, bytes }], &queued)
    }
}
