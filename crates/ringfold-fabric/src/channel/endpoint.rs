//! Whoever takes part: its memory, its connections, and who moves them.
//!
//! To move the sockets is a role that one thread has at a time. Whoever waits takes it, if it is free; if
//! nobody has waited for a moment, a thread of the endpoint does, and lets go of it when someone waits.

use super::line::{Alarm, Line};
use super::segment::{Segment, Segments, Sink};
use super::{ChannelError, Connection};
use crate::connection::{self, BlockingConnection, Intake};
use crate::limits;
use crate::memory::Memory;
use crate::poller::{Poller, Readiness, Token};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One who has registered memory and connections with others.
///
/// When it is dropped its connections end. What is queued still goes out, for a second at most.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// An endpoint with this name, under which others know who aborted.
    pub fn new(name: &str) -> io::Result<Self> {
        let state = State {
            lines: HashMap::new(),
            by_token: HashMap::new(),
            next_line: 0,
            waiters: 0,
            role: Role::Free,
            last_wait: Instant::now(),
            closing: None,
            ready: Readiness::default(),
            alarms: Vec::new(),
        };
        let shared = Arc::new(Shared {
            name: name.into(),
            poller: Arc::new(Poller::new()?),
            segments: Arc::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            thread: Condvar::new(),
        });
        let of_thread = shared.clone();
        let thread =
            std::thread::Builder::new().name("ringfold-channel".into()).spawn(move || of_thread.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Lets others put something into this memory, if they are given the handle.
    pub fn register(&self, memory: Memory) -> io::Result<Segment> {
        self.shared.segments.register(memory)
    }

    /// As [`Endpoint::register`], for so many bytes that are written through someone.
    pub fn register_sink(&self, bytes: usize, sink: Arc<dyn Sink>) -> io::Result<Segment> {
        self.shared.segments.register_sink(bytes, sink)
    }

    /// A connection with someone, made of streams that connect the two and on which nothing was said. How many
    /// there are both must know; which is which does not matter.
    pub fn connect(&self, peer: &str, streams: Vec<impl Into<BlockingConnection>>) -> io::Result<Connection> {
        if streams.is_empty() || streams.len() > usize::from(limits::STREAMS_MAX) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such number of streams"));
        }
        let register = |stream| -> io::Result<_> {
            let stream = connection::Connection::new(stream, &self.shared.poller, Intake::Frames)?;
            // So that an abort does not wait behind megabytes.
            stream.limit_unsent(limits::UNSENT_BYTES_MAX);
            Ok(stream)
        };
        let sockets = streams.into_iter().map(register).collect::<io::Result<Vec<_>>>()?;
        let line = Line::new(self.shared.name.clone(), peer.into(), sockets);
        let has_failed = line.has_failed().clone();
        let mut state = self.shared.lock();
        let id = LineId(state.next_line);
        state.next_line += 1;
        state.by_token.extend(line.tokens().map(|token| (token, id)));
        state.lines.insert(id, line);
        // Until there was a connection the thread slept.
        self.shared.thread.notify_one();
        Ok(Connection::new(self.shared.clone(), id, peer.into(), has_failed))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closing = Some(Instant::now() + limits::FAREWELL_MAX);
        let (by, why) = (self.shared.name.to_string(), "its endpoint was closed".to_owned());
        for line in state.lines.values_mut() {
            line.end(Some(ChannelError::Aborted { by: by.clone(), why: why.clone() }));
        }
        drop(state);
        self.shared.wake();
        self.shared.thread.notify_one();
        if let Some(thread) = self.thread.take()
            // What is done when a connection fails may let go of the endpoint, on its own thread.
            && thread.thread().id() != std::thread::current().id()
        {
            // If it panicked, that has been told.
            let _ = thread.join();
        }
    }
}

/// A connection's number in its endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LineId(u64);

/// What an endpoint and its connections share.
pub struct Shared {
    name: Arc<str>,
    poller: Arc<Poller>,
    segments: Arc<Segments>,
    state: Mutex<State>,
    /// Something happened, or the role is free.
    changed: Condvar,
    /// The endpoint's thread may have something to do.
    thread: Condvar,
}

struct State {
    lines: HashMap<LineId, Line>,
    by_token: HashMap<Token, LineId>,
    next_line: u64,
    waiters: usize,
    role: Role,
    /// When someone waited last.
    last_wait: Instant,
    /// The endpoint is gone, and the thread ends at this time at the latest.
    closing: Option<Instant>,
    ready: Readiness,
    /// What is to be done without the lock, because of connections that have failed.
    alarms: Vec<(Alarm, ChannelError)>,
}

