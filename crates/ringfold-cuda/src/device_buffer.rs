//! Memory of a device that is ours.

use crate::device::Device;
use crate::device_memory::DeviceMemory;
use crate::download::Download;
use crate::driver::Driver;
use crate::error::CudaError;
use crate::queued::Queued;
use crate::upload::{Piece, upload};
use std::sync::Arc;

/// Memory that is allocated on a device; for programs that have no other library for that.
#[derive(Debug)]
pub struct DeviceBuffer {
    memory: DeviceMemory,
}

impl DeviceBuffer {
    /// On the device with this number, with these bytes.
    pub fn new(ordinal: i32, bytes: &[u8]) -> Result<Self, CudaError> {
        let device = Driver::loaded()?.device(ordinal)?;
        // Nothing can't be allocated.
        let allocation = Allocation { device, address: device.allocate(bytes.len().max(1))? };
        let address = allocation.address;
        let buffer = Self { memory: DeviceMemory::owned(device, address, bytes.len(), Arc::new(allocation)) };
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

struct Allocation {
    device: &'static Device,
    address: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated there, and whoever copies from or to it holds it.
        unsafe { self.device.free(self.address) };
    }
}
