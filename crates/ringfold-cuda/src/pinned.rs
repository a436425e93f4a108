//! Page-locked memory of the host, which devices copy from and to at full speed.
//!
//! The system takes long to lock pages, so blocks are kept for the next one who needs some.

use crate::api;
use crate::device::Device;
use crate::error::{CudaError, check_memory};
use crate::limits::{PINNED_BYTES_MIN, pinned_kept_bytes_max};
use core::ffi::c_void;
use core::ptr::NonNull;
use parking_lot::Mutex;
use ringfold_fabric::memory::Memory;
use std::collections::VecDeque;
use std::sync::LazyLock;

/// Page-locked memory. When it is dropped it is kept, within a bound, for the next one.
pub struct Pinned {
    /// None only while it is dropped.
    block: Option<Block>,
    bytes: usize,
}

/// What was allocated at once.
struct Block {
    device: &'static Device,
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a block is memory that has one owner; it may be freed from any thread.
unsafe impl Send for Block {}
// SAFETY: nothing is changed through a shared block.
unsafe impl Sync for Block {}

/// Blocks that nobody uses, those that were used last at the end.
static KEPT: LazyLock<Mutex<Shelf<Block>>> =
    LazyLock::new(|| Mutex::new(Shelf::new(pinned_kept_bytes_max())));

impl Pinned {
    /// So many bytes of any content. All devices know them; one of them has to lock them.
    pub(crate) fn take(device: &'static Device, bytes: usize) -> Result<Self, CudaError> {
        let kept = KEPT.lock().take(bytes);
        let block = match kept {
            Some(block) => block,
            None => match Block::allocate(device, capacity_for(bytes)) {
                Err(CudaError::OutOfPinnedMemory(_)) => {
                    // What is kept for nobody is given up before anything fails.
                    let kept = KEPT.lock().clear();
                    drop(kept);
                    Block::allocate(device, capacity_for(bytes))?
                }
                other => other?,
            },
        };
        Ok(Self { block: Some(block), bytes })
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *mut u8 {
        self.block.as_ref().map_or(core::ptr::null_mut(), |block| block.start.as_ptr())
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// As memory that collectives work on; it goes back when the last part of that is gone.
    pub fn into_memory(self) -> Memory {
        let (start, bytes) = (self.start(), self.bytes);
        // SAFETY: the keeper owns the bytes, which were zeroed by the system or written by their earlier users, and
        // gives nobody else access to them.
        unsafe { Memory::kept(start, bytes, Box::new(self)) }
    }

    /// Page-locked memory near the device that a tensor is on, to receive what shall be uploaded there.
    pub fn beside(tensor: &crate::DeviceMemory) -> Result<Memory, CudaError> {
        match tensor.device() {
            Some(device) => Ok(Self::take(device, tensor.len())?.into_memory()),
            None => Ok(Memory::zeroed(0)),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let too_many = KEPT.lock().put(block);
            // Unlocking pages takes long, too: others need not wait for it.
            drop(too_many);
        }
    }
}

impl Block {
    fn allocate(device: &'static Device, capacity: usize) -> Result<Self, CudaError> {
        let _current = device.current()?;
        let mut start: *mut c_void = core::ptr::null_mut();
        // SAFETY: the pointer can be written.
        let code =
            unsafe { (device.api.allocate_pinned)(&raw mut start, capacity, api::HOST_ALLOC_PORTABLE) };
        let lacking = CudaError::OutOfPinnedMemory(capacity);
        check_memory(device.api, "locking pages of the host's memory", code, lacking.clone())?;
        let start = NonNull::new(start.cast()).ok_or(lacking)?;
        Ok(Self { device, start, capacity })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: it was allocated so, and nobody uses it any more.
            let _ = unsafe { (self.device.api.free_pinned)(self.start.as_ptr().cast()) };
        }
    }
}

impl Room for Block {
    fn capacity(&self) -> usize {
        self.capacity
    }
}

/// Something of a size.
trait Room {
    fn capacity(&self) -> usize;
}

/// Keeps things for reuse, as long as their sizes add up to no more than a bound.
struct Shelf<T> {
    kept: VecDeque<T>,
    bytes: usize,
    bytes_max: usize,
}

impl<T: Room> Shelf<T> {
    fn new(bytes_max: usize) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// The smallest one with so many bytes, unless more than half of it would lie idle.
    fn take(&mut self, bytes: usize) -> Option<T> {
        let most = capacity_for(bytes).saturating_mul(2);
        let fits = |(_, thing): &(usize, &T)| (bytes..=most).contains(&thing.capacity());
        let (at, _) =
            self.kept.iter().enumerate().rev().filter(fits).min_by_key(|(_, thing)| thing.capacity())?;
        let thing = self.kept.remove(at)?;
        self.bytes -= thing.capacity();
        Some(thing)
    }

    /// Keeps one, and hands out those that were unused for longest and must go for it.
    fn put(&mut self, thing: T) -> Vec<T> {
        if thing.capacity() > self.bytes_max {
            return vec![thing];
        }
        self.bytes += thing.capacity();
        self.kept.push_back(thing);
        let mut gone = Vec::new();
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.capacity();
            gone.push(oldest);
        }
        gone
    }

    fn clear(&mut self) -> VecDeque<T> {
        self.bytes = 0;
        core::mem::take(&mut self.kept)
    }
}

/// Sizes in steps of an eighth, so that tensors of nearly one size share blocks.
fn capacity_for(bytes: usize) -> usize {
    let step = (bytes.checked_next_power_of_two().unwrap_or(0) / 8).max(PINNED_BYTES_MIN);
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Room for usize {
        fn capacity(&self) -> usize {
            *self
        }
    }

    #[test]
    fn capacities_waste_at_most_a_quarter_above_the_smallest() {
        assert_eq!(capacity_for(0), PINNED_BYTES_MIN);
        for bytes in [1, 65_536, 65_537, 1_000_000, 5 << 20, (1 << 30) + 1] {
            let capacity = capacity_for(bytes);
            assert!(capacity >= bytes && capacity <= bytes + (bytes / 4).max(PINNED_BYTES_MIN), "{bytes}");
        }
    }

    #[test]
    fn the_shelf_gives_what_fits_best_and_never_holds_more_than_its_bound() {
        let mib = 1 << 20;
        let mut shelf = Shelf::new(10 * mib);
        assert!(shelf.put(4 * mib).is_empty() && shelf.put(3 * mib).is_empty());
        assert_eq!(shelf.put(11 * mib), [11 * mib]);
        assert_eq!(shelf.take(mib), None, "a quarter of a block is no use of it");
        assert_eq!(shelf.put(5 * mib), [4 * mib], "the oldest goes");
        assert_eq!(shelf.take(2 * mib), Some(3 * mib));
        assert_eq!(shelf.take(3 * mib), Some(5 * mib));
        assert_eq!((shelf.take(3 * mib), shelf.bytes), (None, 0));
        let _ = shelf.put(mib);
        assert_eq!((shelf.clear().len(), shelf.bytes), (1, 0));
    }
}
