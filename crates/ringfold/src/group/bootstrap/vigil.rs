//! What a rank that waits for others looks at meanwhile.

use crate::Error;
use core::cell::Cell;
use ringfold_fabric::waiter::CancelToken;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is looked whether a wait still makes sense, where something besides time can end it.
const LOOK: Duration = Duration::from_millis(20);

/// And where nothing can.
const LOOK_SELDOM: Duration = Duration::from_secs(1);

/// Tells why a meeting can come to nothing, if it can't come to anything any more.
pub(crate) type Doubt = Arc<dyn Fn() -> Option<Error> + Send + Sync>;

/// Reasons to leave off waiting, beside time.
pub(crate) struct Vigil {
    watch: Option<CancelToken>,
    doubt: Option<Doubt>,
    next_ask: Cell<Instant>,
}

impl Vigil {
    pub(crate) fn new(watch: Option<CancelToken>, doubt: Option<Doubt>) -> Self {
        Self { watch, doubt, next_ask: Cell::new(Instant::now()) }
    }

    /// How long a wait may last before [`Vigil::check`] is called again.
    pub(crate) fn tick(&self) -> Duration {
        let watched = self.watch.as_ref().map_or(LOOK_SELDOM, CancelToken::interval);
        let doubted = if self.doubt.is_some() { LOOK } else { LOOK_SELDOM };
        watched.min(doubted).max(Duration::from_millis(1))
    }

    /// Whether to go on. Whoever watches is asked no more often than it wants to be.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(error) = self.doubt.as_ref().and_then(|doubt| doubt()) {
            return Err(error);
        }
        let Some(watch) = &self.watch else { return Ok(()) };
        let now = Instant::now();
        if now < self.next_ask.get() {
            return Ok(());
        }
        self.next_ask.set(now + watch.interval());
        if watch.is_cancelled() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
