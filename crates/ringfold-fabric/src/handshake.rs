//! A connection whose two ends authenticate each other.

use crate::connection::{Connection, Intake};
use crate::limits;
use crate::poller::{Poller, Token};
use crate::transport::Transport;
use ringfold_proto::handshake::{Acceptor, Dialler, Established, HandshakeError, Secret, SecretFor};
use ringfold_proto::hello::{Hello, Refusal, Verdict, Welcome};
use ringfold_proto::time::Time;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// A handshake under way.
pub struct Handshake {
    connection: Connection,
    side: Side,
    deadline: Time,
    /// When the other end must have sent its first byte, if its system has accepted the connection.
    answer_by: Time,
    /// Whether the other end has sent anything.
    heard: bool,
    /// Bytes that may still be read. A side that dials knows how many there are; what follows them is not for it.
    left: usize,
    /// How sending failed first: the system tells each error once.
    broken: Option<io::Error>,
}

enum Side {
    Dialler(Box<Dialler>),
    Acceptor(Box<Acceptor>),
}

/// Why a handshake failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    /// In words.
    pub reason: String,
    /// Whether dialling again may succeed.
    pub retryable: bool,
    /// What the two ends found out about each other, if they came so far.
    pub error: Option<HandshakeError>,
}

impl Rejection {
    /// It may succeed later.
    pub fn retryable(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), retryable: true, error: None }
    }

    /// Whether the two ends know different secrets.
    pub fn is_about_secret(&self) -> bool {
        use HandshakeError::{BadToken, Impostor, TokenMissing, TokenUnexpected};
        matches!(self.error, Some(BadToken | Impostor | TokenMissing | TokenUnexpected))
    }
}

impl From<HandshakeError> for Rejection {
    fn from(error: HandshakeError) -> Self {
        Self { reason: error.to_string(), retryable: error.is_retryable(), error: Some(error) }
    }
}

/// For a side that dials: it is never asked.
fn no_secret(_: &Hello) -> Result<Secret, Refusal> {
    Err(Refusal::WrongPurpose)
}

impl core::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Handshake").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl Handshake {
    /// Begins to connect. Once the other end's system has accepted the connection, the other end has until `answer_by`
    /// to send its first byte: it listens, but may not look yet.
    pub(crate) fn dial(
        now: Time,
        to: SocketAddr,
        poller: &Arc<Poller>,
        dialler: Dialler,
        answer_by: Time,
    ) -> io::Result<Self> {
        let side = Side::Dialler(Box::new(dialler));
        let deadline = answer_by.min(now + limits::CONNECT_MAX);
        let mut handshake = Self::new(Transport::dial(to)?, poller, side, deadline)?;
        (handshake.answer_by, handshake.left) = (answer_by, Welcome::BYTES + Verdict::BYTES);
        handshake.answer();
        Ok(handshake)
    }

    /// Of a connection that the other end dialled.
    pub(crate) fn accept(
        now: Time,
        transport: Transport,
        poller: &Arc<Poller>,
        acceptor: Acceptor,
    ) -> io::Result<Self> {
        let side = Side::Acceptor(Box::new(acceptor));
        let handshake = Self::new(transport, poller, side, now + limits::HANDSHAKE_MAX)?;
        Ok(Self { heard: true, ..handshake })
    }

    fn new(transport: Transport, poller: &Arc<Poller>, side: Side, deadline: Time) -> io::Result<Self> {
        let connection = Connection::over(Arc::new(transport), poller, Intake::Frames)?;
        Ok(Self {
            connection,
            side,
            deadline,
            answer_by: deadline,
            heard: false,
            left: usize::MAX,
            broken: None,
        })
    }

    /// Its token in the poller.
    pub fn token(&self) -> Token {
        self.connection.token()
    }

    /// When it will have taken too long.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Moves it on, for a side that dials.
    pub(crate) fn advance_dialled(&mut self, now: Time) -> Result<Option<Established>, Rejection> {
        self.advance(now, &no_secret)
    }

    /// Moves it on. What the other end is to be told is sent also where it fails.
    pub fn advance(&mut self, now: Time, secrets: &impl SecretFor) -> Result<Option<Established>, Rejection> {
        if now >= self.deadline {
            if self.heard || now >= self.answer_by || self.connection.peer_address().is_err() {
                return Err(self.timed_out());
            }
            self.deadline = self.answer_by;
        }
        self.answer();
        let filled = self.connection.fill_within(self.left);
        if !self.heard && matches!(filled, Ok(true)) {
            (self.heard, self.deadline) = (true, now + limits::HANDSHAKE_MAX);
        }
        let (side, left) = (&mut self.side, &mut self.left);
        let step = self.connection.take(|input| {
            let unread = input.len();
            let step = match side {
                Side::Dialler(dialler) => dialler.handle_bytes(input),
                Side::Acceptor(acceptor) => acceptor.handle_bytes(input, secrets),
            };
            *left = left.saturating_sub(unread - input.len());
            step
        });
        self.answer();
        match (step, filled) {
            (Ok(None), Ok(_)) => Ok(None),
            (Ok(Some(established)), _) => Ok(Some(established)),
            (Err(error), _) => Err(error.into()),
            (Ok(None), Err(error)) if !self.heard => {
                Err(Rejection::retryable(self.broken.as_ref().unwrap_or(&error)))
            }
            (Ok(None), Err(_)) => Err(match &mut self.side {
                Side::Dialler(dialler) => dialler.handle_end().into(),
                Side::Acceptor(acceptor) => acceptor.handle_end().into(),
            }),
        }
    }

    /// What it means that the deadline has passed.
    pub(crate) fn timed_out(&self) -> Rejection {
        Rejection::retryable(if self.heard { "the handshake took too long" } else { "it does not answer" })
    }

    /// The connection, once it is established, with the input that followed the handshake. After a failure it holds
    /// what the other end is to be told of it.
    pub fn into_connection(self) -> Connection {
        self.connection
    }

    fn answer(&mut self) {
        self.connection.send(&match &mut self.side {
            Side::Dialler(dialler) => dialler.poll_output(),
            Side::Acceptor(acceptor) => acceptor.poll_output(),
        });
        // A broken connection shows when it is read.
        if let Err(error) = self.connection.flush(&mut Vec::new()) {
            self.broken.get_or_insert(error);
        }
    }
}
