//! What observers and operators ask of a master, on connections of their own
//! ([`Purpose::Observe`](crate::hello::Purpose::Observe), [`Purpose::Admin`](crate::hello::Purpose::Admin)).

use crate::bounded::{Bounded, LimitExceeded};
use crate::limits;
use serde::{Deserialize, Serialize};

/// A question or a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObserverRequest {
    /// The status of the run.
    Status,
    /// Evict the peer with this name or id, for a reason. Needs [`Purpose::Admin`](crate::hello::Purpose::Admin).
    Evict {
        /// Its id or its name, or the beginning of one of them.
        peer: String,
        /// For the peer and the log.
        reason: String,
    },
    /// Refuse new peers, or accept them again. Needs [`Purpose::Admin`](crate::hello::Purpose::Admin).
    Drain {
        /// Whether to refuse them.
        on: bool,
    },
}

impl ObserverRequest {
    /// Whether it changes the run.
    pub fn is_command(&self) -> bool {
        !matches!(self, Self::Status)
    }
}

/// The answer of the master, one for each request, in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObserverAnswer {
    /// The status as a JSON object.
    Status(String),
    /// The command was carried out: what was done.
    Done(String),
    /// It was not: why.
    Refused(String),
}

impl Bounded for ObserverRequest {
    const BYTES_MAX: usize = 4 * limits::TEXT_BYTES_MAX;
    const DECODED_BYTES_MAX: usize = 4 * Self::BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        match self {
            Self::Status | Self::Drain { .. } => Ok(()),
            Self::Evict { peer, reason } => {
                check_text(peer, limits::TEXT_BYTES_MAX)?;
                check_text(reason, limits::TEXT_BYTES_MAX)
            }
        }
    }
}

impl Bounded for ObserverAnswer {
    const BYTES_MAX: usize = limits::CONTROL_BYTES_MAX;
    const DECODED_BYTES_MAX: usize = limits::CONTROL_DECODED_BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        match self {
            Self::Status(json) => check_text(json, limits::STATUS_BYTES_MAX),
            Self::Done(text) | Self::Refused(text) => check_text(text, limits::TEXT_BYTES_MAX),
        }
    }
}

fn check_text(text: &str, max: usize) -> Result<(), LimitExceeded> {
    match text.len() <= max {
        true => Ok(()),
        false => Err(LimitExceeded { what: "bytes of text", found: text.len(), max }),
    }
}
