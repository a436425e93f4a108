//! Connections between the masters of a run. Each master sends on connections that it has dialled, and receives on the others.

use super::limits;
use super::server::is_revoked;
use crate::control::ControlConnection;
use crate::master_address::MasterAddress;
use ringfold_fabric::dialer::{Credentials, DialTiming, Dialed, Dialer};
use ringfold_fabric::poller::{Poller, Token};
use ringfold_proto::coordinator::MasterMessage;
use ringfold_proto::handshake::{DialTarget, Identity, Secret};
use ringfold_proto::id::{PeerId, RunId};
use ringfold_proto::time::Time;
use std::sync::Arc;

/// The connection that this master has dialled to another one.
#[derive(Debug)]
pub(super) struct OtherMaster {
    me: PeerId,
    address: MasterAddress,
    state: State,
}

#[derive(Debug)]
enum State {
    Down { redial_at: Time },
    Dialing(Box<Dialer>),
    Up(Box<ControlConnection<MasterMessage>>),
}

impl OtherMaster {
    /// Not connected. `me` is the id that belongs to this master's keys.
    pub fn new(me: PeerId, address: MasterAddress) -> Self {
        Self { me, address, state: State::Down { redial_at: Time::ZERO } }
    }

    /// Whether a token belongs to it.
    pub fn owns(&self, token: Token) -> bool {
        match &self.state {
            State::Down { .. } => false,
            State::Dialing(dialer) => dialer.owns(token),
            State::Up(control) => control.connection.token() == token,
        }
    }

    /// When to call [`OtherMaster::advance`] even if nothing is ready.
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Down { redial_at } => Some(*redial_at),
            State::Dialing(dialer) => dialer.poll_timeout(),
            State::Up(_) => None,
        }
    }

    /// Sends a message, if the connection is up. The next status replaces one that is lost.
    pub fn send(&mut self, message: &MasterMessage) {
        if let State::Up(control) = &mut self.state
            && let Err(error) = control.send(message)
        {
            tracing::error!(target: "ringfold::master", "failed to encode a message for another master: {error}");
        }
    }

    /// Does what can be done. Returns whether a connection has just been made.
    pub fn advance(&mut self, now: Time, secret: Secret, poller: &Arc<Poller>) -> bool {
        match &mut self.state {
            State::Down { redial_at } if *redial_at <= now => {
                let credentials = Credentials {
                    identity: Identity::new(self.me, RunId(0)),
                    target: DialTarget::other_master(),
                    secret: secret.clone(),
                };
                let addresses = self.address.addresses();
                let timing = DialTiming { answer_max: limits::MASTER_ANSWER_MAX, ..DialTiming::of(poller) };
                self.state =
                    State::Dialing(Box::new(Dialer::new(now, addresses, credentials, timing, poller)));
                self.advance(now, secret, poller)
            }
            State::Down { .. } => false,
            State::Dialing(dialer) => match dialer.advance(now) {
                Ok(Some(Dialed { connection, .. })) => {
                    self.state = State::Up(Box::new(ControlConnection::new(connection)));
                    self.dismiss_revoked(now);
                    matches!(self.state, State::Up(_))
                }
                Ok(None) => false,
                Err(error) => {
                    tracing::debug!(target: "ringfold::master", "another master cannot be reached: {error}");
                    self.fail(now);
                    false
                }
            },
            State::Up(control) => {
                // Nothing arrives on it but its end.
                let alive = control.flush().and(control.connection.fill()).is_ok();
                if !alive {
                    self.fail(now);
                }
                false
            }
        }
    }

    /// Sends what the connection takes.
    pub fn flush(&mut self, now: Time) {
        if let State::Up(control) = &mut self.state
            && control.flush().is_err()
        {
            self.fail(now);
        }
    }

    /// Closes the connection if the certificate of its other end was revoked.
    pub fn dismiss_revoked(&mut self, now: Time) {
        if matches!(&self.state, State::Up(control) if is_revoked(&control.connection)) {
            self.fail(now);
        }
    }

    fn fail(&mut self, now: Time) {
        // It may have moved.
        self.address.refresh();
        self.state = State::Down { redial_at: now + limits::MASTER_REDIAL };
    }
}
