//! What a proxy's thread does while nothing is to be done.
//!
//! Kernels can't wake a thread: it has to look. So it looks without a pause for a while, lets others run between two
//! looks for longer, and then sleeps between them: for 50 microseconds at first, and for up to a millisecond when nothing
//! came for seconds. Programs on the host can wake it, so where they alone push it sleeps sooner, and for longer.

use core::sync::atomic::{AtomicBool, Ordering, fence};
use parking_lot::Mutex;
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Looks between two looks at the clock.
const LOOKS: u32 = 64;

/// How long each stage of being idle lasts.
#[derive(Clone, Copy, Debug)]
struct Stages {
    look: Duration,
    offer: Duration,
    /// For so long the shortest sleeps.
    doze: Duration,
    sleep_min: Duration,
    sleep_max: Duration,
}

/// Where kernels push.
const FOR_KERNELS: Stages = Stages {
    look: Duration::from_micros(200),
    offer: Duration::from_millis(20),
    doze: Duration::from_secs(2),
    sleep_min: Duration::from_micros(50),
    sleep_max: Duration::from_millis(1),
};

/// Where nobody pushes who could not wake the thread.
const FOR_HOST: Stages = Stages {
    look: Duration::from_micros(20),
    offer: Duration::from_micros(100),
    doze: Duration::ZERO,
    sleep_min: Duration::from_millis(50),
    sleep_max: Duration::from_millis(50),
};

/// A thread's idle time.
pub(crate) struct Idle {
    since: Option<Instant>,
    looks: u32,
}

/// The bed that the thread sleeps in, and by which others wake it.
#[derive(Default)]
pub(crate) struct Bed {
    is_asleep: AtomicBool,
    sleeper: Mutex<Option<Thread>>,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self { since: None, looks: 0 }
    }

    /// Something was done.
    pub(crate) fn end(&mut self) {
        *self = Self::new();
    }

    /// Passes some time, and says whether there is so much of it that other things can be looked at.
    /// `is_something_there` is asked once more before the thread sleeps.
    pub(crate) fn pass(
        &mut self,
        bed: &Bed,
        for_kernels: bool,
        is_something_there: impl Fn() -> bool,
    ) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(LOOKS) {
            core::hint::spin_loop();
            return false;
        }
        let now = Instant::now();
        let idle = now.duration_since(*self.since.get_or_insert(now));
        let stages = if for_kernels { FOR_KERNELS } else { FOR_HOST };
        if idle < stages.look {
            return false;
        }
        // From now on each look is followed by a pause.
        self.looks = self.looks.wrapping_sub(1);
        if idle < stages.look + stages.offer {
            std::thread::yield_now();
            return true;
        }
        let is_long = idle >= stages.look + stages.offer + stages.doze;
        bed.sleep(if is_long { stages.sleep_max } else { stages.sleep_min }, is_something_there);
        true
    }
}

impl Bed {
    /// This thread is the one that sleeps here.
    pub(crate) fn enter(&self) {
        *self.sleeper.lock() = Some(std::thread::current());
    }

    /// Whoever has written something that the sleeper looks for calls this afterwards.
    pub(crate) fn wake(&self) {
        // Either the sleeper sees what was written, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) {
            let sleeper = self.sleeper.lock().clone();
            if let Some(sleeper) = sleeper {
                sleeper.unpark();
            }
        }
    }

    fn sleep(&self, at_most: Duration, is_something_there: impl Fn() -> bool) {
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !is_something_there() {
            std::thread::park_timeout(at_most);
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;

    #[test]
    fn whoever_sleeps_is_woken_at_once() {
        const ROUNDS: u32 = 200;
        let (bed, asked, done) = (Bed::default(), AtomicU32::new(0), AtomicU32::new(0));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                bed.enter();
                while done.load(Ordering::Acquire) < ROUNDS {
                    let is_there = || asked.load(Ordering::Acquire) > done.load(Ordering::Acquire);
                    if is_there() {
                        done.fetch_add(1, Ordering::Release);
                    } else {
                        bed.sleep(Duration::from_secs(10), is_there);
                    }
                }
            });
            for round in 1..=ROUNDS {
                asked.store(round, Ordering::Release);
                bed.wake();
                while done.load(Ordering::Acquire) < round {
                    assert!(begun.elapsed() < Duration::from_secs(9), "somebody was not woken");
                    std::thread::yield_now();
                }
            }
        });
    }
}
