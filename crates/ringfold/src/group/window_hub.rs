//! What a group's driver and its windows share: connections between ranks, and which ranks are gone.
//!
//! The driver never waits. Windows wait outside of it, in their own channels and on signals in shared memory, so the hub
//! wakes them when a rank has left or the group has failed.

use crate::Error;
use parking_lot::{Condvar, Mutex, MutexGuard};
use ringfold_fabric::channel::{Connection, Endpoint};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::reactor::Callback;
use ringfold_fabric::signal_counters::SignalCounters;
use ringfold_proto::cause::{Cause, Departure, PeerName};
use ringfold_proto::id::{PeerId, Rank};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Incoming connections that wait for a window, at most.
const INCOMING_MAX: usize = 1024;

/// Connections with other ranks.
pub(crate) type Connections = BTreeMap<Rank, Connection>;

/// The hub.
pub(crate) struct WindowHub {
    /// The group's; connections of windows take its settings.
    poller: Arc<Poller>,
    state: Mutex<State>,
    changed: Condvar,
    /// Counts what may end a wait. Most calls see 0 and check nothing else.
    events: AtomicU32,
    /// How many windows were opened. Locked while one is: one at a time.
    opened: Mutex<u32>,
}

#[derive(Default)]
struct State {
    fault: Option<Cause>,
    is_closed: bool,
    left: BTreeSet<Rank>,
    incoming: VecDeque<(PeerId, BlockingConnection)>,
    /// What windows wait on.
    signals: Vec<Weak<SignalCounters>>,
    /// Made when a window first needs it.
    endpoint: Option<Endpoint>,
    connections: Connections,
    /// What the user wants to run when the group fails.
    on_failure: Vec<OnFailure>,
}

type OnFailure = Box<dyn FnOnce(&Error) + Send>;

/// Called by the driver.
impl WindowHub {
    pub(super) fn new(poller: Arc<Poller>) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { poller, state, changed, events: AtomicU32::new(0), opened: Mutex::default() }
    }

    /// The group has failed. What is returned has to run without the lock of the driver: it sends, or is user code.
    pub(super) fn fail(&self, cause: &Cause) -> Vec<Callback> {
        let mut state = self.state.lock();
        state.fault.get_or_insert_with(|| cause.clone());
        let connections: Vec<_> = state.connections.values().cloned().collect();
        let on_failure = core::mem::take(&mut state.on_failure);
        self.notify(&mut state);
        drop(state);
        let why = format!("the group has failed: {cause}");
        let abort = move || connections.iter().for_each(|connection| connection.abort(&why));
        let error = Error::GroupFailed(Box::new(cause.clone()));
        let run = |callback: OnFailure| {
            let error = error.clone();
            Box::new(move || callback(&error)) as Callback
        };
        core::iter::once(Box::new(abort) as Callback).chain(on_failure.into_iter().map(run)).collect()
    }

    /// A rank has left. What it put and signalled before has arrived, or will.
    pub(super) fn leave(&self, rank: Rank) {
        let mut state = self.state.lock();
        state.left.insert(rank);
        self.notify(&mut state);
    }

    /// This rank leaves. What windows have queued is sent while `meanwhile` runs, until the deadline at the latest.
    pub(super) fn close(&self, deadline: Instant, meanwhile: impl FnOnce()) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let dropped = (
            core::mem::take(&mut state.incoming),
            core::mem::take(&mut state.connections),
            core::mem::take(&mut state.on_failure),
        );
        let endpoint = state.endpoint.take();
        self.notify(&mut state);
        drop(state);
        drop(dropped);
        let Some(endpoint) = endpoint else { return meanwhile() };
        std::thread::scope(|scope| {
            // If there can be no thread, the endpoint is dropped, which closes it.
            let close = move || endpoint.close(deadline);
            let _ = std::thread::Builder::new().name("ringfold-close".into()).spawn_scoped(scope, close);
            meanwhile();
        });
    }

    /// Whether this rank has left.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// A rank has connected to this one for a window.
    pub(super) fn receive(&self, peer: PeerId, connection: BlockingConnection) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.incoming.push_back((peer, connection));
            if state.incoming.len() > INCOMING_MAX {
                state.incoming.pop_front();
            }
            self.changed.notify_all();
        }
    }

    fn notify(&self, state: &mut MutexGuard<'_, State>) {
        self.events.fetch_add(1, Ordering::SeqCst);
        state.signals.retain(|signals| signals.strong_count() > 0);
        for signals in state.signals.iter().filter_map(Weak::upgrade) {
            signals.wake_all();
        }
        self.changed.notify_all();
    }
}

