//! The cancel token: how a thread that waits learns that it has to stop.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// Asked by threads that wait, once per interval, whether they have to stop waiting. Clones are the same token.
///
/// It is polled rather than signalled, since what cancels most waits has no other way to tell: a signal handler of
/// another language runs only when a thread asks for it.
#[derive(Clone)]
pub struct CancelToken {
    interval: Duration,
    is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Longer intervals are cut to this, which every clock can express.
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);

impl CancelToken {
    /// A token that is asked once per interval.
    pub fn new(interval: Duration, is_cancelled: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { interval: interval.min(INTERVAL_MAX), is_cancelled: Arc::new(is_cancelled) }
    }

    /// How often it is asked.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether waits have to end. Called by the thread that waits.
    pub fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }

    /// Waits by `wait_until`, which is called with deadlines one interval apart until it has an answer. None if the
    /// token cancels the wait before.
    ///
    /// ```
    /// use ringfold_fabric::waiter::CancelToken;
    /// use std::time::{Duration, Instant};
    ///
    /// let (told, news) = std::sync::mpsc::channel::<u32>();
    /// let cancel = CancelToken::new(Duration::from_millis(1), || true);
    /// let hear = |until: Instant| news.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    /// assert_eq!(cancel.wait(hear), None);
    /// told.send(7).unwrap();
    /// assert_eq!(cancel.wait(hear), Some(7));
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
