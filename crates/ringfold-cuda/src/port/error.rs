//! Errors of ports and connections.

use crate::CudaError;
use std::io;

/// Why an operation on a port or connection failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// An operation of a device failed.
    #[error("{0}")]
    Cuda(#[from] CudaError),
    /// An argument is invalid. Nothing was done.
    #[error("{0}")]
    Argument(String),
    /// The peer died, left, or is unreachable.
    #[error("{} is lost: {why}", RankName(*peer))]
    Lost {
        /// The peer's rank.
        peer: i32,
        /// The reason.
        why: String,
    },
    /// The peer did not act in time. The wait may be repeated.
    #[error("timed out waiting for {} to {awaited}", RankName(*peer))]
    Timeout {
        /// The peer's rank.
        peer: i32,
        /// The awaited action.
        awaited: String,
    },
    /// This process or a peer aborted the port.
    #[error("the port was aborted: {0}")]
    Aborted(String),
    /// A system call failed.
    #[error("{what}")]
    System {
        /// The operation and the reason.
        what: String,
        /// The errno, or 0.
        code: i32,
    },
    /// This machine, device or build does not support the operation.
    #[error("{0}")]
    Unsupported(String),
}

impl PortError {
    /// The category: `cuda`, `argument`, `lost`, `timeout`, `aborted`, `system` or `unsupported`.
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

    /// The error code of the driver or the operating system, or 0.
    pub fn code(&self) -> i32 {
        match self {
            Self::Cuda(error) => error.code(),
            Self::System { code, .. } => *code,
            _ => 0,
        }
    }

    pub(crate) fn system(what: &str, error: &io::Error) -> Self {
        Self::System { what: format!("{what}: {error}"), code: error.raw_os_error().unwrap_or(0) }
    }
}

/// Displays a rank; negative numbers are peers without a rank.
struct RankName(i32);

impl core::fmt::Display for RankName {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.0 < 0 { out.write_str("the peer") } else { write!(out, "rank {}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_rank_and_the_category() {
        let lost = PortError::Lost { peer: 3, why: "it died".into() };
        assert_eq!((lost.to_string().as_str(), lost.kind()), ("rank 3 is lost: it died", "lost"));
        let late = PortError::Timeout { peer: -1, awaited: "connect".into() };
        assert_eq!(late.to_string(), "timed out waiting for the peer to connect");
        let system = PortError::system("a port", &io::Error::from_raw_os_error(24));
        assert_eq!((system.kind(), system.code()), ("system", 24));
    }
}