/// Called by windows.
impl WindowHub {
    /// The group's poller.
    pub(crate) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// Held while a window is opened; how many were opened before.
    pub(crate) fn open(&self) -> MutexGuard<'_, u32> {
        self.opened.lock()
    }

    /// Why the group has failed, or was left.
    pub(crate) fn ended(&self) -> Option<Error> {
        if self.events() == 0 {
            return None;
        }
        let state = self.state.lock();
        match &state.fault {
            Some(cause) => Some(Error::GroupFailed(Box::new(cause.clone()))),
            None => state.is_closed.then_some(Error::Left),
        }
    }

    /// Runs this when the group fails, or now if it has failed. Never if this rank leaves before.
    pub(crate) fn on_failure(&self, callback: OnFailure) {
        let mut state = self.state.lock();
        if state.fault.is_none() && !state.is_closed {
            return state.on_failure.push(callback);
        }
        let fault = state.fault.clone();
        drop(state);
        if let Some(cause) = fault {
            callback(&Error::GroupFailed(Box::new(cause)));
        }
    }

    /// Why a rank will send nothing more, if it has left.
    pub(crate) fn departed(&self, rank: Rank, name: impl FnOnce() -> PeerName) -> Option<Error> {
        if self.events() == 0 || !self.state.lock().left.contains(&rank) {
            return None;
        }
        Some(Error::GroupFailed(Box::new(Cause::PeerLost { who: name(), how: Departure::Left })))
    }

    /// A number that changes when something has happened that may end a wait.
    pub(crate) fn events(&self) -> u32 {
        self.events.load(Ordering::SeqCst)
    }

    /// Has the threads that wait on these signals woken when a rank is gone.
    pub(crate) fn watch(&self, signals: &Arc<SignalCounters>) {
        let mut state = self.state.lock();
        state.signals.retain(|signals| signals.strong_count() > 0);
        state.signals.push(Arc::downgrade(signals));
    }

    /// Waits for a connection that this peer dials; none if it comes too late, or the group has ended.
    pub(crate) fn accept(&self, peer: PeerId, until: Instant) -> Option<BlockingConnection> {
        let mut state = self.state.lock();
        loop {
            if let Some(index) = state.incoming.iter().position(|(from, _)| *from == peer) {
                return state.incoming.remove(index).map(|(_, connection)| connection);
            }
            let is_over = state.fault.is_some() || state.is_closed;
            if is_over || self.changed.wait_until(&mut state, until).timed_out() {
                return None;
            }
        }
    }

    /// Uses the endpoint of the windows, which is made now if there is none.
    pub(crate) fn with_endpoint<R>(
        &self,
        name: &str,
        user: impl FnOnce(&Endpoint, &mut Connections) -> std::io::Result<R>,
    ) -> Result<R, Error> {
        let system = |error: std::io::Error| Error::system("cannot open a window", &error);
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Error::Left);
        }
        let State { endpoint, connections, .. } = &mut *state;
        let endpoint = match endpoint {
            Some(endpoint) => endpoint,
            None => endpoint.insert(Endpoint::new(name).map_err(system)?),
        };
        user(endpoint, connections).map_err(system)
    }

    /// The connection with a rank, whether it works or has ended.
    pub(crate) fn connection(&self, rank: Rank) -> Option<Connection> {
        self.state.lock().connections.get(&rank).cloned()
    }
}

#[cfg(test)]
mod tests;
