//! Connections that are closed once what is queued was sent and acknowledged.

use crate::connection::Connection;
use crate::limits;
use crate::poller::Token;
use ringfold_proto::time::Time;
use std::collections::HashMap;

/// Closing connections, each with its deadline.
#[derive(Debug, Default)]
pub(crate) struct ClosingConnections(HashMap<Token, (Box<Connection>, Time)>);

impl ClosingConnections {
    /// Sends what is queued, for a limited time, and closes. If too many are closing, the oldest is cut.
    pub(crate) fn close(&mut self, now: Time, connection: Connection) {
        let oldest = self.0.iter().min_by_key(|(_, (_, deadline))| *deadline).map(|(token, _)| *token);
        if let Some(oldest) = oldest.filter(|_| self.0.len() >= limits::CLOSING_MAX) {
            self.0.remove(&oldest);
        }
        let token = connection.token();
        self.0.insert(token, (Box::new(connection), now + limits::FAREWELL_MAX));
        self.handle_ready(token);
    }

    /// Advances one. Returns whether the token belongs to one.
    pub(crate) fn handle_ready(&mut self, token: Token) -> bool {
        let Some((connection, _)) = self.0.get_mut(&token) else { return false };
        if connection.poll_acknowledged() {
            self.0.remove(&token);
        }
        true
    }

    /// Cuts those that took too long.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.0.retain(|_, (_, deadline)| *deadline > now);
    }

    /// The next deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.0.values().map(|(_, deadline)| *deadline).min()
    }
}
