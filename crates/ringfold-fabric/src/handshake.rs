//! A connection whose two ends authenticate each other.

use crate::connection::{Connection, Intake};
use crate::poller::{Poller, Token};
use crate::transport::Transport;
use ringfold_proto::handshake::{
    AcceptorHandshake, DialerHandshake, Established, HandshakeError, Secret, SecretLookup,
};
use ringfold_proto::hello::{ConnectionRejection, Hello, Purpose, Verdict, Welcome};
use ringfold_proto::time::Time;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A handshake in progress.
pub struct Handshake {
    connection: Connection,
    side: Side,
    deadline: Time,
    /// How long it may take from the first byte on.
    max: Duration,
    /// When the first byte of the other end must have arrived, once its system has accepted the connection.
    answer_by: Time,
    /// Whether the other end has sent anything.
    has_answered: bool,
    /// Bytes that may still be read. A dialer reads nothing beyond the verdict.
    left: usize,
    /// The dialler's proof, until [`Handshake::send_proof`].
    held_proof: Vec<u8>,
    /// The first error of sending: the system reports each error once.
    broken: Option<io::Error>,
}

enum Side {
    DialerHandshake(Box<DialerHandshake>),
    AcceptorHandshake(Box<AcceptorHandshake>),
}

/// Why a handshake failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    /// The reason.
    pub reason: String,
    /// Whether dialling again may succeed.
    pub retryable: bool,
    /// The error of the protocol, if there is one.
    pub error: Option<HandshakeError>,
    /// What an incoming connection was for, if its hello has arrived.
    pub purpose: Option<Purpose>,
}

impl Rejection {
    /// A failure that may not happen again.
    pub fn retryable(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), retryable: true, error: None, purpose: None }
    }

    /// Whether the peer that was meant has refused, and will again at its other addresses. A stranger at one of the
    /// addresses decides nothing.
    pub fn is_final(&self) -> bool {
        use HandshakeError::{Rejected, Version, WrongRun};
        let is_refused = matches!(self.error, Some(Rejected(_) | Version { .. } | WrongRun { .. }));
        self.is_about_secret() || is_refused && !self.retryable
    }

    /// Whether one end refuses the certificate of the other.
    pub fn is_about_certificate(&self) -> bool {
        use HandshakeError::{Certificate, Rejected};
        matches!(self.error, Some(Certificate(_) | Rejected(ConnectionRejection::Certificate(_))))
    }

    /// Whether the two ends know different secrets.
    pub fn is_about_secret(&self) -> bool {
        use HandshakeError::{BadToken, Impostor, TokenMissing, TokenUnexpected};
        matches!(self.error, Some(BadToken | Impostor | TokenMissing | TokenUnexpected))
    }
}

impl From<HandshakeError> for Rejection {
    fn from(error: HandshakeError) -> Self {
        Self { reason: error.to_string(), retryable: error.is_retryable(), error: Some(error), purpose: None }
    }
}

/// What this end refuses in the session below the handshake.
fn refusal(error: &io::Error) -> Option<HandshakeError> {
    error.get_ref()?.downcast_ref().copied()
}

/// For dialers, which never ask.
fn no_secret(_: &Hello) -> Result<Secret, ConnectionRejection> {
    Err(ConnectionRejection::WrongPurpose)
}

