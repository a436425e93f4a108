//! How much goes from whom to whom, where a collective's parts are not all equal.

use ringfold_proto::id::Rank;
use std::sync::Arc;

/// The sizes of parts, in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Layout {
    /// The whole is cut into one part per rank, as equal as can be.
    #[default]
    Even,
    /// Each rank's part has its own size, which all ranks know. They add up to the descriptor's count.
    Parts(Arc<[u64]>),
    /// Each pair of ranks has its own size, which only those two know: what this rank sends to each, and what it
    /// gets from each. The descriptor's count is 0, since it must be equal on all ranks. Parts lie behind each
    /// other in the order of ranks.
    Pairs {
        /// To each rank, oneself included.
        send: Arc<[u64]>,
        /// From each rank, oneself included.
        receive: Arc<[u64]>,
    },
}

impl Layout {
    /// Elements that this rank sends to another, if the sizes of pairs are its own affair.
    pub fn sends(&self, to: Rank) -> Option<u64> {
        match self {
            Self::Pairs { send, .. } => send.get(to.index()).copied(),
            _ => None,
        }
    }

    /// Elements that this rank gets from another, likewise.
    pub fn receives(&self, from: Rank) -> Option<u64> {
        match self {
            Self::Pairs { receive, .. } => receive.get(from.index()).copied(),
            _ => None,
        }
    }
}
