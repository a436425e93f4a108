//! A client of the HTTP server: what it is in, and how long it may be in it.

use super::limits;
use super::request::{Request, RequestError};
use super::response::Response;
use super::routes::StatusUse;
use crate::master::inquiry::PendingReply;
use crate::master::snapshot::Seen;
use core::time::Duration;
use ringfold_fabric::connection::{Connection, Intake};
use ringfold_fabric::listener::Occupant;
use ringfold_fabric::poller::Poller;
use ringfold_proto::time::Time;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

/// A client that reads so many bytes is not slow.
const PROGRESS_BYTES: usize = 64 << 10;

/// A connection.
pub(super) struct Client {
    pub connection: Connection,
    pub from: SocketAddr,
    pub stage: Stage,
    phase: Phase,
    since: Time,
    deadline: Option<Time>,
    /// Bytes that were queued when the deadline was set.
    queued: usize,
    has_asked: bool,
}

/// What a connection is used for.
pub(super) enum Stage {
    /// For requests, one after the other.
    Reading,
    /// For a request whose answer needs something from the master.
    Waiting(Awaited, ResponseForm),
    /// For messages. The reader has seen so much.
    Streaming(Option<Seen>),
    /// For the last bytes.
    Closing,
}

/// What an answer needs.
pub(super) enum Awaited {
    /// A status that arrives from this time on.
    Status(StatusUse, Time),
    Command(PendingReply),
}

/// How a response is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseForm {
    pub is_head: bool,
    pub keeps_alive: bool,
}

/// What a deadline is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nothing was received yet.
    New,
    Idle,
    Request,
    Waiting,
    Writing,
    Streaming,
    Closing,
}

/// What a deadline that has passed means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lateness {
    /// The request is not complete.
    SlowRequest,
    /// The master has not answered.
    NoAnswer,
    /// It is closed without a word.
    Useless,
}

impl Client {
    pub(super) fn new(
        now: Time,
        stream: TcpStream,
        from: SocketAddr,
        poller: &Arc<Poller>,
    ) -> io::Result<Self> {
        Ok(Self {
            connection: Connection::new(stream, poller, Intake::Messages)?,
            from,
            stage: Stage::Reading,
            phase: Phase::New,
            since: now,
            deadline: Some(now + limits::REQUEST_MAX),
            queued: 0,
            has_asked: false,
        })
    }

    /// The next request, if it is complete. Reads once if there is none. The end of the input is an error.
    pub(super) fn next_request(&mut self) -> io::Result<Option<Result<Request, RequestError>>> {
        let take = |connection: &mut Connection| connection.take(Request::take).transpose();
        if let Some(request) = take(&mut self.connection) {
            return Ok(Some(request));
        }
        let filled = self.connection.fill();
        match take(&mut self.connection) {
            None => filled.map(|_| None),
            request => Ok(request),
        }
    }

    /// Sends a response, and continues as the client has asked for.
    pub(super) fn respond(&mut self, response: Response, form: ResponseForm) {
        response.send(&mut self.connection, form.is_head, form.keeps_alive);
        self.has_asked = true;
        self.stage = if form.keeps_alive { Stage::Reading } else { Stage::Closing };
    }

    /// Reads and ignores what the reader of a stream sends.
    pub(super) fn discard_input(&mut self) -> io::Result<()> {
        self.connection.take(|input| *input = &[]);
        self.connection.fill()?;
        self.connection.take(|input| *input = &[]);
        Ok(())
    }

    /// Sends what can be sent, and sets the deadline of what follows. Returns whether the connection is over.
    pub(super) fn settle(&mut self, now: Time) -> io::Result<bool> {
        if matches!(self.stage, Stage::Closing) {
            self.update_deadline(now);
            return Ok(self.connection.poll_acknowledged());
        }
        self.connection.flush(&mut Vec::new())?;
        // What cannot be answered now stays in the socket.
        let is_reading = matches!(self.stage, Stage::Reading | Stage::Streaming(_));
        self.connection.set_awaits_input(is_reading && (self.queued_bytes() == 0 || self.is_stream()))?;
        self.update_deadline(now);
        Ok(false)
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.connection.queued_bytes()
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self.stage, Stage::Streaming(_))
    }

    fn update_deadline(&mut self, now: Time) {
        let queued = self.queued_bytes();
        let phase = match self.stage {
            Stage::Closing => Phase::Closing,
            _ if queued > 0 => Phase::Writing,
            Stage::Waiting(..) => Phase::Waiting,
            Stage::Streaming(_) => Phase::Streaming,
            Stage::Reading if self.connection.has_input() => Phase::Request,
            Stage::Reading if self.has_asked => Phase::Idle,
            Stage::Reading => Phase::New,
        };
        let has_progress = phase == Phase::Writing && queued + PROGRESS_BYTES <= self.queued;
        if phase != self.phase || has_progress {
            (self.phase, self.since, self.queued) = (phase, now, queued);
            self.deadline = phase.time_max().map(|time| now + time);
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// What it means that the deadline has passed.
    pub(super) fn lateness(&self) -> Lateness {
        match self.phase {
            Phase::Request => Lateness::SlowRequest,
            Phase::Waiting => Lateness::NoAnswer,
            _ => Lateness::Useless,
        }
    }

    /// For the choice of connections that give way.
    pub(super) fn occupant(&self) -> Occupant {
        Occupant {
            token: self.connection.token(),
            from: self.from,
            since: self.since,
            has_begun: !matches!(self.phase, Phase::New | Phase::Idle),
        }
    }
}

impl Phase {
    fn time_max(self) -> Option<Duration> {
        match self {
            Self::New | Self::Request => Some(limits::REQUEST_MAX),
            Self::Idle => Some(limits::IDLE_MAX),
            // The feed says earlier that the master does not answer.
            Self::Waiting => Some(2 * limits::ANSWER_MAX),
            Self::Writing => Some(limits::WRITE_MAX),
            Self::Streaming => None,
            Self::Closing => Some(limits::CLOSE_MAX),
        }
    }
}
