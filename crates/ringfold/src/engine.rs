//! The reactor of a peer of an elastic run, whose waits can be cancelled.

use crate::Error;
use crate::driver::{Directory, Driver, Ended};
use crate::staging::ExchangePool;
use crate::traffic::TrafficReport;
use core::ops::Deref;
use core::time::Duration;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::reactor::{Reactor, Stopped};
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::id::CallId;
use std::sync::Arc;
use std::time::Instant;

/// Whether a wait can be cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiting {
    Cancellable,
    ToTheEnd,
}

/// A wait for an answer is split into waits of this length. The driver ends calls that take too long.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A reactor, and what cancels its waits.
pub(crate) struct Engine {
    reactor: Reactor<Driver>,
    watch: Option<CancelToken>,
    directory: Arc<Directory>,
    exchange_pool: Arc<ExchangePool>,
}

impl Engine {
    /// Starts the background thread.
    pub(crate) fn start(
        driver: Driver,
        poller: Arc<Poller>,
        watch: Option<CancelToken>,
    ) -> std::io::Result<Self> {
        let (directory, exchange_pool) = (driver.directory(), driver.exchange_pool());
        let reactor = Reactor::start(driver, poller, "ringfold-progress")?;
        Ok(Self { reactor, watch, directory, exchange_pool })
    }

    /// What was sent and received. Also known after the end.
    pub(crate) fn traffic(&self) -> TrafficReport {
        TrafficReport::new(self.directory.poller().network(), |peer| self.directory.name_of(peer))
    }

    /// Device memory that peers of this host share.
    pub(crate) fn exchange_pool(&self) -> &ExchangePool {
        &self.exchange_pool
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

    /// Waits until the driver has an answer. If the wait is cancelled, the peer leaves the run.
    pub(crate) fn ask<R>(
        &self,
        waiting: Waiting,
        mut answer: impl FnMut(&mut Driver) -> Option<R>,
    ) -> Result<R, Error> {
        if let (Waiting::Cancellable, Some(watch)) = (waiting, &self.watch) {
            let answered = watch.wait(|until| self.reactor.wait_for(until, &mut answer).transpose());
            return answered.unwrap_or_else(|| {
                self.close();
                Err(Error::Interrupted)
            });
        }
        loop {
            let until = Instant::now() + ASK_AGAIN_AFTER;
            if let Some(answer) = self.reactor.wait_for(until, &mut answer)? {
                return Ok(answer);
            }
        }
    }

    /// Waits for the end of a call in either way.
    pub(crate) fn wait_as(&self, waiting: Waiting, call: CallId) -> Ended {
        match waiting {
            Waiting::Cancellable => self.wait(call),
            Waiting::ToTheEnd => self.wait_to_the_end(call),
        }
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
