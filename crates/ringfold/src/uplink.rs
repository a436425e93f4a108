//! The line to the master.

use core::mem;
use ringfold_fabric::connection::{Connection, Intake, close_all};
use ringfold_fabric::dialer::{Credentials, DialTiming, Dialed, Dialer};
use ringfold_fabric::poller::{Poller, Token};
use ringfold_proto::frame::{ControlDecoder, encode_control_into};
use ringfold_proto::handshake::{Identity, Secret, Target};
use ringfold_proto::id::{ConnId, PeerId, RunId};
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::time::Time;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// The line, up or down.
pub(crate) struct Uplink {
    addresses: Vec<SocketAddr>,
    /// As the user named it.
    name: String,
    secret: Secret,
    me: PeerId,
    run: RunId,
    poller: Arc<Poller>,
    state: State,
    conns: u64,
    /// Connections on which the master fell silent, not watched any more; the machine says when they end.
    stale: Vec<(ConnId, Box<Connection>)>,
    /// Closed connections that still send.
    closing: Vec<Connection>,
    encoded: Vec<u8>,
    news: VecDeque<UplinkNews>,
}

enum State {
    Down,
    Dialing(Box<Dialer>),
    Up { conn: ConnId, connection: Box<Connection>, decoder: ControlDecoder<Numbered<ToPeer>> },
}

/// What happened on the line.
pub(crate) enum UplinkNews {
    /// The master was reached.
    Connected(ConnId, RunId),
    /// It was not: why, and whether another attempt may succeed.
    DialFailed { why: String, retryable: bool },
    /// It spoke.
    Message(ConnId, Box<Numbered<ToPeer>>),
    /// The connection broke.
    Lost(ConnId),
}

impl Uplink {
    /// A line that is down.
    pub(crate) fn new(
        name: &str,
        addresses: Vec<SocketAddr>,
        token: &str,
        me: PeerId,
        poller: &Arc<Poller>,
    ) -> Self {
        Self {
            addresses,
            name: name.to_owned(),
            secret: Secret::token(token),
            me,
            run: RunId(0),
            poller: poller.clone(),
            state: State::Down,
            conns: 0,
            stale: Vec::new(),
            closing: Vec::new(),
            encoded: Vec::new(),
            news: VecDeque::new(),
        }
    }

    /// What happened.
    pub(crate) fn next_news(&mut self) -> Option<UplinkNews> {
        self.news.pop_front()
    }

    /// Whether a token is of one of its connections.
    pub(crate) fn owns(&self, token: Token) -> bool {
        match &self.state {
            State::Down => false,
            State::Dialing(dialer) => dialer.owns(token),
            State::Up { connection, .. } => connection.token() == token,
        }
    }

    /// Whether there is no connection, and none is being made.
    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, State::Down)
    }

    /// When to call [`Uplink::handle_ready`] even if nothing is ready.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Dialing(dialer) => dialer.poll_timeout(),
            State::Down | State::Up { .. } => None,
        }
    }

    /// Begins to dial; what comes of it is news.
    pub(crate) fn dial(&mut self, now: Time) {
        if let State::Up { conn, connection, .. } = mem::replace(&mut self.state, State::Down) {
            connection.unwatch();
            self.stale.push((conn, connection));
        }
        let credentials = Credentials {
            identity: Identity::new(self.me, self.run),
            target: Target::master(),
            secret: self.secret.clone(),
        };
        let addresses = self.addresses.iter().copied();
        let dialer = Dialer::new(now, addresses, credentials, DialTiming::default(), &self.poller);
        self.state = State::Dialing(Box::new(dialer));
    }

    /// Sends a message, if the connection is still the one that it is meant for.
    pub(crate) fn send(&mut self, to: ConnId, message: &Numbered<ToMaster>) {
        let State::Up { conn, connection, .. } = &mut self.state else { return };
        if *conn != to {
            return;
        }
        self.encoded.clear();
        encode_control_into(message, &mut self.encoded).expect("the machine keeps to the bounds");
        connection.send(&self.encoded);
    }

    /// Sends what the connection takes.
    pub(crate) fn flush(&mut self) {
        self.closing.retain_mut(|connection| !connection.poll_finish());
        if let State::Up { conn, connection, .. } = &mut self.state
            && connection.flush(&mut Vec::new()).is_err()
        {
            self.news.push_back(UplinkNews::Lost(*conn));
            self.state = State::Down;
        }
    }

    /// Closes a connection once the rest is sent. Does not wait for that.
    pub(crate) fn close(&mut self, which: ConnId) {
        self.stale.retain(|(conn, _)| *conn != which);
        if matches!(&self.state, State::Up { conn, .. } if *conn == which)
            && let State::Up { mut connection, .. } = mem::replace(&mut self.state, State::Down)
            && !connection.poll_finish()
        {
            // Input is discarded, so the poller must not report it. If that fails, the connection is broken.
            let _ = connection.set_awaits_input(false);
            self.closing.push(*connection);
        }
    }

    /// Closes what is to be closed, by the deadline at the latest.
    pub(crate) fn finish(&mut self, deadline: Instant) {
        close_all(self.closing.drain(..), deadline, Connection::poll_finish);
    }

    /// Moves on whatever can be moved.
    pub(crate) fn handle_ready(&mut self, now: Time) {
        match mem::replace(&mut self.state, State::Down) {
            State::Down => {}
            State::Dialing(dialer) => self.advance_dialer(now, dialer),
            State::Up { conn, connection, decoder } => self.listen(conn, connection, decoder),
        }
    }

    fn advance_dialer(&mut self, now: Time, mut dialer: Box<Dialer>) {
        match dialer.advance(now) {
            Ok(Some(Dialed { established, mut connection, .. })) => {
                self.run = established.run;
                self.conns += 1;
                let conn = ConnId(self.conns);
                connection.set_intake(Intake::Messages);
                let connection = Box::new(connection);
                self.state = State::Up { conn, connection, decoder: ControlDecoder::default() };
                self.news.push_back(UplinkNews::Connected(conn, established.run));
            }
            Ok(None) => match dialer.failures().iter().find(|(_, rejection)| !rejection.retryable) {
                // A master that rejects us does so at all its addresses.
                Some((_, rejection)) => self.fail_dial(rejection, false),
                None => self.state = State::Dialing(dialer),
            },
            Err(error) => self.fail_dial(&error, error.is_retryable()),
        }
    }

    fn fail_dial(&mut self, why: &dyn core::fmt::Display, retryable: bool) {
        let why = format!("{}: {why}", self.name);
        self.news.push_back(UplinkNews::DialFailed { why, retryable });
    }

    fn listen(
        &mut self,
        conn: ConnId,
        mut connection: Box<Connection>,
        mut decoder: ControlDecoder<Numbered<ToPeer>>,
    ) {
        let mut is_well = connection.flush(&mut Vec::new()).is_ok() & connection.fill().is_ok();
        loop {
            match connection.take(|input| decoder.next_message(input)) {
                Ok(Some(message)) => self.news.push_back(UplinkNews::Message(conn, Box::new(message))),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "invalid message from the master");
                    is_well = false;
                    break;
                }
            }
        }
        if is_well {
            self.state = State::Up { conn, connection, decoder };
        } else {
            self.news.push_back(UplinkNews::Lost(conn));
        }
    }
}
