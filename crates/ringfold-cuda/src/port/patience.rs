//! How a thread of the host waits for something that no system call tells it of.
//!
//! It looks again and again for a while, since what it waits for often comes within microseconds; then it lets others
//! run between two looks, and then it sleeps between them, for longer and longer.

use std::time::{Duration, Instant};

/// For so long it looks without a pause.
const LOOK: Duration = Duration::from_micros(50);
/// And for so long it lets others run.
const OFFER: Duration = Duration::from_micros(500);
/// The first sleep, and the longest.
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Looks between two looks at the clock.
const LOOKS: u32 = 32;

/// A wait that goes on.
pub(crate) struct Patience {
    deadline: Option<Instant>,
    /// When it began, which is only asked for when it has become worth it.
    begun: Option<Instant>,
    looks: u32,
    sleep: Duration,
}

impl Patience {
    /// Until a time, or for ever: then somebody else ends the wait.
    pub(crate) fn until(deadline: Option<Instant>) -> Self {
        Self { deadline, begun: None, looks: 0, sleep: SLEEP_MIN }
    }

    /// Whether the next [pause](Self::pause) is so long that one can as well ask before whether there is still something
    /// to wait for.
    pub(crate) fn is_slow(&self) -> bool {
        self.looks.wrapping_add(1).is_multiple_of(LOOKS)
    }

    /// Lets some time pass. False if there is none left.
    pub(crate) fn pause(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(LOOKS) {
            core::hint::spin_loop();
            return true;
        }
        let now = Instant::now();
        let waited = now.duration_since(*self.begun.get_or_insert(now));
        let left = self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(now));
        if left.is_zero() {
            return false;
        }
        if waited >= OFFER {
            // From now on each look is followed by a sleep.
            self.looks = self.looks.wrapping_sub(1);
            std::thread::sleep(self.sleep.min(left));
            self.sleep = (self.sleep * 5 / 4).min(SLEEP_MAX);
        } else if waited >= LOOK {
            self.looks = self.looks.wrapping_sub(1);
            std::thread::yield_now();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_deadline_and_costs_little() {
        let begun = Instant::now();
        let mut patience = Patience::until(Some(begun + Duration::from_millis(60)));
        let mut looks = 0;
        while patience.pause() {
            looks += 1;
        }
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_millis(60) && waited < Duration::from_secs(5), "{waited:?}");
        assert!(looks < 1_000_000, "it sleeps in the end: {looks}");
    }

    #[test]
    fn a_deadline_that_is_over_leaves_a_few_looks_and_no_more() {
        let mut patience = Patience::until(Some(Instant::now()));
        let looks = (0..1000).take_while(|_| patience.pause()).count();
        assert!(looks < LOOKS as usize);
    }
}
