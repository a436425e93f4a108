//! Reasons to end a wait of bootstrap early.

use crate::Error;
use core::cell::Cell;
use ringfold_fabric::waiter::CancelToken;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a [`FailureCheck`] is called.
const FAILURE_INTERVAL: Duration = Duration::from_millis(20);

/// How often a wait looks up if nothing but time can end it.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Returns why the bootstrap can't succeed any more, if it can't.
pub(crate) type FailureCheck = Arc<dyn Fn() -> Option<Error> + Send + Sync>;

/// What can end a wait besides its deadline: the user's cancel token, or a failure elsewhere.
pub(crate) struct CancelCheck {
    cancel: Option<CancelToken>,
    failure: Option<FailureCheck>,
    next_ask: Cell<Instant>,
}

impl CancelCheck {
    pub(crate) fn new(cancel: Option<CancelToken>, failure: Option<FailureCheck>) -> Self {
        Self { cancel, failure, next_ask: Cell::new(Instant::now()) }
    }

    /// How long a wait may last before [`CancelCheck::check`] is called again.
    pub(crate) fn interval(&self) -> Duration {
        let cancel = self.cancel.as_ref().map_or(IDLE_INTERVAL, CancelToken::interval);
        let failure = if self.failure.is_some() { FAILURE_INTERVAL } else { IDLE_INTERVAL };
        cancel.min(failure).max(Duration::from_millis(1))
    }

    /// An error if the wait must end. The cancel token is asked no more often than its interval says.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(error) = self.failure.as_ref().and_then(|failure| failure()) {
            return Err(error);
        }
        let Some(cancel) = &self.cancel else { return Ok(()) };
        let now = Instant::now();
        if now < self.next_ask.get() {
            return Ok(());
        }
        self.next_ask.set(now + cancel.interval());
        if cancel.is_cancelled() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
