//! The shared state of a group in messages: keys and hashes, never contents.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::cause::StateRejection;
use crate::dtype::DType;
use crate::id::{PeerId, Revision};
use serde::{Deserialize, Serialize};

/// How a peer takes part in a sync.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum SyncStrategy {
    /// The most common content is elected.
    EnforcePopular = 0,
    /// Receives the elected content, and cannot be elected.
    ReceiveOnly = 1,
    /// Must be elected; receives nothing.
    SendOnly = 2,
}

/// One tensor of the state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateEntry {
    pub key: String,
    pub dtype: DType,
    pub count: u64,
    /// Whether peers may hold different contents. Then only the first sync of a new peer fetches it.
    pub allow_content_inequality: bool,
    /// The tree hash of the contents.
    pub hash: u128,
}

impl StateEntry {
    /// Whether two entries are equal except for their contents.
    pub fn same_layout(&self, other: &Self) -> bool {
        self.key == other.key
            && self.dtype == other.dtype
            && self.count == other.count
            && self.allow_content_inequality == other.allow_content_inequality
    }
}

/// What a peer offers in a sync.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyncOffer {
    pub revision: Revision,
    pub strategy: SyncStrategy,
    /// Its tensors, in its order.
    pub entries: Vec<StateEntry>,
}

/// The result of an election for one peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SyncVerdict {
    Rejected(StateRejection),
    Elected(Assignment),
}

/// The elected revision, and what to fetch from whom.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Assignment {
    pub revision: Revision,
    /// The entries that this peer lacks; empty for holders.
    pub fetch: Vec<FetchItem>,
    /// The holders of the elected content, in a different order for each fetcher.
    pub sources: Vec<PeerId>,
    /// The peers that will fetch from this peer.
    pub fetchers: Vec<PeerId>,
}

/// One entry to fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FetchItem {
    /// Its index in the peer's entries.
    pub entry: u32,
    pub hash: u128,
}
