//! Bytes that another process may read and write at any time.
//!
//! Rust's references promise that nobody else writes what they refer to, and no process can promise that for another one.
//! So shared memory is never referred to: it is copied from and to, or used as atomics. What is decided by, is copied out
//! first, and the copy is checked.
//!
//! Payloads are the exception, since a copy would cost as much as what is done with them. Where the protocol between
//! the processes says that nobody writes (a slot that was announced and not released, cells that were handed over), the
//! `assume_` methods give a reference. A process that breaks the protocol, by a bug or by intent, changes bytes under the
//! reference. By the letter of the language that is undefined behaviour. In effect the kernels that read them compute with
//! other numbers: each bit pattern is a value of each element type, no length, offset or branch depends on a payload, and
//! the code that reads it is compiled apart from the code that decides. A process that may map the memory belongs to the
//! same user and could harm this one in simpler ways.

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

    /// How many bytes.
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

    /// Some of them.
    ///
    /// # Panics
    /// If there are fewer.
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
        // SAFETY: the bytes are mapped. What another process writes at the same time comes out as some of both.
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
        // SAFETY: the place has room for it and is aligned. It is only ever used as an atomic, or copied.
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

    /// The bytes themselves: payload that nobody writes, if all keep to the protocol.
    ///
    /// # Safety
    /// For `'a`, no thread of this process writes them. By the protocol no other process does, and nothing is decided by
    /// them; see the module for what happens if one does.
    #[inline]
    pub unsafe fn assume_unwritten(self) -> &'a [u8] {
        // SAFETY: by the caller's promise.
        unsafe { core::slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }

    /// The bytes themselves, to be written: payload that nobody else reads or writes, if all keep to the protocol.
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

// SAFETY: it is used like a reference to atomics: all that can be done with it is fit for many threads and processes, or
// asks its caller for a promise.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shared bytes", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    fn with<R>(user: impl FnOnce(SharedBytes<'_>) -> R) -> R {
        let mut memory = [AtomicU64::new(0), AtomicU64::new(0)];
        let start = NonNull::from(&mut memory).cast();
        // SAFETY: the words live until the user is done, and nobody else uses them.
        user(unsafe { SharedBytes::new(start, 16) })
    }

    #[test]
    fn bytes_are_copied_and_words_are_seen_by_all() {
        with(|shared| {
            shared.part(3..6).copy_from(&[1, 2, 3]);
            let mut all = [9; 16];
            shared.copy_to(&mut all);
            assert_eq!(all[..8], [0, 0, 0, 1, 2, 3, 0, 0]);
            shared.word(8).store(u64::MAX, Ordering::Relaxed);
            assert_eq!(shared.half_word(12).load(Ordering::Relaxed), u32::MAX);
            std::thread::scope(|scope| {
                scope.spawn(|| shared.word(0).store(7, Ordering::Release));
                while shared.word(0).load(Ordering::Acquire) != 7 {
                    std::thread::yield_now();
                }
            });
            // SAFETY: nobody else uses the bytes now.
            assert_eq!(unsafe { shared.part(12..14).assume_unwritten() }, [255, 255]);
            // SAFETY: as above.
            let last = unsafe { shared.part(15..16).assume_exclusive() };
            last[0] = 1;
            assert_eq!(shared.word(8).load(Ordering::Relaxed).to_ne_bytes()[7], 1);
        });
    }

    #[test]
    fn what_lies_outside_or_is_not_aligned_panics() {
        let panics = |user: fn(SharedBytes<'_>)| std::panic::catch_unwind(|| with(user)).is_err();
        assert!(panics(|shared| {
            core::hint::black_box(shared.part(8..17));
        }));
        assert!(panics(|shared| {
            core::hint::black_box(shared.part(Range { start: usize::MAX, end: 0 }));
        }));
        assert!(panics(|shared| {
            core::hint::black_box(shared.word(9));
        }));
        assert!(panics(|shared| {
            core::hint::black_box(shared.word(16));
        }));
        assert!(panics(|shared| {
            core::hint::black_box(shared.word(usize::MAX - 7));
        }));
        assert!(panics(|shared| {
            core::hint::black_box(shared.half_word(2));
        }));
        assert!(panics(|shared| shared.copy_to(&mut [0; 15])));
        assert!(panics(|shared| shared.copy_from(&[0; 17])));
    }
}
