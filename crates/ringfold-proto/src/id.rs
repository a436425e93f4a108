//! Identifiers, each a type of its own.
#![allow(missing_docs)] // Fields are named for what they hold.

use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty), $format:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    )*};
}

ids! {
    /// A peer during one membership: random, chosen by the peer, never reused.
    PeerId(u128), "peer-{:032x}";
    /// A run. A restarted master does not know it, so members are identified by their epochs.
    RunId(u128), "run-{:032x}";
    /// A training replica of several peers: random and new whenever it starts.
    ReplicaId(u128), "replica-{:032x}";
    /// A peer group. Its members reduce together and share one state.
    GroupId(u32), "group {}";
    /// One master process: random, so that nothing from before a restart is mistaken for new.
    Incarnation(u64), "{:016x}";
    /// The time in which one of several masters leads. Higher terms are later, and each belongs to one master.
    Term(u64), "term {}";
    /// The user's number of a sequence of collectives.
    Tag(u64), "tag {}";
    /// The number of operations of this tag that were decided before in this epoch.
    Seq(u64), "seq {}";
    /// A member's position in its group's member order.
    Rank(u16), "rank {}";
    /// A connection, numbered by the driver and never reused.
    ConnId(u64), "connection {}";
    /// The version of a group's shared state.
    Revision(u64), "revision {}";
    /// A call of a user.
    CallId(u64), "call {}";
}

impl Rank {
    /// The rank as an index into a per-rank table.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The rank for an index into a per-rank table.
    ///
    /// # Panics
    /// If the index is not below [`crate::limits::WORLD_MAX`]. Received worlds are checked before.
    pub fn from_index(index: usize) -> Self {
        assert!(index < crate::limits::WORLD_MAX, "rank {index} is beyond the largest world");
        Self(index as u16)
    }
}

impl PeerId {
    /// The first eight hex digits, for logs.
    pub fn short(self) -> String {
        format!("{:08x}", (self.0 >> 96) as u32)
    }
}

/// An epoch of a group. Never reused (R1): the counter increases within an incarnation, which is random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct EpochId {
    pub group: GroupId,
    pub incarnation: Incarnation,
    /// Increases with every epoch of this incarnation, over all groups.
    pub counter: u64,
}

impl fmt::Display for EpochId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} epoch {}@{:04x}", self.group, self.counter, self.incarnation.0 & 0xffff)
    }
}

/// One collective operation (R1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct OpId {
    pub epoch: EpochId,
    pub tag: Tag,
    /// Its number among the operations of the tag in the epoch.
    pub seq: Seq,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} in {}", self.tag, self.seq, self.epoch)
    }
}
