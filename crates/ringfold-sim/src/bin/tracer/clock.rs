//! The machines' time: nanoseconds since this process began.

use ringfold_proto::time::Time;
use std::time::{Duration, Instant};

/// Turns without anything to do before the thread sleeps between turns.
const TURNS_AWAKE: u32 = 50;

/// The pause between two idle turns. The standard library can't wait for several sockets at once, so the
/// tracer looks at all of them again and again.
const PAUSE: Duration = Duration::from_micros(100);

/// A clock, which also knows for how many turns nothing has happened.
pub struct Clock {
    origin: Instant,
    idle_turns: u32,
}

impl Clock {
    /// Begins at zero.
    pub fn start() -> Self {
        Self { origin: Instant::now(), idle_turns: 0 }
    }

    /// The time.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Called after each turn: gives the processor away if there was nothing to do.
    pub fn rest(&mut self, moved: bool) {
        self.idle_turns = if moved { 0 } else { self.idle_turns.saturating_add(1) };
        match self.idle_turns {
            0 => {}
            1..=TURNS_AWAKE => std::thread::yield_now(),
            _ => std::thread::sleep(PAUSE),
        }
    }
}
