//! Observers and operators that are connected to the master.

use super::limits;
use super::server::is_revoked;
use crate::control::ControlConnection;
use ringfold_fabric::connection::Connection;
use ringfold_fabric::listener::{Occupant, crowd};
use ringfold_fabric::poller::Token;
use ringfold_proto::observe::{ObserverAnswer, ObserverRequest};
use ringfold_proto::time::Time;
use std::collections::HashMap;
use std::io;

/// Why a command is not carried out.
const NOT_ALLOWED: &str =
    "an observer may not change the run, nor an operator whose certificate was revoked or has expired";

/// The connections of observers.
#[derive(Debug, Default)]
pub(super) struct Observers {
    connections: HashMap<Token, Observer>,
}

#[derive(Debug)]
struct Observer {
    control: ControlConnection<ObserverRequest>,
    may_command: bool,
    /// Since it was connected, or last asked something.
    occupant: Occupant,
}

impl Observer {
    /// Whether it is an operator, and still trusted: its certificate may have been revoked a moment ago.
    fn may_command(&self) -> bool {
        self.may_command && self.control.connection.peer_identity().is_none_or(|identity| identity.is_ok())
    }
}

impl Observers {
    pub(super) fn owns(&self, token: Token) -> bool {
        self.connections.contains_key(&token)
    }

    /// Adds a connection. If there are too many observers, or too many operators, some of their most crowded address give way.
    pub(super) fn add(&mut self, connection: Connection, occupant: Occupant, may_command: bool) {
        let max = if may_command { limits::OPERATORS_MAX } else { limits::OBSERVERS_MAX };
        let rivals = self.connections.values().filter(|rival| rival.may_command == may_command);
        for token in crowd(rivals.map(|rival| rival.occupant), max) {
            self.connections.remove(&token);
        }
        let observer = Observer { control: ControlConnection::new(connection), may_command, occupant };
        self.connections.insert(occupant.token, observer);
    }

    /// Answers what has arrived. Commands of those that may not command are refused.
    pub(super) fn handle_ready(
        &mut self,
        now: Time,
        token: Token,
        mut answer: impl FnMut(ObserverRequest) -> ObserverAnswer,
    ) {
        let Some(observer) = self.connections.get_mut(&token) else { return };
        let mut serve = || -> io::Result<()> {
            // One that does not read what it asked for gets nothing more.
            while observer.control.connection.queued_bytes() == 0
                && let Some(request) = observer.control.receive()?
            {
                (observer.occupant.since, observer.occupant.has_begun) = (now, true);
                let reply = match request.is_command() && !observer.may_command() {
                    true => ObserverAnswer::Refused(NOT_ALLOWED.into()),
                    false => answer(request),
                };
                observer.control.send(&reply)?;
                observer.control.flush()?;
            }
            observer.control.flush()
        };
        if let Err(error) = serve() {
            tracing::debug!(target: "ringfold::master", "an observer is gone: {error}");
            self.connections.remove(&token);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let last = self.connections.values().map(|observer| observer.occupant.since).min();
        last.map(|since| since + limits::OBSERVER_IDLE_MAX)
    }

    /// Closes connections whose certificates were revoked.
    pub(super) fn dismiss_revoked(&mut self) {
        self.connections.retain(|_, observer| !is_revoked(&observer.control.connection));
    }

    /// Closes connections on which nothing is asked.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.connections.retain(|_, observer| observer.occupant.since + limits::OBSERVER_IDLE_MAX > now);
    }
}