impl core::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Handshake").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl Handshake {
    /// Begins to connect. Once the other end's system has accepted the connection, the other end has until `answer_by` to
    /// send its first byte: its process may not accept yet.
    pub(crate) fn dial(
        now: Time,
        transport: impl Into<Arc<Transport>>,
        poller: &Arc<Poller>,
        dialler: DialerHandshake,
        answer_by: Time,
    ) -> io::Result<Self> {
        let side = Side::DialerHandshake(Box::new(dialler));
        let deadline = answer_by.min(now + poller.limits().connect_max);
        let mut handshake = Self::new(transport.into(), poller, side, deadline)?;
        (handshake.answer_by, handshake.left) = (answer_by, Welcome::BYTES + Verdict::BYTES);
        handshake.answer();
        Ok(handshake)
    }

    /// For an incoming connection.
    pub(crate) fn accept(
        now: Time,
        transport: impl Into<Arc<Transport>>,
        poller: &Arc<Poller>,
        acceptor: AcceptorHandshake,
    ) -> io::Result<Self> {
        let (transport, security) = (transport.into(), poller.security()?);
        let mut acceptor = Box::new(acceptor);
        if transport.must_be_encrypted(&security) {
            acceptor.require_encryption();
        }
        transport.decide_encryption(&security);
        let side = Side::AcceptorHandshake(acceptor);
        let handshake = Self::new(transport, poller, side, now + poller.limits().handshake_max)?;
        Ok(Self { has_answered: true, ..handshake })
    }

    fn new(transport: Arc<Transport>, poller: &Arc<Poller>, side: Side, deadline: Time) -> io::Result<Self> {
        let connection = Connection::over(transport, poller, Intake::Frames)?;
        Ok(Self {
            connection,
            side,
            deadline,
            max: poller.limits().handshake_max,
            answer_by: deadline,
            has_answered: false,
            left: usize::MAX,
            held_proof: Vec::new(),
            broken: None,
        })
    }

    /// Its token in the poller.
    pub fn token(&self) -> Token {
        self.connection.token()
    }

    /// The round-trip time; zero before the other end's system has accepted the connection.
    pub(crate) fn round_trip(&self) -> io::Result<Duration> {
        self.connection.round_trip()
    }

    /// Whether the connection goes through a relay.
    pub(crate) fn is_relayed(&self) -> bool {
        self.connection.relay().is_some()
    }

    /// Whether the first message of TLS has arrived as a whole.
    pub(crate) fn has_negotiated(&self) -> bool {
        self.connection.has_negotiated()
    }

    /// When it times out.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Whether a side that dials has all it needs to authenticate.
    pub(crate) fn is_ready_to_prove(&self) -> bool {
        !self.held_proof.is_empty()
    }

    /// Authenticates. The other end counts the connection from now on.
    pub(crate) fn send_proof(&mut self) {
        let proof = core::mem::take(&mut self.held_proof);
        self.send(&proof);
    }

    /// Whether the other end has sent anything.
    pub(crate) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Advances it, for a side that dials, and authenticates as soon as possible.
    pub(crate) fn advance_proving(&mut self, now: Time) -> Result<Option<Established>, Rejection> {
        let step = self.advance_dialled(now)?;
        if step.is_none() && self.is_ready_to_prove() {
            self.send_proof();
        }
        Ok(step)
    }

    /// Advances it, for a side that dials.
    pub(crate) fn advance_dialled(&mut self, now: Time) -> Result<Option<Established>, Rejection> {
        self.advance(now, &no_secret)
    }

    /// Advances it. If it fails, the other end gets the reason.
    pub fn advance(
        &mut self,
        now: Time,
        secrets: &impl SecretLookup,
    ) -> Result<Option<Established>, Rejection> {
        if now >= self.deadline {
            if self.has_answered || now >= self.answer_by || self.connection.peer_address().is_err() {
                return Err(self.timed_out());
            }
            self.deadline = self.answer_by;
        }
        self.answer();
        let filled = self.connection.fill_within(self.left);
        if !self.has_answered && matches!(filled, Ok(true)) {
            (self.has_answered, self.deadline) = (true, now + self.max);
        }
        self.bind_session()?;
        let (side, left) = (&mut self.side, &mut self.left);
        let step = self.connection.take(|input| {
            let unread = input.len();
            let step = match side {
                Side::DialerHandshake(dialler) => dialler.handle_bytes(input),
                Side::AcceptorHandshake(acceptor) => acceptor.handle_bytes(input, secrets),
            };
            *left = left.saturating_sub(unread - input.len());
            step
        });
        self.answer();
        match (step, filled) {
            (Ok(None), Ok(_)) => Ok(None),
            (Ok(Some(established)), _) => {
                self.connection.identify(established.peer, established.purpose);
                self.connection.quic().inspect(|quic| quic.trust());
                Ok(Some(established))
            }
            (Err(error), _) => Err(error.into()),
            (Ok(None), Err(error)) if let Some(refused) = refusal(&error) => Err(refused.into()),
            (Ok(None), Err(error)) if !self.has_answered => {
                Err(Rejection::retryable(self.broken.as_ref().unwrap_or(&error)))
            }
            (Ok(None), Err(_)) => Err(match &mut self.side {
                Side::DialerHandshake(dialler) => dialler.handle_end().into(),
                Side::AcceptorHandshake(acceptor) => acceptor.handle_end().into(),
            }),
        }
    }

    /// Binds the proofs to the encrypted session, once something has come through it.
    fn bind_session(&mut self) -> Result<(), Rejection> {
        if !self.connection.is_encrypted() || !self.connection.has_input() {
            return Ok(());
        }
        let binding =
            self.connection.binding().ok_or_else(|| Rejection::retryable("the session has no keys"))?;
        match &mut self.side {
            Side::DialerHandshake(dialler) => dialler.bind(binding),
            Side::AcceptorHandshake(acceptor) => acceptor.bind(binding),
        }
        Ok(())
    }

    /// The reason after the deadline.
    pub(crate) fn timed_out(&self) -> Rejection {
        Rejection::retryable(if self.has_answered { "timed out during the handshake" } else { "no answer" })
    }

    /// The connection. After a failure, the reason for the other end is queued on it.
    pub fn into_connection(self) -> Connection {
        self.connection
    }

    fn answer(&mut self) {
        match &mut self.side {
            Side::DialerHandshake(dialler) if self.has_answered => {
                self.held_proof.extend(dialler.poll_output())
            }
            Side::DialerHandshake(dialler) => {
                let hello = dialler.poll_output();
                self.send(&hello);
            }
            Side::AcceptorHandshake(acceptor) => {
                let output = acceptor.poll_output();
                self.send(&output);
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.connection.send(bytes);
        // A broken connection shows when it is read.
        if let Err(error) = self.connection.flush(&mut Vec::new()) {
            self.broken.get_or_insert(error);
        }
    }
}
