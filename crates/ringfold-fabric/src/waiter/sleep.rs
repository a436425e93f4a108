//! How threads block without losing a wake-up.
//!
//! A waiter sets its mark, passes a fence, checks once more, and blocks. A waker publishes what it has to tell, passes a
//! fence, and reads the marks. Of the two, at least one sees what the other did: either the last check finds what was
//! published, or the waker finds the mark. The waker that takes a mark away wakes, and no other one does; a waiter sets
//! its mark again before it blocks again.
//!
//! The marks and the word to block on may lie in memory that processes share. The protocol is written once, for any type
//! of atomics, so that a test runs it through all interleavings.

use crate::futex;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use core::time::Duration;

/// A word with a bit for each waiter, or for each reason to wake one.
pub trait Marks {
    /// Sets bits, with the memory order that [`prepare`] needs.
    fn set(&self, bits: u64);
    /// Clears bits; those that were set before.
    fn clear(&self, bits: u64) -> u64;
    /// The bits that are set.
    fn load(&self) -> u64;
    /// A sequentially consistent fence.
    fn fence();
}

/// A word that threads block on. It counts how often it was rung.
pub trait Bell {
    /// How often it was rung.
    fn rung(&self) -> u32;
    /// Blocks until it is rung, if it was rung as often as `seen`, for this long at most. It may return for no reason.
    fn block(&self, seen: u32, at_most: Duration);
    /// Wakes all threads that block on it.
    fn ring(&self);
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

impl Bell for AtomicU32 {
    fn rung(&self) -> u32 {
        self.load(Ordering::SeqCst)
    }

    fn block(&self, seen: u32, at_most: Duration) {
        futex::sleep(self, seen, at_most);
    }

    fn ring(&self) {
        self.fetch_add(1, Ordering::SeqCst);
        futex::wake(self);
    }
}

/// The waiter is about to block: from now on it is woken. It has to check once more before it does.
pub fn prepare<M: Marks>(marks: &M, mine: u64) {
    marks.set(mine);
    M::fence();
}

/// The waiter does not block after all, or is awake.
pub fn cancel<M: Marks>(marks: &M, mine: u64) {
    if marks.load() & mine != 0 {
        marks.clear(mine);
    }
}

/// The marks that are set, for a waker that has published something by an ordinary store.
#[inline]
pub fn sleepers<M: Marks>(marks: &M) -> u64 {
    M::fence();
    marks.load()
}

/// Takes marks away. Whether there were any: then this waker wakes, and no other one does.
pub fn claim<M: Marks>(marks: &M, theirs: u64) -> bool {
    marks.clear(theirs) != 0
}

/// Blocks on a bell for this long at most, unless `is_met`. It may return for no reason. The mark stays set if nobody
/// has taken it away.
pub fn block<M: Marks, B: Bell>(
    marks: &M,
    mine: u64,
    bell: &B,
    at_most: Duration,
    is_met: impl FnOnce() -> bool,
) {
    // Read first: a waker that rings later makes the thread return at once.
    let seen = bell.rung();
    prepare(marks, mine);
    if !is_met() {
        bell.block(seen, at_most);
    }
}

/// Wakes the threads that block on a bell, if some may. The caller has published something by an ordinary store.
#[inline]
pub fn wake<M: Marks, B: Bell>(marks: &M, bell: &B) {
    if sleepers(marks) != 0 && claim(marks, u64::MAX) {
        bell.ring();
    }
}

/// Where one thread of this process blocks until another one wakes it.
#[derive(Default, Debug)]
pub struct WakeFlag {
    marks: AtomicU64,
    bell: AtomicU32,
}

impl WakeFlag {
    /// Blocks for this long at most, unless `is_met`. It may return for no reason.
    pub fn block(&self, at_most: Duration, is_met: impl FnOnce() -> bool) {
        block(&self.marks, 1, &self.bell, at_most, is_met);
        cancel(&self.marks, 1);
    }

    /// Wakes the thread. The caller has published before what it waits for.
    pub fn wake(&self) {
        wake(&self.marks, &self.bell);
    }
}
