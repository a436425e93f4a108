//! The time at which a wait ends.

use core::time::Duration;
use std::time::Instant;

/// A time at which a wait ends, or never.
///
/// ```
/// use ringfold_fabric::waiter::Deadline;
/// use std::time::Duration;
///
/// assert!(Deadline::after(Duration::ZERO).is_over());
/// assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
/// assert_eq!(Deadline::NEVER.left(), Duration::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline.
    pub const NEVER: Self = Self(None);

    /// After a timeout. Never, if the clock cannot express that.
    pub fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// The time, if there is one.
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// The time left; zero if it has passed.
    pub fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// As [`Self::left`], at a time that was just read.
    pub fn left_at(self, now: Instant) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(now))
    }

    /// Whether it has passed.
    pub fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// The earlier one.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(one), Some(other)) => Self(Some(one.min(other))),
            (one, other) => Self(one.or(other)),
        }
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Self {
        Self(Some(at))
    }
}

impl From<Option<Instant>> for Deadline {
    fn from(at: Option<Instant>) -> Self {
        Self(at)
    }
}
