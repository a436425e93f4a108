//! A member's connection to a relay, until it is joined with that of another member.

use super::{RelayAnswer, RelayRequest, RelayRole, Relays};
use crate::connection::Connection;
use crate::handshake::{Handshake, Rejection};
use crate::limits;
use crate::poller::{Poller, Token};
use crate::random;
use crate::transport::Transport;
use ringfold_proto::handshake::{DialTarget, DialerHandshake, Identity};
use ringfold_proto::time::Time;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// A connection to a relay that is not joined yet.
#[derive(Debug)]
pub(crate) struct RelayLeg {
    relay: SocketAddr,
    request: RelayRequest,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Handshake(Box<Handshake>),
    /// The request was sent.
    Asked(Box<Connection>, Time),
    /// It was joined, or has failed.
    Ended,
}

impl RelayLeg {
    /// Begins to dial a relay.
    pub(crate) fn dial(
        now: Time,
        relay: SocketAddr,
        identity: Identity,
        relays: &Relays,
        request: RelayRequest,
        poller: &Arc<Poller>,
    ) -> io::Result<Self> {
        let nonce = random::nonce()?;
        let dialler = DialerHandshake::new(identity, DialTarget::relay(), relays.token.secret(), nonce);
        let transport = Transport::dial_relay(relay, &*poller.security()?)?;
        let handshake = Handshake::dial(now, transport, poller, dialler, now + poller.limits().connect_max)?;
        Ok(Self { relay, request, stage: Stage::Handshake(Box::new(handshake)) })
    }

    /// Whether a token is that of its socket.
    pub(crate) fn owns(&self, token: Token) -> bool {
        match &self.stage {
            Stage::Handshake(handshake) => handshake.token() == token,
            Stage::Asked(connection, _) => connection.token() == token,
            Stage::Ended => false,
        }
    }

    /// When to call [`RelayLeg::advance`] even if nothing is ready.
    pub(crate) fn deadline(&self) -> Time {
        match &self.stage {
            Stage::Handshake(handshake) => handshake.deadline(),
            Stage::Asked(_, deadline) => *deadline,
            Stage::Ended => Time::ZERO,
        }
    }

    /// Advances it. Returns the connection once it is joined; then the other member is at its end.
    pub(crate) fn advance(&mut self, now: Time) -> Result<Option<Arc<Transport>>, Rejection> {
        let relay = self.relay;
        let failed = |why: &dyn core::fmt::Display| Rejection::retryable(format!("relay {relay}: {why}"));
        if let Stage::Handshake(handshake) = &mut self.stage {
            let is_authenticated = handshake.advance_proving(now).map_err(|error| failed(&error))?.is_some();
            if !is_authenticated {
                return Ok(None);
            }
            let Stage::Handshake(handshake) = core::mem::replace(&mut self.stage, Stage::Ended) else {
                return Ok(None);
            };
            let mut connection = handshake.into_connection();
            connection.send(&self.request.encode());
            connection.flush(&mut Vec::new()).map_err(|error| failed(&error))?;
            let wait_max = match self.request.role {
                RelayRole::Dial => limits::RELAY_DIAL_WAIT_MAX,
                RelayRole::Await => limits::RELAY_STAND_BY_MAX,
            };
            // The relay ends the wait first, and says so.
            self.stage = Stage::Asked(Box::new(connection), now + wait_max + limits::HANDSHAKE_MAX);
        }
        let Stage::Asked(connection, deadline) = &mut self.stage else { return Ok(None) };
        let is_late = now >= *deadline;
        // What follows the answer comes from the other member, and stays in the socket.
        let flushed = connection.flush(&mut Vec::new());
        let filled = flushed.and_then(|()| connection.fill_within(RelayAnswer::BYTES));
        let answer = match (connection.take(RelayAnswer::take), filled) {
            (None, Ok(_)) if !is_late => return Ok(None),
            (None, Ok(_)) => return Err(failed(&"no answer")),
            (None, Err(error)) => return Err(failed(&error)),
            (Some(answer), _) => answer.map_err(|why| failed(&why))?,
        };
        if answer != RelayAnswer::Joined {
            return Err(failed(&answer));
        }
        let Stage::Asked(connection, _) = core::mem::replace(&mut self.stage, Stage::Ended) else {
            return Ok(None);
        };
        // The two members encrypt what follows.
        let joined = connection.into_blocking().and_then(|leg| leg.into_transport().without_session());
        let transport = joined.map_err(|error| failed(&error))?;
        transport.set_relay(relay);
        Ok(Some(transport))
    }
}
