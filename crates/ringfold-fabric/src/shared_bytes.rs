//! Bytes that another process may read and write at any time.
//!
//! A Rust reference promises that nobody else writes its target, and no process can promise that for another one. So
//! shared memory is copied, or used as atomics. Bytes that something is decided by are copied first, and then checked.
//!
//! Payloads are the exception, since a copy would cost as much as the work on them. Where the protocol says that nobody
//! writes (an announced slot that was not released, cells that were sent), the `assume_` methods return a reference. If
//! a process breaks the protocol, bytes change under the reference, which is undefined behaviour by the letter of the
//! language. In effect the kernels compute with other numbers: each bit pattern is a value of each element type, and no
//! length, offset or branch depends on a payload. A process that can map the memory belongs to the same user, and has
//! simpler ways to do harm.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes that another process may read and write at any time, for as long as `'a`.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    bytes: usize,
    owner: PhantomData<&'a AtomicU64>,
}

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// For `'a`, the bytes are mapped for reads and writes, and no thread of this process has a reference to them, other
    /// than to atomics and by the `assume_` methods.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes, owner: PhantomData }
    }

    /// The number of bytes.
    pub fn len(self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// Where they begin.
    pub fn as_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A part of them.
    ///
    /// # Panics
    /// If the range is not within them.
    #[inline]
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(
            start <= end && end <= self.bytes,
            "{start}..{end} is not within {} shared bytes",
            self.bytes
        );
        // SAFETY: the start lies within the bytes, or at their end.
        Self { start: unsafe { self.start.add(start) }, bytes: end - start, ..self }
    }

    /// Copies all of them out.
    ///
    /// # Panics
    /// If `into` has another length.
    #[inline]
    pub fn copy_to(self, into: &mut [u8]) {
        assert_eq!(self.bytes, into.len());
        // SAFETY: the bytes are mapped. If another process writes at the same time, the copy is a mixture.
        unsafe { core::ptr::copy(self.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Overwrites all of them.
    ///
    /// # Panics
    /// If `from` has another length.
    #[inline]
    pub fn copy_from(self, from: &[u8]) {
        assert_eq!(self.bytes, from.len());
        // SAFETY: as for `copy_to`.
        unsafe { core::ptr::copy(from.as_ptr(), self.as_ptr(), from.len()) };
    }

    /// The aligned word at an offset.
    ///
    /// # Panics
    /// If there is none there.
    #[inline]
    pub fn word(self, at: usize) -> &'a AtomicU64 {
        // SAFETY: it is within the bytes and aligned, and is only used as an atomic, or copied.
        unsafe { &*self.aligned(at, size_of::<u64>()).cast() }
    }

    /// The aligned half word at an offset.
    ///
    /// # Panics
    /// If there is none there.
    #[inline]
    pub fn half_word(self, at: usize) -> &'a AtomicU32 {
        // SAFETY: as for `word`.
        unsafe { &*self.aligned(at, size_of::<u32>()).cast() }
    }

    #[inline]
    fn aligned(self, at: usize, bytes: usize) -> *mut u8 {
        assert!(
            at <= self.bytes && self.bytes - at >= bytes,
            "a word at {at} of {} shared bytes",
            self.bytes
        );
        // SAFETY: it lies within the bytes.
        let place = unsafe { self.as_ptr().add(at) };
        assert!(place.addr().is_multiple_of(bytes), "the word at {at} is not aligned");
        place
    }

    /// A reference to payload that by the protocol nobody writes.
    ///
    /// # Safety
    /// For `'a`, no thread of this process writes them. By the protocol no other process does, and nothing is decided by
    /// them; see the module for what happens if one does.
    #[inline]
    pub unsafe fn assume_unwritten(self) -> &'a [u8] {
        // SAFETY: by the caller's promise.
        unsafe { core::slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }

    /// A reference to payload that by the protocol nobody else reads or writes.
    ///
    /// # Safety
    /// For `'a`, nothing else in this process uses them. By the protocol no other process does, and nothing is decided by
    /// them; see the module for what happens if one does.
    #[inline]
    pub unsafe fn assume_exclusive(self) -> &'a mut [u8] {
        // SAFETY: by the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(self.as_ptr(), self.bytes) }
    }
}

// SAFETY: it is like a reference to atomics: what it offers is fit for many threads and processes, or unsafe.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shared bytes", self.bytes)
    }
}

#[cfg(test)]
mod tests;
