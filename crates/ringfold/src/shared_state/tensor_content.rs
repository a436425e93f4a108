//! The content of a tensor during a sync: in host memory, or on a device until somebody needs it.

use crate::Error;
use crate::transfer::AllocateTarget;
use core::ops::Range;
use ringfold_cuda::{CudaError, DefaultStreamMark, DeviceMemory, Download, Gpu, Pinned};
use ringfold_fabric::memory::Memory;
use std::sync::{Arc, OnceLock};

/// The bytes of a tensor.
pub(crate) enum TensorContent {
    /// In host memory.
    Host(Memory),
    /// On a device. They are downloaded when they are first read.
    Device(DeviceContent),
}

/// The bytes of a tensor on a device.
pub(crate) struct DeviceContent {
    memory: DeviceMemory,
    queued: Arc<DefaultStreamMark>,
    download: OnceLock<Result<Download, CudaError>>,
}

impl TensorContent {
    /// Content on a device, as it is after the mark.
    pub(crate) fn on_device(memory: DeviceMemory, queued: Arc<DefaultStreamMark>) -> Self {
        Self::Device(DeviceContent { memory, queued, download: OnceLock::new() })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(memory) => memory.len(),
            Self::Device(content) => content.memory.len(),
        }
    }

    /// Some of the bytes. Those on a device are waited for.
    pub(crate) fn read(&self, range: Range<usize>) -> Result<&[u8], Error> {
        let content = match self {
            Self::Host(memory) => return Ok(&memory.as_slice()[range]),
            Self::Device(content) => content,
        };
        let start = || Download::start(vec![content.memory.clone()], &content.queued);
        let download = content.download.get_or_init(start).as_ref().map_err(CudaError::clone)?;
        Ok(download.wait_for(0, range)?)
    }
}

impl DeviceContent {
    /// Allocates page-locked memory for other content of the tensor, which it does not hold.
    pub(crate) fn allocate_target(&self) -> AllocateTarget {
        let (ordinal, bytes) = (self.memory.ordinal(), self.memory.len());
        Box::new(move || match ordinal {
            Some(ordinal) => Ok(Pinned::for_device(&Gpu::open(ordinal)?, bytes)?),
            None => Ok(Memory::zeroed(0)),
        })
    }
}

impl core::fmt::Debug for TensorContent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Host(memory) => write!(f, "{memory:?}"),
            Self::Device(content) => write!(f, "{:?}", content.memory),
        }
    }
}

impl From<Memory> for TensorContent {
    fn from(memory: Memory) -> Self {
        Self::Host(memory)
    }
}
