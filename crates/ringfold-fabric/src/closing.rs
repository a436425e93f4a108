//! Connections that are over, but for their last words.
//!
//! A connection that is closed while input is unread takes back what it sent. So what is queued is sent, then the end
//! of it, and then what still arrives is read and dropped until the other end has closed too.

use crate::connection::Connection;
use crate::limits;
use crate::poller::Token;
use ringfold_proto::time::Time;
use std::collections::HashMap;
use std::io;

/// All of them; each has a deadline.
#[derive(Debug, Default)]
pub(crate) struct ClosingConnections {
    closing: HashMap<Token, Closing>,
}

#[derive(Debug)]
struct Closing {
    connection: Box<Connection>,
    deadline: Time,
    is_finished: bool,
}

impl ClosingConnections {
    /// Sends what is queued, within bounds of time, and closes. If too many are closing, the oldest is cut.
    pub(crate) fn close(&mut self, now: Time, connection: Connection) {
        if self.closing.len() >= limits::CLOSING_MAX
            && let Some(oldest) = self.closing.iter().min_by_key(|(_, c)| c.deadline).map(|(token, _)| *token)
        {
            self.closing.remove(&oldest);
        }
        let (token, deadline) = (connection.token(), now + limits::FAREWELL_MAX);
        let closing = Closing { connection: Box::new(connection), deadline, is_finished: false };
        self.closing.insert(token, closing);
        self.handle_ready(token);
    }

    /// Moves one on. Says whether the token is of one.
    pub(crate) fn handle_ready(&mut self, token: Token) -> bool {
        let Some(closing) = self.closing.get_mut(&token) else { return false };
        // Where it failed there is nobody left to tell, and where it has ended everything was told.
        if closing.advance().is_err() {
            self.closing.remove(&token);
        }
        true
    }

    /// Cuts those that took too long.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.closing.retain(|_, closing| closing.deadline > now);
    }

    /// When the next one will have taken too long.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.closing.values().map(|closing| closing.deadline).min()
    }
}

impl Closing {
    fn advance(&mut self) -> io::Result<()> {
        self.connection.flush(&mut Vec::new())?;
        if !self.is_finished && self.connection.queued_bytes() == 0 {
            self.connection.finish()?;
            self.is_finished = true;
        }
        self.connection.fill()?;
        self.connection.take(|input| *input = &[]);
        Ok(())
    }
}
