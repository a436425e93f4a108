//! The reactor of a peer of an elastic run, whose waits can be cancelled.

use crate::Error;
use crate::driver::{Directory, Driver, Ended};
use crate::traffic::TrafficReport;
use core::ops::Deref;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::reactor::{Reactor, Stopped};
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::id::CallId;
use std::sync::Arc;

/// A reactor, and what cancels its waits.
pub(crate) struct Engine {
    reactor: Reactor<Driver>,
    watch: Option<CancelToken>,
    directory: Arc<Directory>,
}

impl Engine {
    /// Starts the background thread.
    pub(crate) fn start(
        driver: Driver,
        poller: Arc<Poller>,
        watch: Option<CancelToken>,
    ) -> std::io::Result<Self> {
        let directory = driver.directory();
        Ok(Self { reactor: Reactor::start(driver, poller, "ringfold-progress")?, watch, directory })
    }

    /// What was sent and received. Also known after the end.
    pub(crate) fn traffic(&self) -> TrafficReport {
        TrafficReport::new(self.directory.poller().network(), |peer| self.directory.name_of(peer))
    }

    /// What cancels waits.
    pub(crate) fn watch(&self) -> Option<&CancelToken> {
        self.watch.as_ref()
    }

    /// Waits for the end of a call, and takes it. If the wait is cancelled, the peer leaves the run: a vote cannot be
    /// withdrawn, and Ringfold must not touch the call's memory once this has returned.
    pub(crate) fn wait(&self, call: CallId) -> Ended {
        let Some(watch) = &self.watch else { return self.wait_to_the_end(call) };
        watch.wait(|until| self.wait_until(call, Some(until))).unwrap_or_else(|| {
            self.close();
            Ended { result: Err(Error::Interrupted), ..self.wait_to_the_end(call) }
        })
    }

    /// As [`Engine::wait`], but it cannot be cancelled.
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
