//! Page-locked host memory, which devices copy from and to at full speed.
//!
//! Locking pages takes long, so blocks are cached for reuse.

use crate::api::{Api, HOST_ALLOC_PORTABLE};
use crate::block_cache::{BlockCache, HasCapacity, capacity_for};
use crate::device::Device;
use crate::error::{CudaError, check_memory};
use crate::limits::pinned_kept_bytes_max;
use core::ffi::c_void;
use core::ptr::NonNull;
use parking_lot::Mutex;
use ringfold_fabric::memory::Memory;
use std::sync::LazyLock;

/// Page-locked memory. Dropping it returns its block to a bounded cache.
pub struct Pinned {
    /// None only while it is dropped.
    block: Option<PinnedBlock>,
    bytes: usize,
}

struct PinnedBlock {
    device: &'static Device,
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a block is memory that has one owner; it may be freed from any thread.
unsafe impl Send for PinnedBlock {}
// SAFETY: nothing is changed through a shared block.
unsafe impl Sync for PinnedBlock {}

/// Unused blocks, the most recently used at the end.
static CACHE: LazyLock<Mutex<BlockCache<PinnedBlock>>> =
    LazyLock::new(|| Mutex::new(BlockCache::new(pinned_kept_bytes_max())));

impl Pinned {
    /// Takes `bytes` of arbitrary content, mapped for all devices; `device` locks them if none are cached.
    pub(crate) fn acquire(device: &'static Device, bytes: usize) -> Result<Self, CudaError> {
        let cached = CACHE.lock().take(bytes);
        let block = match cached {
            Some(block) => block,
            None => match PinnedBlock::allocate(device, capacity_for(bytes)) {
                Err(CudaError::OutOfPinnedMemory(_)) => {
                    // Free the cache before failing.
                    let cached = CACHE.lock().clear();
                    drop(cached);
                    PinnedBlock::allocate(device, capacity_for(bytes))?
                }
                other => other?,
            },
        };
        Ok(Self { block: Some(block), bytes })
    }

    /// The address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.block.as_ref().map_or(core::ptr::null_mut(), |block| block.start.as_ptr())
    }

    /// Converts it to memory for collectives. The block returns to the cache with the last part of that memory.
    pub(crate) fn into_memory(self) -> Memory {
        let (start, bytes) = (self.start(), self.bytes);
        // SAFETY: the keeper owns the bytes, which are initialised by the system or by earlier users, exclusively.
        unsafe { Memory::kept(start, bytes, Box::new(self)) }
    }

    /// Allocates page-locked memory as large as a tensor, to receive data for an upload to it.
    pub fn for_tensor(tensor: &crate::DeviceMemory) -> Result<Memory, CudaError> {
        match tensor.device() {
            Some(device) => Ok(Self::acquire(device, tensor.len())?.into_memory()),
            None => Ok(Memory::zeroed(0)),
        }
    }

    /// Allocates page-locked memory for data of a device.
    pub fn for_device(gpu: &crate::Gpu, bytes: usize) -> Result<Memory, CudaError> {
        Ok(Self::acquire(gpu.0, bytes)?.into_memory())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let evicted = CACHE.lock().put(block);
            // Dropped without the lock: unlocking pages takes long.
            drop(evicted);
        }
    }
}

impl PinnedBlock {
    fn allocate(device: &'static Device, capacity: usize) -> Result<Self, CudaError> {
        let _current = device.current()?;
        let mut start: *mut c_void = core::ptr::null_mut();
        // SAFETY: the pointer can be written.
        let code = unsafe { (device.api.allocate_pinned)(&raw mut start, capacity, HOST_ALLOC_PORTABLE) };
        let lacking = CudaError::OutOfPinnedMemory(capacity);
        check_memory(device.api, "allocating page-locked memory", code, lacking.clone())?;
        let start = NonNull::new(start.cast()).ok_or(lacking)?;
        Ok(Self { device, start, capacity })
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        // SAFETY: it was allocated so, and is no longer used.
        let free = |api: &Api| unsafe { (api.free_pinned)(self.start.as_ptr().cast()) };
        let _ = self.device.call("freeing page-locked memory", free);
    }
}

impl HasCapacity for PinnedBlock {
    fn capacity(&self) -> usize {
        self.capacity
    }
}
