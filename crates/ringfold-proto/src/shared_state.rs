//! A group's shared state, as votes speak of it: keys and hashes, never contents.

use crate::cause::StateRejection;
use crate::dtype::DType;
use crate::id::{PeerId, Revision};
use serde::{Deserialize, Serialize};

/// Whether a peer stands for election, and whether it takes what was elected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum SyncStrategy {
    /// The most popular content wins.
    EnforcePopular = 0,
    /// Takes what others have, never stands.
    ReceiveOnly = 1,
    /// Must win; takes nothing.
    SendOnly = 2,
}

/// One tensor of the state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateEntry {
    /// The user's name for it.
    pub key: String,
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub count: u64,
    /// Peers may hold different contents; only a newcomer's first sync fetches it.
    pub allow_content_inequality: bool,
    /// The tree hash of the contents.
    pub hash: u128,
}

impl StateEntry {
    /// Whether two entries name the same tensor, whatever it holds.
    pub fn same_layout(&self, other: &Self) -> bool {
        self.key == other.key
            && self.dtype == other.dtype
            && self.count == other.count
            && self.allow_content_inequality == other.allow_content_inequality
    }
}

/// What a peer brings to a sync.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyncOffer {
    /// The revision it holds.
    pub revision: Revision,
    /// How it takes part.
    pub strategy: SyncStrategy,
    /// Its tensors, in its order.
    pub entries: Vec<StateEntry>,
}

/// What a peer shall do after the election.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SyncVerdict {
    /// Its offer does not fit; it takes no further part.
    Rejected(StateRejection),
    /// It holds, or shall fetch, the elected content.
    Elected(Assignment),
}

/// The elected revision, and what to fetch from whom.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Assignment {
    /// The elected revision.
    pub revision: Revision,
    /// The entries that this peer lacks; empty for holders.
    pub fetch: Vec<FetchItem>,
    /// Who holds the elected content, spread so that fetchers begin at different ones.
    pub sources: Vec<PeerId>,
    /// Who will fetch from this peer.
    pub fetchers: Vec<PeerId>,
}

/// One entry to fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FetchItem {
    /// The position in the peer's own list of entries.
    pub entry: u32,
    /// What its contents must hash to.
    pub hash: u128,
}
