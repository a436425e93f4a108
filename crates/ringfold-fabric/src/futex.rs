//! Sleeping on a word of memory that processes share, until another one rings.

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use rustix::thread::futex;

/// Sleeps until someone [wakes](wake) it, if the word still is `seen`; at most so long. It may also return for no
/// reason, so that callers look again at what they wait for.
pub(crate) fn sleep(word: &AtomicU32, seen: u32, at_most: Duration) {
    if cfg!(miri) {
        // Miri knows no futexes between processes; it may return for no reason.
        return std::thread::yield_now();
    }
    let timeout = rustix::time::Timespec {
        tv_sec: at_most.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // Whether it was woken, interrupted or ran out of time makes no difference to the caller.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
}

/// Wakes whoever sleeps on the word, in any process.
pub(crate) fn wake(word: &AtomicU32) {
    if cfg!(miri) {
        return;
    }
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
