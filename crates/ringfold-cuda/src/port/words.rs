//! A few words of the host's memory that threads of the host and kernels of a device read and write at the same time.

use crate::error::CudaError;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Words that are only ever read and written atomically. They begin with zeros, at a multiple of 64.
pub(crate) struct Words {
    start: NonNull<u8>,
    bytes: usize,
    /// Where kernels find them; where there is no device, where they are.
    device_address: u64,
    _keeper: Box<dyn Send + Sync>,
}

// SAFETY: all access is atomic, and the keeper, which may go to any thread, keeps the memory.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

/// The unit that plain words are allocated in, for its alignment.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    _bytes: [u8; 64],
}

impl Words {
    /// Memory of the host that no device knows.
    pub(crate) fn plain(bytes: usize) -> Self {
        let lines = vec![Line { _bytes: [0; 64] }; bytes.div_ceil(64).max(1)].into_boxed_slice();
        let lines = NonNull::from(Box::leak(lines));
        let start = lines.cast::<u8>();
        Self { start, bytes, device_address: start.as_ptr() as u64, _keeper: Box::new(Leaked(lines)) }
    }

    /// Memory of the host that kernels see, too. Needs a device.
    pub(crate) fn mapped(_bytes: usize) -> Result<Self, CudaError> {
        Err(CudaError::NoDriver("there is no mapped memory yet".into()))
    }

    /// Where kernels find them.
    pub(crate) fn device_address(&self) -> u64 {
        self.device_address
    }

    /// The 4-byte word that begins with this byte.
    pub(crate) fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "{at} is no word of {} bytes", self.bytes);
        // SAFETY: it lies within the memory, is aligned, and is only used atomically.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// The 8-byte word that begins with this byte.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "{at} is no word of {} bytes", self.bytes);
        // SAFETY: it lies within the memory, is aligned, and is only used atomically.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }
}

/// Lines that are reached by their address alone until they are freed.
struct Leaked(NonNull<[Line]>);

// SAFETY: it only frees them.
unsafe impl Send for Leaked {}
// SAFETY: as above.
unsafe impl Sync for Leaked {}

impl Drop for Leaked {
    fn drop(&mut self) {
        // SAFETY: they were leaked from a box, and nobody has their address any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn words_begin_with_zeros_and_lie_one_behind_the_other() {
        let words = Words::plain(100);
        assert_eq!(words.device_address() % 64, 0);
        words.half(4).store(7, Ordering::Relaxed);
        assert_eq!(words.word(0).load(Ordering::Relaxed), 7 << 32);
        assert_eq!(words.word(88).load(Ordering::Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "no word of 100 bytes")]
    fn there_are_no_words_beyond_the_end() {
        let _ = Words::plain(100).word(96);
    }
}
