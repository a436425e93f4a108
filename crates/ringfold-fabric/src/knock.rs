//! A connection on which the two ends still find out whether they may talk.

use crate::limits;
use crate::poller::{Poller, Token};
use crate::socket::{Intake, Socket};
use ringfold_proto::handshake::{Acceptor, Dialler, Established, HandshakeError, SecretFor};
use ringfold_proto::hello::{Hello, Refusal, Verdict, Welcome};
use ringfold_proto::time::Time;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A handshake under way.
pub struct Knock {
    socket: Socket,
    side: Side,
    deadline: Time,
    /// Whether the other end has said anything.
    heard: bool,
    /// How sending failed first: the system tells each error once.
    broken: Option<io::Error>,
    /// What the two ends found out about each other, if they may not talk.
    failed: Option<HandshakeError>,
}

enum Side {
    Dialler(Box<Dialler>),
    Acceptor(Box<Acceptor>),
}

/// Why a handshake came to nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Rejected {
    /// In words.
    pub why: String,
    /// Whether dialling again may succeed.
    pub retryable: bool,
}

impl Rejected {
    fn unreachable(error: &io::Error) -> Self {
        Self { why: error.to_string(), retryable: true }
    }
}

impl From<HandshakeError> for Rejected {
    fn from(error: HandshakeError) -> Self {
        Self { why: error.to_string(), retryable: error.is_retryable() }
    }
}

/// For those who dial and are never asked.
pub fn nobody(_: &Hello) -> Result<ringfold_proto::handshake::Secret, Refusal> {
    Err(Refusal::WrongPurpose)
}

impl core::fmt::Debug for Knock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Knock").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Knock {
    /// Begins to dial. Nothing is waited for.
    pub fn dial(now: Time, to: SocketAddr, poller: &Arc<Poller>, dialler: Dialler) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&fd, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let socket = Socket::new(TcpStream::from(fd), poller, Intake::Frames)?;
        let side = Side::Dialler(Box::new(dialler));
        let deadline = now + limits::CONNECT_MAX;
        let mut knock = Self { socket, side, deadline, heard: false, broken: None, failed: None };
        knock.answer();
        Ok(knock)
    }

    /// Someone dialled us.
    pub fn accept(
        now: Time,
        stream: TcpStream,
        poller: &Arc<Poller>,
        acceptor: Acceptor,
    ) -> io::Result<Self> {
        let socket = Socket::new(stream, poller, Intake::Frames)?;
        let side = Side::Acceptor(Box::new(acceptor));
        let deadline = now + limits::HANDSHAKE_MAX;
        Ok(Self { socket, side, deadline, heard: true, broken: None, failed: None })
    }

    /// Its name in the poller.
    pub fn token(&self) -> Token {
        self.socket.token()
    }

    /// When it will have taken too long.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Gives the other end more time to say its first word: it listens, but may not look yet.
    pub fn await_first_word(&mut self, until: Time) {
        if !self.heard {
            self.deadline = until;
        }
    }

    /// Whether the other end's system has taken the connection.
    pub fn is_connected(&self) -> bool {
        self.socket.peer_address().is_ok()
    }

    /// Why the two ends may not talk, after [`Knock::turn`] has failed, if they came so far as to find that out.
    pub fn failed(&self) -> Option<HandshakeError> {
        self.failed
    }

    /// Moves the handshake on. What the other end is to be told is sent also where it fails.
    pub fn turn(&mut self, now: Time, secrets: &impl SecretFor) -> Result<Option<Established>, Rejected> {
        if now >= self.deadline {
            let what = if self.heard { "the handshake took too long" } else { "it does not answer" };
            return Err(Rejected { why: what.into(), retryable: true });
        }
        self.answer();
        let filled = self.socket.fill();
        if !self.heard && matches!(filled, Ok(true)) {
            (self.heard, self.deadline) = (true, now + limits::HANDSHAKE_MAX);
        }
        let side = &mut self.side;
        let step = self.socket.take(|input| match side {
            Side::Dialler(dialler) => dialler.handle_bytes(input),
            Side::Acceptor(acceptor) => acceptor.handle_bytes(input, secrets),
        });
        self.answer();
        match (step, filled) {
            (Ok(None), Ok(_)) => Ok(None),
            (Ok(Some(established)), _) => Ok(Some(established)),
            (Err(error), _) => {
                self.failed = Some(error);
                Err(error.into())
            }
            (Ok(None), Err(error)) if !self.heard => {
                Err(Rejected::unreachable(self.broken.as_ref().unwrap_or(&error)))
            }
            (Ok(None), Err(_)) => Err(match &mut self.side {
                Side::Dialler(dialler) => dialler.handle_end().into(),
                Side::Acceptor(acceptor) => acceptor.handle_end().into(),
            }),
        }
    }

    /// The connection, once it is established. What arrived after the handshake is in it.
    pub fn into_socket(self) -> Socket {
        self.socket
    }

    /// Tells the other end why, as far as that can be done at once, and closes.
    pub fn dismiss(mut self) {
        self.answer();
        if self.socket.queued_bytes() == 0 {
            self.socket.close();
        }
    }

    fn answer(&mut self) {
        self.socket.send(&match &mut self.side {
            Side::Dialler(dialler) => dialler.poll_output(),
            Side::Acceptor(acceptor) => acceptor.poll_output(),
        });
        // A broken connection shows when it is read.
        if let Err(error) = self.socket.flush(&mut Vec::new()) {
            self.broken.get_or_insert(error);
        }
    }
}

