//! The line to the master.

use crate::knock::{CONNECT_MAX, Knock, Rejected};
use crate::random;
use crate::socket::Socket;
use ringfold_proto::frame::{ControlDecoder, encode_control};
use ringfold_proto::handshake::{Dialler, Identity, Secret, Target};
use ringfold_proto::hello::{Hello, Refusal};
use ringfold_proto::id::{ConnId, PeerId, RunId};
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::time::Time;
use std::io;
use std::net::{SocketAddr, TcpStream};

/// The line, up or down.
pub struct Uplink {
    address: SocketAddr,
    secret: Secret,
    me: PeerId,
    state: State,
    conns: u64,
    /// The run, once the master has told it.
    pub run: RunId,
}

enum State {
    Down,
    Knocking(Box<Knock>),
    Up { conn: ConnId, socket: Socket, decoder: ControlDecoder<Numbered<ToPeer>> },
}

/// What happened on the line.
pub enum News {
    /// The master was reached.
    Connected(ConnId),
    /// It was not.
    DialFailed(Rejected),
    /// It spoke.
    Message(ConnId, Box<Numbered<ToPeer>>),
    /// The connection broke.
    Lost(ConnId),
}

impl Uplink {
    /// A line that is down.
    pub fn new(address: SocketAddr, token: &str, me: PeerId) -> Self {
        Self { address, secret: Secret::token(token), me, state: State::Down, conns: 0, run: RunId(0) }
    }

    /// Begins to dial. The answer comes from [`Uplink::turn`], unless it failed at once.
    pub fn dial(&mut self, now: Time) -> Option<News> {
        match self.knock(now) {
            Ok(knock) => {
                self.state = State::Knocking(Box::new(knock));
                None
            }
            Err(e) => {
                let why = format!("{} can't be reached: {e}", self.address);
                Some(News::DialFailed(Rejected { why, retryable: true }))
            }
        }
    }

    fn knock(&self, now: Time) -> io::Result<Knock> {
        let socket = Socket::new(TcpStream::connect_timeout(&self.address, CONNECT_MAX)?)?;
        let identity = Identity::new(self.me, self.run);
        let dialler = Dialler::new(identity, Target::master(), self.secret.clone(), random::nonce()?);
        Ok(Knock::dialling(now, socket, dialler))
    }

    /// Queues a message, if the connection is still the one that it is meant for.
    pub fn send(&mut self, to: ConnId, message: &Numbered<ToMaster>) {
        if let State::Up { conn, socket, .. } = &mut self.state
            && *conn == to
        {
            socket.send(encode_control(message).expect("the machine keeps to the bounds"));
        }
    }

    /// Sends the rest and closes.
    pub fn close(&mut self, which: ConnId) {
        if matches!(&self.state, State::Up { conn, .. } if *conn == which)
            && let State::Up { socket, .. } = std::mem::replace(&mut self.state, State::Down)
        {
            socket.close();
        }
    }

    /// Moves on whatever can be moved.
    pub fn turn(&mut self, now: Time) -> Vec<News> {
        match std::mem::replace(&mut self.state, State::Down) {
            State::Down => Vec::new(),
            State::Knocking(knock) => self.shake_hands(now, knock).into_iter().collect(),
            State::Up { conn, socket, decoder } => self.listen(conn, socket, decoder),
        }
    }

    fn shake_hands(&mut self, now: Time, mut knock: Box<Knock>) -> Option<News> {
        let nobody = |_: &Hello| Err(Refusal::WrongPurpose);
        match knock.turn(now, &nobody) {
            Ok(None) => {
                self.state = State::Knocking(knock);
                None
            }
            Ok(Some(established)) => {
                self.run = established.run;
                self.conns += 1;
                let conn = ConnId(self.conns);
                self.state =
                    State::Up { conn, socket: knock.into_socket(), decoder: ControlDecoder::default() };
                Some(News::Connected(conn))
            }
            Err(rejected) => Some(News::DialFailed(rejected)),
        }
    }

    fn listen(
        &mut self,
        conn: ConnId,
        mut socket: Socket,
        mut decoder: ControlDecoder<Numbered<ToPeer>>,
    ) -> Vec<News> {
        let mut news = Vec::new();
        let mut is_well = socket.flush(&mut Vec::new()).is_ok() & socket.fill().is_ok();
        loop {
            match socket.take(|input| decoder.next_message(input)) {
                Ok(Some(message)) => news.push(News::Message(conn, Box::new(message))),
                Ok(None) => break,
                Err(_) => {
                    is_well = false;
                    break;
                }
            }
        }
        if is_well {
            self.state = State::Up { conn, socket, decoder };
        } else {
            news.push(News::Lost(conn));
        }
        news
    }
}
