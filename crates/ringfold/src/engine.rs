//! The reactor of a peer of an elastic run, whose waits can be watched.

use crate::Error;
use crate::driver::{Driver, Ended};
use core::ops::Deref;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::reactor::{Reactor, Stopped};
use ringfold_proto::id::CallId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A reactor, and what its callers look at while they wait.
pub(crate) struct Engine {
    reactor: Reactor<Driver>,
    watch: Option<Watch>,
}

/// What a thread that waits looks at now and then, since it may have to leave off.
#[derive(Clone)]
pub(crate) struct Watch {
    pub(crate) every: Duration,
    pub(crate) must_end: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl core::fmt::Debug for Watch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Watch").field("every", &self.every).finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts the background thread.
    pub(crate) fn start(driver: Driver, poller: Arc<Poller>, watch: Option<Watch>) -> std::io::Result<Self> {
        Ok(Self { reactor: Reactor::start(driver, poller, "ringfold-progress")?, watch })
    }

    /// What waits look at now and then.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.watch.as_ref()
    }

    /// Waits for the end of a call, and takes it. If the watch has it leave off, the peer leaves the run: a vote can't
    /// be taken back, and nothing of ours may touch the call's memory once this has returned.
    pub(crate) fn wait(&self, call: CallId) -> Ended {
        let Some(watch) = &self.watch else { return self.wait_to_the_end(call) };
        loop {
            if let Some(ended) = self.wait_until(call, Some(Instant::now() + watch.every)) {
                return ended;
            }
            if (watch.must_end)() {
                self.close();
                return Ended { result: Err(Error::Interrupted), ..self.wait_to_the_end(call) };
            }
        }
    }

    /// As [`Engine::wait`], but nobody watches.
    pub(crate) fn wait_to_the_end(&self, call: CallId) -> Ended {
        self.reactor.wait(call)
    }
}

impl Deref for Engine {
    type Target = Reactor<Driver>;

    fn deref(&self) -> &Self::Target {
        &self.reactor
    }
}

impl From<Stopped> for Error {
    fn from(why: Stopped) -> Self {
        match why {
            Stopped::Closed => Self::Left,
            Stopped::Panicked(what) => Self::Internal(what),
            Stopped::Poller(_) => Self::System(why.to_string()),
        }
    }
}
