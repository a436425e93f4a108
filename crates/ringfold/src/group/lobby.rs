//! Where a group's windows hear from its driver: who has come to connect, who is gone, and that it is over.
//!
//! The driver never waits, and windows wait outside of it: in their own channels, and on bells in memory. So the driver
//! tells the lobby, and the lobby wakes whoever waits there.

use crate::Error;
use parking_lot::{Condvar, Mutex, MutexGuard};
use ringfold_fabric::bells::Bells;
use ringfold_fabric::channel::{Connection, Endpoint};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::reactor::Callback;
use ringfold_proto::cause::{Cause, Departure, PeerName};
use ringfold_proto::id::{PeerId, Rank};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Connections that wait to be taken up, at most.
const VISITORS_MAX: usize = 1024;

/// Those with other ranks.
pub(crate) type Connections = BTreeMap<Rank, Connection>;

/// What a group's driver and its windows share.
pub(crate) struct Lobby {
    /// The group's; connections of windows take its settings.
    poller: Arc<Poller>,
    state: Mutex<State>,
    changed: Condvar,
    /// How much has happened; most calls see that nothing has, and need not look further.
    events: AtomicU32,
    /// Held by whoever opens a window: one at a time. How many were opened.
    opened: Mutex<u32>,
}

#[derive(Default)]
struct State {
    fault: Option<Cause>,
    is_closed: bool,
    left: BTreeSet<Rank>,
    visitors: VecDeque<(PeerId, BlockingConnection)>,
    /// What windows wait on.
    bells: Vec<Weak<Bells>>,
    /// What windows talk through; made when a window first needs it.
    endpoint: Option<Endpoint>,
    connections: Connections,
    /// Who wants to know when the group has failed.
    alarms: Vec<Alarm>,
}

/// What someone wants to be done when the group has failed.
type Alarm = Box<dyn FnOnce(&Error) + Send>;

/// What the driver tells.
impl Lobby {
    pub(super) fn new(poller: Arc<Poller>) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { poller, state, changed, events: AtomicU32::new(0), opened: Mutex::default() }
    }

    /// The group's poller.
    pub(crate) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// The group is over. What the user wants to be done then is returned: the driver's caller holds a lock.
    pub(super) fn fail(&self, cause: &Cause) -> impl Iterator<Item = Callback> + use<> {
        let mut state = self.state.lock();
        state.fault.get_or_insert_with(|| cause.clone());
        let why = format!("the group is over: {cause}");
        for connection in state.connections.values() {
            connection.abort(&why);
        }
        self.tell(&mut state);
        let alarms = core::mem::take(&mut state.alarms);
        let error = Error::GroupFailed(Box::new(cause.clone()));
        alarms.into_iter().map(move |alarm| {
            let error = error.clone();
            Box::new(move || alarm(&error)) as Callback
        })
    }

    /// A rank has left. What it put and signalled before has arrived, or will.
    pub(super) fn leave(&self, rank: Rank) {
        let mut state = self.state.lock();
        state.left.insert(rank);
        self.tell(&mut state);
    }

    /// This rank leaves. What windows have queued has until the deadline to go out.
    pub(super) fn close(&self, deadline: Instant) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.visitors.clear();
        let alarms = core::mem::take(&mut state.alarms);
        let rest = (core::mem::take(&mut state.connections), alarms);
        let endpoint = state.endpoint.take();
        self.tell(&mut state);
        drop(state);
        drop(rest);
        if let Some(endpoint) = endpoint {
            endpoint.close(deadline);
        }
    }

    /// Someone came to connect windows.
    pub(super) fn receive(&self, peer: PeerId, connection: BlockingConnection) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.visitors.push_back((peer, connection));
            if state.visitors.len() > VISITORS_MAX {
                state.visitors.pop_front();
            }
            self.changed.notify_all();
        }
    }

    fn tell(&self, state: &mut MutexGuard<'_, State>) {
        self.events.fetch_add(1, Ordering::SeqCst);
        state.bells.retain(|bells| bells.strong_count() > 0);
        for bells in state.bells.iter().filter_map(Weak::upgrade) {
            bells.rouse();
        }
        self.changed.notify_all();
    }
}

/// What windows ask.
impl Lobby {
    /// Held while a window is opened; how many have been.
    pub(crate) fn open(&self) -> MutexGuard<'_, u32> {
        self.opened.lock()
    }

    /// Why the group is over, or was left.
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

    /// Has this done when the group fails, or now if it has.
    pub(crate) fn on_failure(&self, alarm: Alarm) {
        let mut state = self.state.lock();
        match state.fault.clone() {
            Some(cause) => {
                drop(state);
                alarm(&Error::GroupFailed(Box::new(cause)));
            }
            None if state.is_closed => {
                drop(state);
                drop(alarm);
            }
            None => state.alarms.push(alarm),
        }
    }

    /// Why nothing more will come of a rank, if it has left.
    pub(crate) fn departed(&self, rank: Rank, name: impl FnOnce() -> PeerName) -> Option<Error> {
        if self.events() == 0 || !self.state.lock().left.contains(&rank) {
            return None;
        }
        Some(Error::GroupFailed(Box::new(Cause::PeerLost { who: name(), how: Departure::Left })))
    }

    /// How many ranks are gone and the like: it changes when something has happened that a wait may end for.
    pub(crate) fn events(&self) -> u32 {
        self.events.load(Ordering::SeqCst)
    }

    /// Has these bells' sleepers woken when someone is gone.
    pub(crate) fn watch(&self, bells: &Arc<Bells>) {
        let mut state = self.state.lock();
        state.bells.retain(|bells| bells.strong_count() > 0);
        state.bells.push(Arc::downgrade(bells));
    }

    /// The next connection that someone made; none if there was none in time, or the group is over.
    pub(crate) fn visitor(&self, peer: PeerId, until: Instant) -> Option<BlockingConnection> {
        let mut state = self.state.lock();
        loop {
            if let Some(place) = state.visitors.iter().position(|(from, _)| *from == peer) {
                return state.visitors.remove(place).map(|(_, connection)| connection);
            }
            let is_over = state.fault.is_some() || state.is_closed;
            if is_over || self.changed.wait_until(&mut state, until).timed_out() {
                return None;
            }
        }
    }

    /// Does something with what windows talk through, which is made now if it was not yet.
    pub(crate) fn with_endpoint<R>(
        &self,
        name: &str,
        user: impl FnOnce(&Endpoint, &mut Connections) -> std::io::Result<R>,
    ) -> Result<R, Error> {
        let system = |error: std::io::Error| Error::system("a window can't be opened", &error);
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Error::Left);
        }
        let State { endpoint, connections, .. } = &mut *state;
        if endpoint.is_none() {
            *endpoint = Some(Endpoint::new(name).map_err(system)?);
        }
        match endpoint {
            Some(endpoint) => user(endpoint, connections).map_err(system),
            None => Err(Error::Left),
        }
    }

    /// The connection with a rank, whether it is of use or over.
    pub(crate) fn connection(&self, rank: Rank) -> Option<Connection> {
        self.state.lock().connections.get(&rank).cloned()
    }
}
