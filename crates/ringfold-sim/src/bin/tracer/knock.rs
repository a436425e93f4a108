//! A connection on which the two ends still find out whether they may talk.

use crate::socket::Socket;
use ringfold_proto::handshake::{Acceptor, Dialler, Established, SecretFor};
use ringfold_proto::time::Time;
use std::time::Duration;

/// How long a handshake may take.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// How long a TCP connection may take to be made.
pub const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Connections that may be in their handshake at once.
pub const KNOCKS_MAX: usize = 64;

/// A handshake under way.
pub struct Knock {
    socket: Socket,
    side: Side,
    deadline: Time,
}

enum Side {
    Dialler(Box<Dialler>),
    Acceptor(Box<Acceptor>),
}

/// Why a handshake came to nothing.
#[derive(Debug)]
pub struct Rejected {
    /// In words.
    pub why: String,
    /// Whether dialling again may succeed.
    pub retryable: bool,
}

impl Knock {
    /// We dialled.
    pub fn dialling(now: Time, socket: Socket, dialler: Dialler) -> Self {
        Self { socket, side: Side::Dialler(Box::new(dialler)), deadline: now + HANDSHAKE_MAX }
    }

    /// We were dialled.
    pub fn accepting(now: Time, socket: Socket, acceptor: Acceptor) -> Self {
        Self { socket, side: Side::Acceptor(Box::new(acceptor)), deadline: now + HANDSHAKE_MAX }
    }

    /// Moves the handshake on. What the other end is to be told is sent also where it fails.
    pub fn turn(&mut self, now: Time, secrets: &impl SecretFor) -> Result<Option<Established>, Rejected> {
        if now >= self.deadline {
            return Err(Rejected { why: "the handshake took too long".into(), retryable: true });
        }
        self.answer();
        let filled = self.socket.fill();
        let side = &mut self.side;
        let step = self.socket.take(|input| match side {
            Side::Dialler(dialler) => dialler.handle_bytes(input),
            Side::Acceptor(acceptor) => acceptor.handle_bytes(input, secrets),
        });
        self.answer();
        let error = match (step, filled) {
            (Ok(None), Ok(_)) => return Ok(None),
            (Ok(Some(established)), _) => return Ok(Some(established)),
            (Err(error), _) => error,
            (Ok(None), Err(_)) => match &mut self.side {
                Side::Dialler(dialler) => dialler.handle_end(),
                Side::Acceptor(acceptor) => acceptor.handle_end(),
            },
        };
        Err(Rejected { why: error.to_string(), retryable: error.is_retryable() })
    }

    /// The connection, once it is established. What arrived after the handshake is in it.
    pub fn into_socket(self) -> Socket {
        self.socket
    }

    fn answer(&mut self) {
        self.socket.send(match &mut self.side {
            Side::Dialler(dialler) => dialler.poll_output(),
            Side::Acceptor(acceptor) => acceptor.poll_output(),
        });
        // A broken connection shows when it is read.
        let _ = self.socket.flush(&mut Vec::new());
    }
}
