//! Host memory that devices can access.

use crate::api::{self, Api};
use crate::context::Context;
use crate::error::{CudaError, check, check_memory};
use crate::release_queue::release_when_idle;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;

/// Zeroed host memory: page-locked and mapped for all devices, or plain memory where there is no device.
///
/// Clones share the memory; it is freed with the last clone.
#[derive(Clone)]
pub struct HostWords {
    block: Arc<HostAllocation>,
}

struct HostAllocation {
    /// The context that locked it; none if it is plain memory.
    context: Option<Context>,
    start: NonNull<u8>,
    bytes: usize,
    address: u64,
}

// SAFETY: all access through shared references is atomic; users of the raw pointer uphold its rules themselves.
unsafe impl Send for HostAllocation {}
// SAFETY: as above.
unsafe impl Sync for HostAllocation {}

/// Alignment of plain memory: a page, as for mapped memory.
const PLAIN_ALIGN: usize = 4096;

impl HostWords {
    /// Allocates page-locked memory of at least `bytes`, mapped for all devices.
    pub(crate) fn mapped(context: Context, bytes: usize) -> Result<Self, CudaError> {
        let (api, bytes) = (context.api, bytes.max(1).next_multiple_of(8));
        let _current = context.current()?;
        let mut start: *mut c_void = core::ptr::null_mut();
        let flags = api::HOST_ALLOC_PORTABLE | api::HOST_ALLOC_MAPPED;
        // SAFETY: the pointer can be written.
        let code = unsafe { (api.allocate_pinned)(&raw mut start, bytes, flags) };
        let lacking = CudaError::OutOfPinnedMemory(bytes);
        check_memory(api, "allocating page-locked memory", code, lacking.clone())?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(lacking)?;
        // SAFETY: there are so many bytes, and nothing else uses them.
        unsafe { start.write_bytes(0, bytes) };
        // From here on, its drop frees the memory.
        let mut block = HostAllocation { context: Some(context), start, bytes, address: 0 };
        // SAFETY: the address can be written, and the memory was allocated so.
        let code = unsafe { (api.mapped_address)(&raw mut block.address, start.as_ptr().cast(), 0) };
        check(api, "mapping host memory for a CUDA device", code)?;
        Ok(Self { block: Arc::new(block) })
    }

    /// Allocates plain memory of at least `bytes`, for programs without a device. Its device address is its host address.
    pub fn plain(bytes: usize) -> Self {
        let bytes = bytes.max(1).next_multiple_of(8);
        let layout = plain_layout(bytes);
        // SAFETY: the layout has bytes.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let address = start.as_ptr().expose_provenance() as u64;
        Self { block: Arc::new(HostAllocation { context: None, start, bytes, address }) }
    }

    /// The host address.
    pub fn start(&self) -> *mut u8 {
        self.block.start.as_ptr()
    }

    /// The device address.
    pub fn device_address(&self) -> u64 {
        self.block.address
    }

    /// The number of bytes, a multiple of eight.
    pub fn len(&self) -> usize {
        self.block.bytes
    }

    /// Always false: there is at least one word.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether devices can access it.
    pub fn is_mapped(&self) -> bool {
        self.block.context.is_some()
    }

    /// The word of eight bytes at `index`.
    ///
    /// # Panics
    /// If `index` is out of bounds.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len() / 8, "word {index} is out of bounds of {} bytes", self.len());
        // SAFETY: the word is in the memory, which lives as long as the reference, and is aligned.
        unsafe { AtomicU64::from_ptr(self.start().cast::<u64>().add(index)) }
    }
}

debug_as!(HostWords, self => "{} bytes of host memory at {:p}, mapped: {}", self.len(), self.start(), self.is_mapped());

impl Drop for HostAllocation {
    fn drop(&mut self) {
        match self.context {
            Some(context) => {
                let start = self.start.expose_provenance().get();
                release_when_idle(self.bytes, move || {
                    let start = core::ptr::with_exposed_provenance_mut::<c_void>(start);
                    // SAFETY: it was allocated so, and is no longer used.
                    let free = |api: &Api| unsafe { (api.free_pinned)(start) };
                    let _ = context.call("freeing page-locked memory", free);
                });
            }
            // SAFETY: it was allocated with this layout, and is no longer used.
            None => unsafe { dealloc(self.start.as_ptr(), plain_layout(self.bytes)) },
        }
    }
}

fn plain_layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, PLAIN_ALIGN).expect("no memory is larger than half the address space")
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn plain_words_are_zeroed_and_shared_by_clones() {
        let words = HostWords::plain(17);
        assert_eq!((words.len(), words.is_mapped()), (24, false));
        assert_eq!(words.device_address(), words.start().addr() as u64);
        assert!((0..3).all(|index| words.word(index).load(Ordering::Relaxed) == 0));
        let same = words.clone();
        same.word(2).store(7 << 32 | 5, Ordering::Relaxed);
        drop(same);
        assert_eq!(words.word(2).load(Ordering::Relaxed), 7 << 32 | 5);
    }

    #[test]
    #[should_panic(expected = "word 3 is out of bounds")]
    fn a_word_beyond_the_end_panics() {
        let _ = HostWords::plain(24).word(3);
    }
}
