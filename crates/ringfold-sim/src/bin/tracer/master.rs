//! The master's process: its machine over control connections.

use crate::clock::Clock;
use crate::knock::{KNOCKS_MAX, Knock};
use crate::random;
use crate::socket::Socket;
use crate::timing;
use ringfold_proto::frame::{ControlDecoder, encode_control};
use ringfold_proto::handshake::{Acceptor, Identity, Secret};
use ringfold_proto::hello::{Hello, Purpose, Refusal};
use ringfold_proto::id::{ConnId, PeerId, RunId};
use ringfold_proto::master::{Master, MasterAction, MasterConfig};
use ringfold_proto::message::{Numbered, ToMaster};
use ringfold_proto::time::Time;
use ringfold_sim::tour;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::net::TcpListener;
use std::time::Duration;

/// The driver around the machine.
pub struct Server {
    clock: Clock,
    listener: TcpListener,
    secret: Secret,
    identity: Identity,
    machine: Master,
    knocks: Vec<Knock>,
    lines: BTreeMap<ConnId, Line>,
    conns: u64,
    is_verbose: bool,
}

/// A peer's connection.
struct Line {
    socket: Socket,
    decoder: ControlDecoder<Numbered<ToMaster>>,
}

impl Server {
    /// Listens on a free port of the loopback, and says on which.
    pub fn open(token: &str, is_verbose: bool) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let mut out = io::stdout();
        writeln!(out, "listening on {}", listener.local_addr()?)?;
        out.flush()?;
        let config =
            MasterConfig { timing: timing::timing(), tuning: timing::tuning(), seed: random::bytes()? };
        Ok(Self {
            clock: Clock::start(),
            listener,
            secret: Secret::token(token),
            identity: Identity::new(PeerId(0), RunId(random::id()?)),
            machine: Master::new(config),
            knocks: Vec::new(),
            lines: BTreeMap::new(),
            conns: 0,
            is_verbose,
        })
    }

    /// Serves until everyone who came has left again.
    pub fn serve(&mut self, lifetime: Duration) -> Result<(), Box<dyn Error>> {
        let end = self.clock.now() + lifetime;
        loop {
            let now = self.clock.now();
            if now >= end {
                return Err("the run did not end in time".into());
            }
            let mut moved = self.accept(now)?;
            moved |= self.shake_hands(now);
            moved |= self.listen(now);
            if self.machine.poll_timeout().is_some_and(|at| at <= now) {
                self.machine.handle_timeout(now);
            }
            moved |= self.act(now);
            self.flush(now);
            if self.conns > 0 && self.lines.is_empty() && self.knocks.is_empty() {
                return Ok(());
            }
            self.clock.rest(moved);
        }
    }

    fn accept(&mut self, now: Time) -> Result<bool, Box<dyn Error>> {
        if self.knocks.len() >= KNOCKS_MAX {
            return Ok(false);
        }
        match self.listener.accept() {
            Ok((stream, _)) => {
                let acceptor = Acceptor::new(self.identity, random::nonce()?);
                self.knocks.push(Knock::accepting(now, Socket::new(stream)?, acceptor));
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn shake_hands(&mut self, now: Time) -> bool {
        let secrets = |hello: &Hello| match hello.purpose {
            Purpose::Control => Ok(self.secret.clone()),
            _ => Err(Refusal::WrongPurpose),
        };
        let mut moved = false;
        for mut knock in std::mem::take(&mut self.knocks) {
            match knock.turn(now, &secrets) {
                Ok(None) => self.knocks.push(knock),
                Ok(Some(established)) => {
                    moved = true;
                    self.conns += 1;
                    let line = Line { socket: knock.into_socket(), decoder: ControlDecoder::default() };
                    self.lines.insert(ConnId(self.conns), line);
                    self.machine.handle_connected(now, ConnId(self.conns), established.peer);
                }
                Err(rejected) => self.note(|| format!("someone is turned away: {}", rejected.why)),
            }
        }
        moved
    }

    /// Hands over what arrived. A connection that ends, or that is not understood, is lost.
    fn listen(&mut self, now: Time) -> bool {
        let mut moved = false;
        let mut lost = Vec::new();
        for (conn, line) in &mut self.lines {
            let filled = line.socket.fill();
            loop {
                let decoder = &mut line.decoder;
                match line.socket.take(|input| decoder.next_message(input)) {
                    Ok(Some(message)) => self.machine.handle_message(now, *conn, message),
                    Ok(None) if filled.is_ok() => break,
                    Ok(None) | Err(_) => {
                        lost.push(*conn);
                        break;
                    }
                }
            }
            moved |= matches!(filled, Ok(true));
        }
        moved |= !lost.is_empty();
        lost.into_iter().for_each(|conn| self.lose(now, conn));
        moved
    }

    fn act(&mut self, now: Time) -> bool {
        let mut moved = false;
        while let Some(action) = self.machine.poll_action() {
            moved = true;
            match action {
                MasterAction::Send { conn, message } => {
                    if let Some(line) = self.lines.get_mut(&conn) {
                        line.socket.send(encode_control(&*message).expect("the machine keeps to the bounds"));
                    }
                }
                MasterAction::Close { conn } => {
                    if let Some(line) = self.lines.remove(&conn) {
                        line.socket.close();
                        self.machine.handle_lost(now, conn);
                    }
                }
                MasterAction::SolveTour(question) => {
                    self.machine.handle_tour(now, question.ticket, tour::answer(&question, question.ticket));
                }
                MasterAction::Notify(event) => self.note(|| event.to_string()),
            }
        }
        moved
    }

    fn flush(&mut self, now: Time) {
        let is_broken = |line: &mut Line| line.socket.flush(&mut Vec::new()).is_err();
        let broken = self.lines.iter_mut().filter_map(|(conn, line)| is_broken(line).then_some(*conn));
        for conn in broken.collect::<Vec<_>>() {
            self.lose(now, conn);
        }
    }

    fn lose(&mut self, now: Time, conn: ConnId) {
        self.lines.remove(&conn);
        self.machine.handle_lost(now, conn);
    }

    fn note(&self, line: impl FnOnce() -> String) {
        if self.is_verbose {
            eprintln!("{} master: {}", self.clock.now(), line());
        }
    }
}
