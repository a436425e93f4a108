//! Waits until other threads are blocked, as the kernel reports it.

#![allow(dead_code, reason = "not every test program needs all of it")]

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longer than any thread needs to call a function, on any machine.
const LONG: Duration = Duration::from_secs(60);

/// Between two looks at a thread.
const PAUSE: Duration = Duration::from_millis(5);

/// This thread, as a folder of `/proc`.
pub fn this_thread() -> String {
    std::fs::read_link("/proc/thread-self").unwrap().to_str().unwrap().to_owned()
}

/// The main thread of a process, as a folder of `/proc`.
pub fn main_thread(pid: u32) -> String {
    format!("{pid}/task/{pid}")
}

/// How often the thread has gone to sleep; nothing if it is awake.
pub fn sleeps(thread: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).expect("the thread has ended");
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    field("State:").starts_with('S').then(|| field("voluntary_ctxt_switches:").parse().unwrap())
}

/// Waits until none of these threads runs between two looks.
pub fn await_blocked(threads: &[String]) {
    await_sleeps(threads, |before, after| before == after);
}

fn await_sleeps(threads: &[String], is_waiting: impl Fn(u64, u64) -> bool) {
    let end = Instant::now() + LONG;
    let mut last = vec![None; threads.len()];
    loop {
        let now: Vec<_> = threads.iter().map(|thread| sleeps(thread)).collect();
        let mut pairs = last.iter().zip(&now);
        if pairs.all(|pair| matches!(pair, (Some(before), Some(after)) if is_waiting(*before, *after))) {
            return;
        }
        assert!(Instant::now() < end, "timed out waiting for blocked threads");
        last = now;
        std::thread::sleep(PAUSE);
    }
}

/// The threads of a test that make a call in which they wait.
#[derive(Default)]
pub struct Callers(Mutex<Vec<String>>);

impl Callers {
    /// Adds this thread. It makes its call next.
    pub fn add(&self) {
        self.0.lock().unwrap().push(this_thread());
    }

    /// Waits until this many threads were added.
    pub fn await_added(&self, count: usize) {
        let end = Instant::now() + LONG;
        while self.0.lock().unwrap().len() < count {
            assert!(Instant::now() < end, "timed out waiting for {count} callers");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// As [`Self::await_added`], and waits until all of them wait: they are blocked, or poll.
    pub fn await_waiting(&self, count: usize) {
        self.await_added(count);
        // A thread that polls sleeps for a millisecond at most each time.
        await_sleeps(&self.0.lock().unwrap(), |before, after| before == after || after >= before + 3);
    }
}
