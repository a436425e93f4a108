//! One participant: its registered memory, its connections, and the reactor that moves them.

use super::line::Line;
use super::segment::{Segment, Segments, Sink};
use super::{ChannelError, Connection};
use crate::connection::{self, BlockingConnection, Intake, close_all};
use crate::limits;
use crate::memory::Memory;
use crate::poller::{Poller, Readiness, Token};
use crate::reactor::{Drive, Outcomes, Reactor, Stopped};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One who has registered memory and connections with others.
///
/// When it is dropped its connections end. What is queued still goes out, for a second at most.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
}

impl Endpoint {
    /// An endpoint with this name, under which others know who aborted.
    pub fn new(name: &str) -> io::Result<Self> {
        let (name, poller) = (Arc::<str>::from(name), Arc::new(Poller::new()?));
        let lines = Lines { name: name.clone(), ..Lines::default() };
        let segments = lines.segments.clone();
        let reactor = Reactor::start(lines, poller.clone(), "ringfold-channel")?;
        Ok(Self { shared: Arc::new(Shared { name, poller, segments, reactor }) })
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
        let id = self.shared.reactor.with(|lines| lines.add(line)).map_err(io::Error::other)?;
        Ok(Connection::new(self.shared.clone(), id, peer.into(), has_failed))
    }

    /// Ends its connections. What is queued still goes out, until the deadline at the latest.
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
pub struct LineId(u64);

/// What an endpoint and its connections share.
pub struct Shared {
    name: Arc<str>,
    poller: Arc<Poller>,
    segments: Arc<Segments>,
    reactor: Reactor<Lines>,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Shared {
    /// Does something with a connection that does not wait.
    pub fn act<T>(&self, id: LineId, action: impl FnOnce(&mut Line) -> T) -> Result<T, ChannelError> {
        let acted = self.reactor.with_waiter(|lines| {
            let line = lines.get(id);
            let answer = action(line);
            let (has_news, is_hungry) = (line.take_news(), line.is_hungry());
            lines.has_news |= has_news;
            (answer, is_hungry)
        });
        let (answer, is_hungry) = acted.map_err(|why| self.over(&why))?;
        if is_hungry {
            self.poller.kick();
        }
        Ok(answer)
    }

    /// Waits until `ready` has an answer.
    pub fn wait<T>(
        &self,
        id: LineId,
        deadline: Instant,
        awaited: &'static str,
        mut ready: impl FnMut(&mut Line) -> Option<Result<T, ChannelError>>,
    ) -> Result<T, ChannelError> {
        match self.reactor.wait_for(deadline, |lines| ready(lines.get(id))) {
            Ok(Some(result)) => result,
            Ok(None) => {
                let peer = self.act(id, |line| line.peer().to_string())?;
                Err(ChannelError::Deadline { peer, awaited })
            }
            Err(why) => Err(self.over(&why)),
        }
    }

    /// Looks whether `ready` has an answer, and moves the sockets if no other thread does.
    pub fn poll<T>(
        &self,
        id: LineId,
        mut ready: impl FnMut(&mut Line) -> Option<Result<T, ChannelError>>,
    ) -> Result<Option<T>, ChannelError> {
        let polled = self.reactor.poll(|lines| ready(lines.get(id)));
        polled.map_err(|why| self.over(&why))?.transpose()
    }

    /// Nobody has a connection any more.
    pub fn forget(&self, id: LineId) {
        // After the end there is nothing to forget.
        let _ = self.act(id, |line| {
            line.end(None);
            line.abandon();
        });
    }

    /// How connections fail once there is no endpoint.
    fn over(&self, why: &Stopped) -> ChannelError {
        let why = if *why == Stopped::Closed { CLOSED.to_owned() } else { why.to_string() };
        ChannelError::Aborted { by: self.name.to_string(), why }
    }
}

const CLOSED: &str = "its endpoint was closed";

/// The connections of an endpoint.
#[derive(Default)]
pub struct Lines {
    name: Arc<str>,
    segments: Arc<Segments>,
    lines: HashMap<LineId, Line>,
    by_token: HashMap<Token, LineId>,
    next_line: u64,
    /// Whether something happened that someone may wait for.
    has_news: bool,
    /// Connections that have failed and have an alarm.
    alarmed: Vec<LineId>,
    /// Connections to be dropped without the lock: their alarms are user code.
    swept: Vec<Line>,
}

impl Lines {
    fn add(&mut self, line: Line) -> LineId {
        let id = LineId(self.next_line);
        self.next_line += 1;
        self.by_token.extend(line.tokens().map(|token| (token, id)));
        self.lines.insert(id, line);
        id
    }

    fn get(&mut self, id: LineId) -> &mut Line {
        self.lines.get_mut(&id).expect("a connection is kept as long as someone has it")
    }

    fn turn_line(&mut self, id: LineId, token: Option<Token>) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        line.turn(token, &self.segments);
        line.take_news();
        // Bytes that were put are news, too, for those who look at the memory.
        self.has_news = true;
        if line.failure().is_some() {
            self.alarmed.push(id);
        }
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
        let is_over = |line: &Line| line.is_closed() && line.is_abandoned();
        self.swept.extend(self.lines.extract_if(|_, line| is_over(line)).map(|(_, line)| line));
        let lines = &self.lines;
        self.by_token.retain(|_, id| lines.contains_key(id));
    }
}

impl Drive for Lines {
    type Ended = ();
    type Error = Stopped;

    const LINGER: Duration = limits::PROGRESS_GRACE;

    fn turn(&mut self, ready: &Readiness) {
        let hungry: Vec<_> =
            self.lines.iter().filter(|(_, line)| line.is_hungry()).map(|(id, _)| *id).collect();
        for token in ready.tokens() {
            if let Some(id) = self.by_token.get(&token) {
                self.turn_line(*id, Some(token));
            }
        }
        for id in hungry {
            self.turn_line(id, None);
        }
        self.sweep();
    }

    fn patience(&self) -> Option<Duration> {
        if self.lines.values().any(Line::is_hungry) {
            return Some(Duration::ZERO);
        }
        let ends = self.lines.values().filter(|line| !line.is_closed()).filter_map(Line::ending);
        ends.min().map(|end| end.saturating_duration_since(Instant::now()))
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn report(&mut self, outcomes: &mut Outcomes<()>) {
        if core::mem::take(&mut self.has_news) {
            outcomes.notify();
        }
        for id in self.alarmed.drain(..) {
            if let Some((alarm, failure)) = self.lines.get_mut(&id).and_then(Line::take_alarm) {
                outcomes.call_back(Box::new(move || alarm(&failure)));
            }
        }
        if !self.swept.is_empty() {
            let swept = core::mem::take(&mut self.swept);
            outcomes.call_back(Box::new(move || drop(swept)));
        }
    }

    fn leave(&mut self) {
        for (id, line) in &mut self.lines {
            line.end(Some(ChannelError::Aborted { by: self.name.to_string(), why: CLOSED.into() }));
            self.alarmed.push(*id);
        }
    }

    fn finish(self, deadline: Instant) {
        close_all(self.lines.into_values(), deadline, |line| {
            line.turn(None, &self.segments);
            line.is_closed()
        });
    }

    fn failed(_: Stopped) {}
}
