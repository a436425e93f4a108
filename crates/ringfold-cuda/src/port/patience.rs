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
/// How often whoever watches is asked.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// How long to wait, by whichever of these ends it first.
#[derive(Clone, Copy, Default)]
pub struct Wait<'a> {
    /// Until then.
    pub deadline: Option<Instant>,
    /// For so many looks.
    pub looks_max: Option<u64>,
    /// Until this says so. It is asked every so often, by the thread that waits.
    pub watch: Option<&'a (dyn Fn() -> bool + Sync)>,
}

impl Wait<'_> {
    /// Until a time.
    pub fn until(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    /// For a while; one that no clock can tell the end of is for ever.
    pub fn within(patience: Duration) -> Self {
        Self { deadline: Instant::now().checked_add(patience), ..Self::default() }
    }

    /// Asks until there is an answer. None if the wait is over before.
    pub fn look<T>(self, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
        let mut patience = Patience::new(self);
        loop {
            if let Some(answer) = ask() {
                return Some(answer);
            }
            if !patience.pause() {
                return None;
            }
        }
    }
}

impl core::fmt::Debug for Wait<'_> {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { deadline, looks_max, watch } = self;
        write!(out, "Wait(until {deadline:?}, {looks_max:?} looks, watched: {})", watch.is_some())
    }
}

/// A wait that goes on.
pub(crate) struct Patience<'a> {
    wait: Wait<'a>,
    /// When it began, which is only asked for when it has become worth it.
    begun: Option<Instant>,
    /// When whoever watches is asked again.
    asks: Option<Instant>,
    looks: u64,
    /// The looks since the clock was looked at.
    quick: u32,
    sleep: Duration,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(wait: Wait<'a>) -> Self {
        Self { wait, begun: None, asks: None, looks: 0, quick: 0, sleep: SLEEP_MIN }
    }

    /// Whether the next [pause](Self::pause) is so long that one can as well ask before whether there is still something
    /// to wait for.
    pub(crate) fn is_slow(&self) -> bool {
        self.quick + 1 >= LOOKS
    }

    /// Lets some time pass. False if the wait is over.
    pub(crate) fn pause(&mut self) -> bool {
        self.looks += 1;
        if self.wait.looks_max.is_some_and(|most| self.looks > most) {
            return false;
        }
        if !self.is_slow() {
            self.quick += 1;
            core::hint::spin_loop();
            return true;
        }
        let now = Instant::now();
        let waited = now.duration_since(*self.begun.get_or_insert(now));
        let left =
            self.wait.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(now));
        if left.is_zero() || self.is_called_off(now) {
            return false;
        }
        if self.wait.looks_max.is_some() {
            // Whoever counts looks means to be done soon: ten millions of them last seconds, but hours with sleeps.
            self.quick = 0;
        } else if waited >= OFFER {
            std::thread::sleep(self.sleep.min(left));
            self.sleep = (self.sleep * 5 / 4).min(SLEEP_MAX);
        } else if waited >= LOOK {
            std::thread::yield_now();
        } else {
            self.quick = 0;
        }
        true
    }

    fn is_called_off(&mut self, now: Instant) -> bool {
        let Some(watch) = self.wait.watch else { return false };
        if now < *self.asks.get_or_insert(now + WATCH_EVERY) {
            return false;
        }
        self.asks = Some(now + WATCH_EVERY);
        watch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(wait: Wait<'_>) -> usize {
        let mut patience = Patience::new(wait);
        (0..100_000_000).take_while(|_| patience.pause()).count()
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_costs_little() {
        let begun = Instant::now();
        let looks = looks(Wait::within(Duration::from_millis(60)));
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_millis(60) && waited < Duration::from_secs(5), "{waited:?}");
        assert!(looks < 1_000_000, "it sleeps in the end: {looks}");
    }

    #[test]
    fn a_deadline_that_is_over_leaves_a_few_looks_and_no_more() {
        assert!(looks(Wait::until(Instant::now())) < LOOKS as usize);
    }

    #[test]
    fn looks_are_counted() {
        assert_eq!(looks(Wait { looks_max: Some(100), ..Wait::default() }), 100);
        assert_eq!(looks(Wait { looks_max: Some(0), ..Wait::default() }), 0);
    }

    #[test]
    fn counted_looks_are_not_slept_between() {
        let begun = Instant::now();
        assert_eq!(looks(Wait { looks_max: Some(1_000_000), ..Wait::default() }), 1_000_000);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn whoever_watches_can_call_a_wait_off() {
        let begun = Instant::now();
        looks(Wait { watch: Some(&|| true), ..Wait::within(Duration::from_secs(60)) });
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
