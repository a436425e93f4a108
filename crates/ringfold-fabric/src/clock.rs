//! The machines' time: nanoseconds since a clock began.

use ringfold_proto::time::Time;
use std::time::Instant;

/// The time since this host was started: the same in all its processes.
pub fn since_boot() -> core::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    core::time::Duration::try_from(time).unwrap_or_default()
}

/// How long this host was suspended since it was started: time that other clocks do not count.
pub fn suspended() -> core::time::Duration {
    let counted = since_boot();
    let all = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    core::time::Duration::try_from(all).unwrap_or_default().saturating_sub(counted)
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