/// Dials and shakes hands, and waits for both; again, if the other end does not know us yet. For threads that have nothing else to do.
pub fn reach(
    addresses: &[SocketAddr],
    patience: Duration,
    dialler: impl Fn() -> io::Result<Dialler>,
) -> io::Result<TcpStream> {
    let end = Instant::now() + patience;
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no address is known");
    loop {
        for address in addresses {
            match reach_at(*address, end, dialler()?) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        // The other end may be about to hear of the epoch that we speak of.
        let is_early = last.get_ref().is_some_and(|error| {
            error.downcast_ref::<HandshakeError>().is_some_and(HandshakeError::is_retryable)
        });
        if !is_early || Instant::now() + limits::REDIAL_PAUSE >= end {
            return Err(last);
        }
        std::thread::sleep(limits::REDIAL_PAUSE);
    }
}

fn reach_at(address: SocketAddr, end: Instant, mut dialler: Dialler) -> io::Result<TcpStream> {
    let left = || {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
    };
    let mut stream = TcpStream::connect_timeout(&address, left()?.min(limits::CONNECT_MAX))?;
    stream.set_nodelay(true)?;
    let mut block = [0; if Welcome::BYTES > Verdict::BYTES { Welcome::BYTES } else { Verdict::BYTES }];
    for bytes in [Welcome::BYTES, Verdict::BYTES] {
        stream.set_write_timeout(Some(left()?))?;
        stream.write_all(&dialler.poll_output())?;
        let mut have = 0;
        while have < bytes {
            stream.set_read_timeout(Some(left()?))?;
            match stream.read(&mut block[have..bytes])? {
                0 => return Err(io::Error::other(dialler.handle_end())),
                read => have += read,
            }
        }
        if dialler.handle_bytes(&mut &block[..bytes]).map_err(io::Error::other)?.is_some() {
            return Ok(stream);
        }
    }
    Err(io::Error::other("the handshake did not end"))
}

/// Shakes hands with someone who dialled, and waits for it. For threads that have nothing else to do.
pub fn welcome(
    stream: &mut TcpStream,
    patience: Duration,
    mut acceptor: Acceptor,
    secrets: &impl SecretFor,
) -> io::Result<Established> {
    let end = Instant::now() + patience;
    let mut block = [0; 4096];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))?;
        let bytes = stream.read(&mut block)?;
        if bytes == 0 {
            return Err(io::Error::other(acceptor.handle_end()));
        }
        let mut rest = &block[..bytes];
        let step = acceptor.handle_bytes(&mut rest, secrets);
        stream.write_all(&acceptor.poll_output())?;
        if let Some(established) = step.map_err(io::Error::other)? {
            // A dialler that waits for the verdict says nothing before it.
            return if rest.is_empty() {
                Ok(established)
            } else {
                Err(io::Error::other("it spoke too early"))
            };
        }
    }
}
