//! The machines' time: nanoseconds since a clock began.

use ringfold_proto::time::Time;
use std::time::Instant;

/// The time since this host was started: the same in all its processes.
pub fn since_boot() -> core::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    core::time::Duration::try_from(time).unwrap_or_default()
}

/// A clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts a little after zero, which may mean "never".
    pub fn start() -> Self {
        Self { origin: Instant::now() - core::time::Duration::from_millis(1) }
    }

    /// The time.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
