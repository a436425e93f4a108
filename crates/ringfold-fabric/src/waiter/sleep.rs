//! How threads block without losing a wake-up.
//!
//! A waiter sets its mark, passes a fence, checks once more, and blocks. A waker publishes, passes a fence, and reads the
//! marks. At least one of them sees what the other did: the last check finds what was published, or the waker finds the
//! mark. Only the waker that clears a mark wakes; a waiter sets its mark again before it blocks again.
//!
//! Marks and wake word may lie in memory that processes share. The protocol is generic over the atomics, so that a test
//! runs it in all interleavings.

use crate::futex;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use core::time::Duration;

/// A word with a bit for each waiter, or for each reason to be woken.
pub trait Marks {
    /// Sets bits, with the memory order that [`prepare`] needs.
    fn set(&self, bits: u64);
    /// Clears bits, and returns those that were set.
    fn clear(&self, bits: u64) -> u64;
    /// The bits that are set.
    fn load(&self) -> u64;
    /// A sequentially consistent fence.
    fn fence();
}

/// A word that threads block on. It counts wake-ups.
pub trait WakeWord {
    /// The number of wake-ups.
    fn count(&self) -> u32;
    /// Blocks until a wake-up, if the count still is `seen`, for this long at most. It may return for no reason.
    fn block(&self, seen: u32, at_most: Duration);
    /// Wakes all threads that block on it.
    fn wake_all(&self);
}

impl Marks for AtomicU64 {
    fn set(&self, bits: u64) {
        self.fetch_or(bits, Ordering::SeqCst);
    }

    fn clear(&self, bits: u64) -> u64 {
        self.fetch_and(!bits, Ordering::SeqCst) & bits
    }

    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

impl WakeWord for AtomicU32 {
    fn count(&self) -> u32 {
        self.load(Ordering::SeqCst)
    }

    fn block(&self, seen: u32, at_most: Duration) {
        futex::sleep(self, seen, at_most);
    }

    fn wake_all(&self) {
        self.fetch_add(1, Ordering::SeqCst);
        futex::wake(self);
    }
}

/// Sets the waiter's mark: from now on it is woken. It has to check once more before it blocks.
pub fn prepare<M: Marks>(marks: &M, mine: u64) {
    marks.set(mine);
    M::fence();
}

/// Clears the waiter's mark, since it is awake.
pub fn cancel<M: Marks>(marks: &M, mine: u64) {
    if marks.load() & mine != 0 {
        marks.clear(mine);
    }
}

/// The marks that are set, for a waker that has published by an ordinary store.
#[inline]
pub fn sleepers<M: Marks>(marks: &M) -> u64 {
    M::fence();
    marks.load()
}

/// Clears marks. True if one was set: then this waker has to wake, and no other one does.
pub fn claim<M: Marks>(marks: &M, theirs: u64) -> bool {
    marks.clear(theirs) != 0
}

/// Blocks for this long at most, unless `is_met`. It may return for no reason. The mark stays set if no waker has
/// cleared it.
pub fn block<M: Marks, W: WakeWord>(
    marks: &M,
    mine: u64,
    word: &W,
    at_most: Duration,
    is_met: impl FnOnce() -> bool,
) {
    // Read first: if a waker comes later, the thread returns at once.
    let seen = word.count();
    prepare(marks, mine);
    if !is_met() {
        word.block(seen, at_most);
    }
}

/// Wakes the threads that block on the word, if there are marks. The caller has published by an ordinary store.
#[inline]
pub fn wake<M: Marks, W: WakeWord>(marks: &M, word: &W) {
    if sleepers(marks) != 0 && claim(marks, u64::MAX) {
        word.wake_all();
    }
}

/// What one thread of this process blocks on until another one wakes it.
#[derive(Default, Debug)]
pub struct WakeFlag {
    marks: AtomicU64,
    word: AtomicU32,
}

impl WakeFlag {
    /// Blocks for this long at most, unless `is_met`. It may return for no reason.
    pub fn block(&self, at_most: Duration, is_met: impl FnOnce() -> bool) {
        block(&self.marks, 1, &self.word, at_most, is_met);
        cancel(&self.marks, 1);
    }

    /// Wakes the thread. The caller has published what it waits for.
    pub fn wake(&self) {
        wake(&self.marks, &self.word);
    }
}
