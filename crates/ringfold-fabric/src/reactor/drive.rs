//! What a reactor drives, and what it reports.

use crate::poller::Readiness;
use crate::waiter::Policy;
use core::time::Duration;
use foldhash::{HashMap, HashSet};
use ringfold_proto::id::CallId;
use std::time::Instant;

/// What a reactor drives. No function of it waits, but for [`Drive::finish`].
pub trait Drive: Send + Sized + 'static {
    /// How a call ends.
    type Ended: Send + 'static;

    /// Why a call fails.
    type Error: Clone + Send + From<Stopped> + 'static;

    /// How long the background thread pauses after a caller has waited: most likely the next call comes soon, and two
    /// threads that poll the same sockets wake each other.
    const LINGER: Duration;

    /// Whether each call of it does all that can be done at once, so that a turn right after the call has nothing to do.
    const DRIVES_IN_CALLS: bool = false;

    /// Does what can be done now.
    fn turn(&mut self, ready: &Readiness);

    /// After which time something has to be done even if nothing arrives.
    fn next_timeout(&self) -> Option<Duration>;

    /// Whether something has arrived that the poller does not report.
    fn has_input(&self) -> bool {
        false
    }

    /// Looks at the sockets on which something is expected, which takes less time than to ask the poller. True if something
    /// has arrived; none if only the poller can tell.
    fn look(&mut self) -> Option<bool> {
        None
    }

    /// From now on, until the next turn, the poller reports everything. True if something has arrived already: then no
    /// thread may sleep.
    fn prepare_sleep(&mut self) -> bool {
        false
    }

    /// What is about to arrive, and worth spinning for.
    fn expects(&self) -> Expected {
        Expected::Nothing
    }

    /// Whether the background thread is needed right after a wait.
    fn is_busy(&self) -> bool;

    /// Hands over what has happened since the last report.
    fn report(&mut self, outcomes: &mut Outcomes<Self::Ended>);

    /// Says goodbye. What has not ended fails.
    fn leave(&mut self);

    /// Sends the last bytes and closes its connections, by the deadline at the latest. Called without the lock.
    fn finish(self, deadline: Instant);

    /// The end of a call that failed.
    fn failed(error: Self::Error) -> Self::Ended;
}

/// Why a reactor has no driver any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stopped {
    /// It was closed.
    #[error("closed")]
    Closed,
    /// The driver panicked: a bug.
    #[error("{0}")]
    Panicked(String),
    /// The poller failed.
    #[error("waiting for sockets: {0}")]
    Poller(String),
}

/// What a driver reports.
pub struct Outcomes<E> {
    pub(super) ended: HashMap<CallId, E>,
    /// Calls whose end nobody will ask for.
    pub(super) abandoned: HashSet<CallId>,
    pub(super) callbacks: Vec<Callback>,
    pub(super) has_news: bool,
}

impl<E> Default for Outcomes<E> {
    fn default() -> Self {
        let (ended, abandoned) = (HashMap::default(), HashSet::default());
        Self { ended, abandoned, callbacks: Vec::new(), has_news: false }
    }
}

/// Work that runs without the lock.
pub type Callback = Box<dyn FnOnce() + Send>;

impl<E: Send + 'static> Outcomes<E> {
    /// A call has ended.
    pub fn end(&mut self, call: CallId, ended: E) {
        if self.abandoned.remove(&call) {
            // Dropping user memory may run user code.
            self.callbacks.push(Box::new(move || drop(ended)));
        } else {
            self.ended.insert(call, ended);
            self.has_news = true;
        }
    }

    /// Something else happened that a thread may wait for.
    pub fn notify(&mut self) {
        self.has_news = true;
    }

    /// User code to be run without the lock.
    pub fn call_back(&mut self, callback: Callback) {
        self.callbacks.push(callback);
    }
}

/// What is about to arrive, and worth polling for: waking a thread takes tens of microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// Nothing is about to arrive, or others need the core.
    Nothing,
    /// Frames of ranks that share the cores of this host with this one.
    OnSharedCores,
    /// Frames, all of them through shared memory.
    SharedMemory,
    /// Frames, some of them through sockets.
    Sockets,
    /// A message from the master.
    Master,
}

impl Expected {
    /// All kinds, in the order of their numbers.
    pub(super) const ALL: [Self; 5] =
        [Self::Nothing, Self::OnSharedCores, Self::SharedMemory, Self::Sockets, Self::Master];

    /// How to wait for it.
    pub(super) fn policy(self) -> Policy {
        match self {
            Self::Nothing | Self::SharedMemory => Policy::DRIVER,
            Self::OnSharedCores => Policy::DRIVER_ON_SHARED_CORES,
            Self::Sockets | Self::Master => Policy::DRIVER_OF_SOCKETS,
        }
    }
}
