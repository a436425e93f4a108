//! The warnings of a rank that waits while its group is formed.

use core::cell::Cell;
use core::time::Duration;
use std::time::Instant;

/// Warns after a time, twice that time, and so on.
pub(crate) struct WaitNotice {
    began: Instant,
    next: Cell<Option<Duration>>,
}

impl WaitNotice {
    /// Without warnings if the time is zero.
    pub(crate) fn new(warn_after: Duration) -> Self {
        let next = Some(warn_after).filter(|after| !after.is_zero());
        Self { began: Instant::now(), next: Cell::new(next) }
    }

    /// Logs for whom the rank waits, and why, if that is due.
    pub(crate) fn check(&self, who: impl FnOnce() -> String, why: impl FnOnce() -> String) {
        if let Some(waited) = self.take_due(self.began.elapsed()) {
            let seconds = (waited.as_secs_f64() * 10.0).round() / 10.0;
            tracing::warn!(target: "ringfold::group", "still waiting for {} for {seconds} s: {}", who(), why());
        }
    }

    fn take_due(&self, waited: Duration) -> Option<Duration> {
        let mut next = self.next.get().filter(|next| *next <= waited)?;
        while next <= waited {
            next = next.saturating_mul(2);
        }
        self.next.set(Some(next));
        Some(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_double_and_missed_ones_are_not_made_up_for() {
        let notice = WaitNotice::new(Duration::from_secs(5));
        let due: Vec<_> = (0..100).filter(|at| notice.take_due(Duration::from_secs(*at)).is_some()).collect();
        assert_eq!(due, [5, 10, 20, 40, 80]);
        let late = WaitNotice::new(Duration::from_secs(5));
        assert!(late.take_due(Duration::from_secs(33)).is_some());
        assert!(late.take_due(Duration::from_secs(39)).is_none());
        assert!(WaitNotice::new(Duration::ZERO).take_due(Duration::from_secs(99)).is_none());
    }
}