/// Who moves the sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Free,
    Waiter,
    Thread,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Shared {
    /// Does something with a connection that does not wait.
    pub fn act<T>(&self, id: LineId, action: impl FnOnce(&mut Line) -> T) -> T {
        let mut state = self.lock();
        let line = state.lines.get_mut(&id).expect("a connection is kept as long as someone has it");
        let answer = action(line);
        let (is_news, is_hungry) = (line.take_news(), line.is_hungry());
        // Who merely moves the sockets need not know what was moved here.
        let is_awaited = is_news && state.waiters > 0;
        drop(state);
        if is_awaited || is_hungry {
            self.wake();
        }
        answer
    }

    /// Waits until `ready` has an answer.
    pub fn wait<T>(
        &self,
        id: LineId,
        deadline: Instant,
        awaited: &'static str,
        mut ready: impl FnMut(&mut Line) -> Option<Result<T, ChannelError>>,
    ) -> Result<T, ChannelError> {
        let mut state = self.lock();
        state.waiters += 1;
        let result = loop {
            let line = state.lines.get_mut(&id).expect("a connection is kept as long as someone has it");
            if let Some(result) = ready(line) {
                break result;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(ChannelError::Deadline { peer: line.peer().to_string(), awaited });
            }
            if state.role == Role::Free {
                state = self.turn(state, Role::Waiter, left);
                continue;
            }
            if state.role == Role::Thread {
                self.poller.kick();
            }
            self.changed.wait_for(&mut state, left);
        };
        state.waiters -= 1;
        state.last_wait = Instant::now();
        if state.waiters > 0 {
            self.changed.notify_all();
        }
        result
    }

    /// Looks whether `ready` has an answer, and moves the sockets if nobody else does.
    pub fn poll<T>(&self, id: LineId, mut ready: impl FnMut(&mut Line) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        state.last_wait = Instant::now();
        for is_last in [false, true] {
            let answer = state.lines.get_mut(&id).and_then(&mut ready);
            if answer.is_some() || is_last || state.role != Role::Free {
                return answer;
            }
            state = self.turn(state, Role::Waiter, Duration::ZERO);
        }
        None
    }

    /// Nobody has a connection any more.
    pub fn forget(&self, id: LineId) {
        let mut state = self.lock();
        if let Some(line) = state.lines.get_mut(&id) {
            line.end(None);
            line.abandon();
        }
        drop(state);
        self.wake();
    }

    fn wake(&self) {
        self.poller.kick();
        self.changed.notify_all();
    }

    /// Moves the sockets once, after waiting for them without the lock.
    fn turn<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        role: Role,
        patience: Duration,
    ) -> MutexGuard<'s, State> {
        state.role = role;
        let patience = state.patience(patience);
        let mut ready = core::mem::take(&mut state.ready);
        // Whoever wants the lock has it now: with data always ready, we would otherwise have it again at once, for ever.
        MutexGuard::unlock_fair(state);
        if self.poller.wait(&mut ready, patience).is_err() {
            // It can't be; but if it could, it would be so again at once.
            std::thread::sleep(limits::PROGRESS_GRACE);
        }
        let mut state = self.lock();
        state.role = Role::Free;
        state.move_on(&ready, &self.segments);
        state.ready = ready;
        let alarms = core::mem::take(&mut state.alarms);
        if !alarms.is_empty() {
            drop(state);
            for (alarm, failure) in alarms {
                alarm(&failure);
            }
            state = self.lock();
        }
        if state.waiters > usize::from(role == Role::Waiter) {
            self.changed.notify_all();
        }
        state
    }

    /// What the endpoint's thread does.
    fn run(&self) {
        let mut state = self.lock();
        loop {
            if let Some(end) = state.closing
                && (Instant::now() >= end || state.lines.values().all(Line::is_closed))
            {
                state.lines.values_mut().for_each(Line::close);
                return;
            }
            let is_needed = !state.lines.is_empty() && state.waiters == 0 && state.role == Role::Free;
            if is_needed && (state.closing.is_some() || state.last_wait.elapsed() >= limits::PROGRESS_GRACE) {
                state = self.turn(state, Role::Thread, Duration::from_secs(1));
                continue;
            }
            let nap = if state.lines.is_empty() { Duration::from_secs(60) } else { limits::PROGRESS_GRACE };
            let nap = if state.waiters > 0 { nap * 5 } else { nap };
            self.thread.wait_for(&mut state, nap);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// How long the sockets may be waited for.
    fn patience(&self, patience: Duration) -> Duration {
        if self.lines.values().any(Line::is_hungry) {
            return Duration::ZERO;
        }
        let ends = self.lines.values().filter(|line| !line.is_closed()).filter_map(Line::ending);
        let end = ends.chain(self.closing).min();
        end.map_or(patience, |end| patience.min(end.saturating_duration_since(Instant::now())))
    }

    fn move_on(&mut self, ready: &Readiness, segments: &Segments) {
        let hungry: Vec<_> =
            self.lines.iter().filter(|(_, line)| line.is_hungry()).map(|(id, _)| *id).collect();
        for token in ready.tokens() {
            if let Some(id) = self.by_token.get(&token)
                && let Some(line) = self.lines.get_mut(id)
            {
                line.turn(Some(token), segments);
                self.alarms.extend(line.take_alarm());
            }
        }
        for id in hungry {
            if let Some(line) = self.lines.get_mut(&id) {
                line.turn(None, segments);
                self.alarms.extend(line.take_alarm());
            }
        }
        self.sweep();
    }

    /// Closes what had time enough to end, and forgets what is closed and nobody has.
    fn sweep(&mut self) {
        if self.lines.values().all(|line| line.ending().is_none()) {
            return;
        }
        let now = Instant::now();
        for line in self.lines.values_mut() {
            if line.ending().is_some_and(|end| end <= now) {
                line.close();
            }
        }
        self.lines.retain(|_, line| !(line.is_closed() && line.is_abandoned()));
        let lines = &self.lines;
        self.by_token.retain(|_, id| lines.contains_key(id));
    }
}
