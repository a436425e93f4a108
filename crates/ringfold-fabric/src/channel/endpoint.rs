//! An endpoint: registered memory, connections, and the reactor that drives them.

use super::connection_state::ConnectionState;
use super::segment::{Segment, Segments, Sink};
use super::{ChannelError, Connection};
use crate::connection::{self, BlockingConnection, Intake, close_all};
use crate::limits;
use crate::memory::RawMemory;
use crate::poller::{Poller, Readiness, Token};
use crate::reactor::{Drive, Outcomes, Reactor, Stopped};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Has registered memory, and connections with other endpoints.
///
/// When it is dropped its connections end. What is queued is still sent, for a second at most.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
}

impl Endpoint {
    /// An endpoint with this name, for the errors of others.
    pub fn new(name: &str) -> io::Result<Self> {
        let (name, poller) = (Arc::<str>::from(name), Arc::new(Poller::new()?));
        let connections = Connections { name: name.clone(), ..Connections::default() };
        let segments = connections.segments.clone();
        let reactor = Reactor::start(connections, poller.clone(), "ringfold-channel")?;
        Ok(Self { shared: Arc::new(Shared { name, poller, segments, reactor }) })
    }

    /// Lets other endpoints that have the handle write to this memory.
    pub fn register(&self, memory: impl Into<RawMemory>) -> io::Result<Segment> {
        self.shared.segments.register(memory.into())
    }

    /// As [`Endpoint::register`], for so many bytes that are written through a sink.
    pub fn register_sink(&self, bytes: usize, sink: Arc<dyn Sink>) -> io::Result<Segment> {
        self.shared.segments.register_sink(bytes, sink)
    }

    /// Connects to an endpoint, over unused streams between the two. Both ends need the same number of streams, in any
    /// order.
    pub fn connect(&self, peer: &str, streams: Vec<impl Into<BlockingConnection>>) -> io::Result<Connection> {
        if streams.is_empty() || streams.len() > usize::from(limits::STREAMS_MAX) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("invalid number of streams {}: must be 1..={}", streams.len(), limits::STREAMS_MAX),
            ));
        }
        let register = |stream| -> io::Result<_> {
            let stream = connection::Connection::new(stream, &self.shared.poller, Intake::Frames)?;
            // An abort must not wait behind megabytes.
            stream.limit_unsent(limits::UNSENT_BYTES_MAX);
            Ok(stream)
        };
        let sockets = streams.into_iter().map(register).collect::<io::Result<Vec<_>>>()?;
        let state = ConnectionState::new(self.shared.name.clone(), peer.into(), sockets);
        let has_failed = state.has_failed.clone();
        let id = self.shared.reactor.with(|connections| connections.add(state)).map_err(io::Error::other)?;
        Ok(Connection::new(self.shared.clone(), id, peer.into(), has_failed))
    }

    /// Ends its connections. What is queued is still sent, until the deadline at the latest.
    pub fn close(self, deadline: Instant) {
        self.shared.reactor.close_by(deadline);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.reactor.close();
    }
}

/// A connection's number in its endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(u64);

/// What an endpoint and its connections share.
pub struct Shared {
    name: Arc<str>,
    poller: Arc<Poller>,
    segments: Arc<Segments>,
    reactor: Reactor<Connections>,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Shared {
    /// Runs an action on a connection. It must not wait.
    pub fn act<T>(
        &self,
        id: ConnectionId,
        action: impl FnOnce(&mut ConnectionState) -> T,
    ) -> Result<T, ChannelError> {
        let acted = self.reactor.with_waiter(|connections| {
            let state = connections.get(id);
            let answer = action(state);
            let (has_news, needs_turn) = (state.take_news(), state.needs_turn);
            connections.has_news |= has_news;
            (answer, needs_turn)
        });
        let (answer, needs_turn) = acted.map_err(|why| self.over(&why))?;
        if needs_turn {
            self.poller.kick();
        }
        Ok(answer)
    }

    /// Waits until `ready` returns a result.
    pub fn wait<T>(
        &self,
        id: ConnectionId,
        deadline: Instant,
        awaited: &'static str,
        mut ready: impl FnMut(&mut ConnectionState) -> Option<Result<T, ChannelError>>,
    ) -> Result<T, ChannelError> {
        match self.reactor.wait_for(deadline, |connections| ready(connections.get(id))) {
            Ok(Some(result)) => result,
            Ok(None) => {
                let peer = self.act(id, |state| state.peer.to_string())?;
                Err(ChannelError::Deadline { peer, awaited })
            }
            Err(why) => Err(self.over(&why)),
        }
    }

    /// Asks `ready` for a result, and drives the sockets if no other thread does.
    pub fn poll<T>(
        &self,
        id: ConnectionId,
        mut ready: impl FnMut(&mut ConnectionState) -> Option<Result<T, ChannelError>>,
    ) -> Result<Option<T>, ChannelError> {
        let polled = self.reactor.poll(|connections| ready(connections.get(id)));
        polled.map_err(|why| self.over(&why))?.transpose()
    }

    /// The last handle of a connection was dropped.
    pub fn forget(&self, id: ConnectionId) {
        // After the end there is nothing to forget.
        let _ = self.act(id, |state| {
            state.end(None);
            state.is_released = true;
        });
    }

    /// The error of connections once the endpoint is closed.
    fn over(&self, why: &Stopped) -> ChannelError {
        let why = if *why == Stopped::Closed { CLOSED.to_owned() } else { why.to_string() };
        ChannelError::Aborted { by: self.name.to_string(), why }
    }
}

const CLOSED: &str = "its endpoint was closed";

/// The connections of an endpoint.
#[derive(Default)]
pub struct Connections {
    name: Arc<str>,
    segments: Arc<Segments>,
    connections: HashMap<ConnectionId, ConnectionState>,
    by_token: HashMap<Token, ConnectionId>,
    next_id: u64,
    /// Whether something happened that may end a wait.
    has_news: bool,
    /// Connections that have failed and have a callback.
    failed: Vec<ConnectionId>,
    /// Connections to be dropped without the lock: their callbacks are user code.
    swept: Vec<ConnectionState>,
}

impl Connections {
    fn add(&mut self, state: ConnectionState) -> ConnectionId {
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        self.by_token.extend(state.tokens().map(|token| (token, id)));
        self.connections.insert(id, state);
        id
    }

