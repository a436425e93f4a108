//! The cancel token, which ends waits.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// Ends waits. Threads that wait poll it once per interval. Clones are the same token.
///
/// It is polled because signal handlers of other languages only run when a thread asks for them.
#[derive(Clone)]
pub struct CancelToken {
    interval: Duration,
    is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// The longest interval, which every clock can express.
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);

impl CancelToken {
    /// A token that is polled once per interval.
    pub fn new(interval: Duration, is_cancelled: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { interval: interval.min(INTERVAL_MAX), is_cancelled: Arc::new(is_cancelled) }
    }

    /// The time between two polls.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether waits have to end. Called by threads that wait.
    pub fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }

    /// Calls `wait_until` with deadlines one interval apart until it has an answer. None if the wait is cancelled before.
    ///
    /// ```
    /// use ringfold_fabric::waiter::CancelToken;
    /// use std::time::{Duration, Instant};
    ///
    /// let (sender, receiver) = std::sync::mpsc::channel::<u32>();
    /// let cancel = CancelToken::new(Duration::from_millis(1), || true);
    /// let receive = |until: Instant| receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    /// assert_eq!(cancel.wait(receive), None);
    /// sender.send(7).unwrap();
    /// assert_eq!(cancel.wait(receive), Some(7));
    /// ```
    pub fn wait<T>(&self, mut wait_until: impl FnMut(Instant) -> Option<T>) -> Option<T> {
        loop {
            let answer = wait_until(Instant::now() + self.interval);
            if answer.is_some() || self.is_cancelled() {
                return answer;
            }
        }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("interval", &self.interval).finish_non_exhaustive()
    }
}
