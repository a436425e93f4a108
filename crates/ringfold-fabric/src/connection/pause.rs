//! A direction of a connection that waits for bandwidth.

use crate::poller::{Poller, Token};
use crate::traffic::Direction;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// A pause in one direction. While it is set, the poller reports its end and not the socket.
#[derive(Debug)]
pub(super) struct Pause {
    poller: Arc<Poller>,
    token: Token,
    direction: Direction,
    is_set: bool,
}

impl Pause {
    pub(super) fn none(poller: &Arc<Poller>, token: Token, direction: Direction) -> Self {
        Self { poller: poller.clone(), token, direction, is_set: false }
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set
    }

    /// Sets it until a time, or ends it. Returns the bytes that may be moved now.
    pub(super) fn apply(&mut self, allowance: Result<usize, Instant>) -> io::Result<usize> {
        match allowance {
            Ok(bytes) => {
                self.end();
                Ok(bytes)
            }
            Err(until) => {
                self.poller.pause(self.token, self.direction, until)?;
                self.is_set = true;
                Ok(0)
            }
        }
    }

    pub(super) fn end(&mut self) {
        if core::mem::take(&mut self.is_set) {
            self.poller.resume(self.token, self.direction);
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.end();
    }
}