    fn get(&mut self, id: ConnectionId) -> &mut ConnectionState {
        self.connections.get_mut(&id).expect("a connection is kept as long as someone has it")
    }

    fn turn_connection(&mut self, id: ConnectionId, token: Option<Token>) {
        let Some(state) = self.connections.get_mut(&id) else { return };
        state.turn(token, &self.segments);
        state.take_news();
        // A put may end a wait on memory.
        self.has_news = true;
        if state.failure().is_some() {
            self.failed.push(id);
        }
    }

    /// Closes connections whose time to end is over, and drops closed ones without handles.
    fn sweep(&mut self) {
        if self.connections.values().all(|state| state.ending.is_none()) {
            return;
        }
        let now = Instant::now();
        for state in self.connections.values_mut() {
            if state.ending.is_some_and(|end| end <= now) {
                state.close();
            }
        }
        let is_over = |state: &ConnectionState| state.is_closed() && state.is_released;
        self.swept.extend(self.connections.extract_if(|_, state| is_over(state)).map(|(_, state)| state));
        let connections = &self.connections;
        self.by_token.retain(|_, id| connections.contains_key(id));
    }
}

impl Drive for Connections {
    type Ended = ();
    type Error = Stopped;

    const LINGER: Duration = limits::PROGRESS_GRACE;

    fn turn(&mut self, ready: &Readiness) {
        let due: Vec<_> =
            self.connections.iter().filter(|(_, state)| state.needs_turn).map(|(id, _)| *id).collect();
        for token in ready.tokens() {
            if let Some(id) = self.by_token.get(&token) {
                self.turn_connection(*id, Some(token));
            }
        }
        for id in due {
            self.turn_connection(id, None);
        }
        self.sweep();
    }

    fn next_timeout(&self) -> Option<Duration> {
        if self.connections.values().any(|state| state.needs_turn) {
            return Some(Duration::ZERO);
        }
        let ends =
            self.connections.values().filter(|state| !state.is_closed()).filter_map(|state| state.ending);
        ends.min().map(|end| end.saturating_duration_since(Instant::now()))
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn report(&mut self, outcomes: &mut Outcomes<()>) {
        if core::mem::take(&mut self.has_news) {
            outcomes.notify();
        }
        for id in self.failed.drain(..) {
            if let Some((callback, failure)) =
                self.connections.get_mut(&id).and_then(ConnectionState::take_callback)
            {
                outcomes.call_back(Box::new(move || callback(&failure)));
            }
        }
        if !self.swept.is_empty() {
            let swept = core::mem::take(&mut self.swept);
            outcomes.call_back(Box::new(move || drop(swept)));
        }
    }

    fn leave(&mut self) {
        for (id, state) in &mut self.connections {
            state.end(Some(ChannelError::Aborted { by: self.name.to_string(), why: CLOSED.into() }));
            self.failed.push(*id);
        }
    }

    fn finish(self, deadline: Instant) {
        close_all(self.connections.into_values(), deadline, |state| {
            state.turn(None, &self.segments);
            state.is_closed()
        });
    }

    fn failed(_: Stopped) {}
}
