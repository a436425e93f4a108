//! Futexes in memory that processes share.

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use rustix::thread::futex;

/// Blocks until [`wake`] is called, if the word still is `seen`, for this long at most. It may return for no reason.
pub(crate) fn sleep(word: &AtomicU32, seen: u32, at_most: Duration) {
    if cfg!(miri) {
        // Miri has no futexes between processes.
        return std::thread::yield_now();
    }
    let timeout = rustix::time::Timespec {
        tv_sec: at_most.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // The caller checks again, whatever ended the wait.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
}

/// Wakes all threads that block on the word, in any process.
pub(crate) fn wake(word: &AtomicU32) {
    if cfg!(miri) {
        return;
    }
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
