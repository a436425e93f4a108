//! The line to the master.

use core::mem;
use ringfold_fabric::knock::{Knock, Rejected, nobody};
use ringfold_fabric::poller::{Poller, Token};
use ringfold_fabric::random;
use ringfold_fabric::socket::{Intake, Socket, close_all};
use ringfold_proto::frame::{ControlDecoder, encode_control_into};
use ringfold_proto::handshake::{Dialler, Identity, Secret, Target};
use ringfold_proto::id::{ConnId, PeerId, RunId};
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::time::Time;
use std::collections::VecDeque;
use std::io;
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
    stale: Vec<(ConnId, Box<Socket>)>,
    /// Closed connections that still send.
    closing: Vec<Socket>,
    encoded: Vec<u8>,
    news: VecDeque<UplinkNews>,
}

enum State {
    Down,
    /// The addresses that are left to be tried, if this one does not answer.
    Knocking(Box<Knock>, VecDeque<SocketAddr>),
    Up {
        conn: ConnId,
        socket: Box<Socket>,
        decoder: ControlDecoder<Numbered<ToPeer>>,
    },
}

/// What happened on the line.
pub(crate) enum UplinkNews {
    /// The master was reached.
    Connected(ConnId, RunId),
    /// It was not.
    DialFailed(Rejected),
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

    /// The name of its socket in the poller.
    pub(crate) fn token(&self) -> Option<Token> {
        match &self.state {
            State::Down => None,
            State::Knocking(knock, _) => Some(knock.token()),
            State::Up { socket, .. } => Some(socket.token()),
        }
    }

    /// When to call [`Uplink::handle_ready`] even if nothing is ready.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Knocking(knock, _) => Some(knock.deadline()),
            State::Down | State::Up { .. } => None,
        }
    }

    /// Begins to dial; what comes of it is news.
    pub(crate) fn dial(&mut self, now: Time) {
        if let State::Up { conn, socket, .. } = mem::replace(&mut self.state, State::Down) {
            socket.unwatch();
            self.stale.push((conn, socket));
        }
        self.dial_one_of(now, self.addresses.iter().copied().collect(), None);
    }

    fn dial_one_of(&mut self, now: Time, mut left: VecDeque<SocketAddr>, mut last: Option<Rejected>) {
        while let Some(address) = left.pop_front() {
            match self.knock(now, address) {
                Ok(knock) => {
                    self.state = State::Knocking(Box::new(knock), left);
                    return;
                }
                Err(error) => last = Some(Rejected { why: error.to_string(), retryable: true }),
            }
        }
        let Rejected { why, retryable } =
            last.unwrap_or(Rejected { why: "it has no address".into(), retryable: true });
        self.state = State::Down;
        let why = format!("{}: {why}", self.name);
        self.news.push_back(UplinkNews::DialFailed(Rejected { why, retryable }));
    }

    fn knock(&self, now: Time, address: SocketAddr) -> io::Result<Knock> {
        let identity = Identity::new(self.me, self.run);
        let dialler = Dialler::new(identity, Target::master(), self.secret.clone(), random::nonce()?);
        Knock::dial(now, address, &self.poller, dialler)
    }

    /// Sends a message, if the connection is still the one that it is meant for.
    pub(crate) fn send(&mut self, to: ConnId, message: &Numbered<ToMaster>) {
        let State::Up { conn, socket, .. } = &mut self.state else { return };
        if *conn != to {
            return;
        }
        self.encoded.clear();
        encode_control_into(message, &mut self.encoded).expect("the machine keeps to the bounds");
        socket.send(&self.encoded);
    }

    /// Sends what the connection takes.
    pub(crate) fn flush(&mut self) {
        self.closing.retain_mut(|socket| !socket.poll_finish());
        if let State::Up { conn, socket, .. } = &mut self.state
            && socket.flush(&mut Vec::new()).is_err()
        {
            self.news.push_back(UplinkNews::Lost(*conn));
            self.state = State::Down;
        }
    }

    /// Closes a connection once the rest is sent. Does not wait for that.
    pub(crate) fn close(&mut self, which: ConnId) {
        self.stale.retain(|(conn, _)| *conn != which);
        if matches!(&self.state, State::Up { conn, .. } if *conn == which)
            && let State::Up { mut socket, .. } = mem::replace(&mut self.state, State::Down)
            && !socket.poll_finish()
        {
            // Nobody takes what comes, so the poller shall not report it. If that fails, the socket is broken.
            let _ = socket.set_awaits_input(false);
            self.closing.push(*socket);
        }
    }

    /// Closes what is to be closed, by the deadline at the latest.
    pub(crate) fn finish(&mut self, deadline: Instant) {
        close_all(self.closing.drain(..), deadline, Socket::poll_finish);
    }

    /// Moves on whatever can be moved.
    pub(crate) fn handle_ready(&mut self, now: Time) {
        match mem::replace(&mut self.state, State::Down) {
            State::Down => {}
            State::Knocking(knock, left) => self.shake_hands(now, knock, left),
            State::Up { conn, socket, decoder } => self.listen(conn, socket, decoder),
        }
    }

    fn shake_hands(&mut self, now: Time, mut knock: Box<Knock>, left: VecDeque<SocketAddr>) {
        match knock.turn(now, &nobody) {
            Ok(None) => self.state = State::Knocking(knock, left),
            Ok(Some(established)) => {
                self.run = established.run;
                self.conns += 1;
                let conn = ConnId(self.conns);
                let mut socket = Box::new(knock.into_socket());
                socket.set_intake(Intake::Messages);
                self.state = State::Up { conn, socket, decoder: ControlDecoder::default() };
                self.news.push_back(UplinkNews::Connected(conn, established.run));
            }
            Err(rejected) if rejected.retryable => self.dial_one_of(now, left, Some(rejected)),
            Err(rejected) => self.dial_one_of(now, VecDeque::new(), Some(rejected)),
        }
    }

    fn listen(
        &mut self,
        conn: ConnId,
        mut socket: Box<Socket>,
        mut decoder: ControlDecoder<Numbered<ToPeer>>,
    ) {
        let mut is_well = socket.flush(&mut Vec::new()).is_ok() & socket.fill().is_ok();
        loop {
            match socket.take(|input| decoder.next_message(input)) {
                Ok(Some(message)) => self.news.push_back(UplinkNews::Message(conn, Box::new(message))),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "the master is not understood");
                    is_well = false;
                    break;
                }
            }
        }
        if is_well {
            self.state = State::Up { conn, socket, decoder };
        } else {
            self.news.push_back(UplinkNews::Lost(conn));
        }
    }
}
