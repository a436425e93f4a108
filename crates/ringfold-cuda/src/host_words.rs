//! Words of the host's memory that devices see.

use crate::api;
use crate::cleaner::give_back;
use crate::context::Context;
use crate::error::{CudaError, check, check_memory};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;

/// Zeroed memory of the host, page-locked and mapped into the memory of devices, or plain where there is none. Clones
/// are the same memory, which is freed with the last of them.
#[derive(Clone)]
pub struct HostWords {
    block: Arc<Block>,
}

struct Block {
    /// Whose driver locked it; none if it is plain.
    context: Option<Context>,
    start: NonNull<u8>,
    bytes: usize,
    address: u64,
}

// SAFETY: all access through shared references is atomic; whoever uses the raw pointer promises what that needs.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// Where plain memory begins: nothing else lies on its first page.
const PLAIN_ALIGN: usize = 4096;

impl HostWords {
    /// Page-locked memory of at least so many bytes, which all devices see.
    pub(crate) fn mapped(context: Context, bytes: usize) -> Result<Self, CudaError> {
        let (api, bytes) = (context.api, bytes.max(1).next_multiple_of(8));
        let _current = context.current()?;
        let (mut start, mut address): (*mut c_void, u64) = (core::ptr::null_mut(), 0);
        let flags = api::HOST_ALLOC_PORTABLE | api::HOST_ALLOC_MAPPED;
        // SAFETY: the pointer can be written.
        let code = unsafe { (api.allocate_pinned)(&raw mut start, bytes, flags) };
        let lacking = CudaError::OutOfPinnedMemory(bytes);
        check_memory(api, "locking pages of the host's memory", code, lacking.clone())?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(lacking)?;
        // SAFETY: there are so many bytes, and nobody else knows of them.
        unsafe { start.write_bytes(0, bytes) };
        // From here on its drop frees it.
        let mut block = Block { context: Some(context), start, bytes, address };
        // SAFETY: the address can be written, and the memory was allocated so.
        let code = unsafe { (api.mapped_address)(&raw mut address, start.as_ptr().cast(), 0) };
        check(api, "mapping the host's memory for a CUDA device", code)?;
        block.address = address;
        Ok(Self { block: Arc::new(block) })
    }

    /// Plain memory of at least so many bytes, for programs without a device. Its device address is where the host has it.
    pub fn plain(bytes: usize) -> Self {
        let bytes = bytes.max(1).next_multiple_of(8);
        let layout = plain_layout(bytes);
        // SAFETY: the layout has bytes.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let address = start.as_ptr().expose_provenance() as u64;
        Self { block: Arc::new(Block { context: None, start, bytes, address }) }
    }

    /// Where the host has it.
    pub fn start(&self) -> *mut u8 {
        self.block.start.as_ptr()
    }

    /// Where devices have it.
    pub fn device_address(&self) -> u64 {
        self.block.address
    }

    /// How many bytes; a multiple of eight.
    pub fn len(&self) -> usize {
        self.block.bytes
    }

    /// Never: there is at least one word.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether devices see it.
    pub fn is_mapped(&self) -> bool {
        self.block.context.is_some()
    }

    /// One of the words of eight bytes.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len() / 8, "there is no word {index} in {} bytes", self.len());
        // SAFETY: the word is in the memory, which lives as long as the reference, and is aligned.
        unsafe { AtomicU64::from_ptr(self.start().cast::<u64>().add(index)) }
    }
}

impl core::fmt::Debug for HostWords {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let kind = if self.is_mapped() { "mapped" } else { "plain" };
        write!(f, "{} {kind} bytes of the host at {:p}", self.len(), self.start())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.context {
            Some(context) => {
                let start = self.start.expose_provenance().get();
                give_back(self.bytes, move || {
                    if let Ok(_current) = context.current() {
                        let start = core::ptr::with_exposed_provenance_mut::<c_void>(start);
                        // SAFETY: it was allocated so, and nobody uses it any more.
                        let _ = unsafe { (context.api.free_pinned)(start) };
                    }
                });
            }
            // SAFETY: it was allocated with this layout, and nobody uses it any more.
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
    fn plain_words_begin_as_zeros_and_are_shared_by_clones() {
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
    #[should_panic(expected = "there is no word 3")]
    fn a_word_beyond_the_end_is_refused() {
        let _ = HostWords::plain(24).word(3);
    }
}
