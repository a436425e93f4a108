//! How something between two ports fails, and whose fault it is.

use crate::CudaError;
use std::io;

/// Why something on a port, or on a connection of it, did not happen.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The driver of a device refused.
    #[error("{0}")]
    Cuda(#[from] CudaError),
    /// The caller's fault: an argument can't be used. Nothing was done.
    #[error("{0}")]
    Argument(String),
    /// The other side died, left, or can't be reached.
    #[error("{} is lost: {why}", Peer(*peer))]
    Lost {
        /// Its rank.
        peer: i32,
        /// In words.
        why: String,
    },
    /// The other side did not do its part in time. Nothing is broken: it may be waited for again.
    #[error("waited in vain for {} to {awaited}", Peer(*peer))]
    Timeout {
        /// Its rank.
        peer: i32,
        /// What it was to do.
        awaited: String,
    },
    /// Somebody gave the port up.
    #[error("the port was given up: {0}")]
    Aborted(String),
    /// The operating system refused something.
    #[error("{what}")]
    System {
        /// In words.
        what: String,
        /// Its number for that, or 0.
        code: i32,
    },
    /// This machine, device or build can't do that.
    #[error("{0}")]
    Unsupported(String),
}

impl PortError {
    /// What sort of failure it is, in a word: `cuda`, `argument`, `lost`, `timeout`, `aborted`, `system` or `unsupported`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Cuda(error) => error.kind(),
            Self::Argument(_) => "argument",
            Self::Lost { .. } => "lost",
            Self::Timeout { .. } => "timeout",
            Self::Aborted(_) => "aborted",
            Self::System { .. } => "system",
            Self::Unsupported(_) => "unsupported",
        }
    }

    /// The number that the driver or the operating system gave, or 0.
    pub fn code(&self) -> i32 {
        match self {
            Self::Cuda(error) => error.code(),
            Self::System { code, .. } => *code,
            _ => 0,
        }
    }

    /// A failed system call, and what it was for.
    pub(crate) fn system(what: &str, error: &io::Error) -> Self {
        Self::System { what: format!("{what}: {error}"), code: error.raw_os_error().unwrap_or(0) }
    }
}

/// A rank as one says it; those that have none are below zero.
struct Peer(i32);

impl core::fmt::Display for Peer {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.0 < 0 { out.write_str("the other side") } else { write!(out, "rank {}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_rank_and_its_kind() {
        let lost = PortError::Lost { peer: 3, why: "it died".into() };
        assert_eq!((lost.to_string().as_str(), lost.kind()), ("rank 3 is lost: it died", "lost"));
        let late = PortError::Timeout { peer: -1, awaited: "connect".into() };
        assert_eq!(late.to_string(), "waited in vain for the other side to connect");
        let system = PortError::system("a port", &io::Error::from_raw_os_error(24));
        assert_eq!((system.kind(), system.code()), ("system", 24));
    }
}
