//! Names for things: peers, groups, epochs, operations.
//!
//! Every identifier is a newtype, so that the compiler tells a tag from a sequence number.

use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

id!(
    /// A peer for as long as it is connected to a run: random, made by the peer, never reused.
    PeerId(u128), "peer-{:032x}"
);
id!(
    /// One training run, where both ends know it. A master that takes over from an earlier life does not, so members are
    /// known by their epochs.
    RunId(u128), "run-{:032x}"
);
id!(
    /// A peer group: its members reduce with each other and share one state.
    GroupId(u32), "group {}"
);
id!(
    /// One life of a master: random, so that nothing from before a restart is mistaken for new.
    Incarnation(u64), "{:016x}"
);
id!(
    /// The user's name for a stream of all-reduces; each tag has its own sequence.
    Tag(u64), "tag {}"
);
id!(
    /// How many operations of this tag were decided in this epoch before this one.
    Seq(u64), "seq {}"
);
id!(
    /// A member's position in its group's member order.
    Rank(u16), "rank {}"
);
id!(
    /// A peer's request to its master, numbered per session from 1; a repeated number is a repeat of the request.
    RequestId(u64), "request {}"
);
id!(
    /// A connection as its driver numbers it; a number is never used twice by one machine.
    ConnId(u64), "connection {}"
);
id!(
    /// The version of a group's shared state.
    Revision(u64), "revision {}"
);
id!(
    /// A call of the user into the peer machine.
    CallId(u64), "call {}"
);

impl Rank {
    /// The rank as an index into a per-rank table.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The rank for an index into a per-rank table.
    ///
    /// # Panics
    /// If the index is not below [`crate::limits::WORLD_MAX`]; worlds are checked against it on entry.
    pub fn from_index(index: usize) -> Self {
        assert!(index < crate::limits::WORLD_MAX, "rank {index} is beyond the largest world");
        Self(index as u16)
    }
}

impl PeerId {
    /// The first eight hex digits: enough for a log line.
    pub fn short(self) -> String {
        format!("{:08x}", (self.0 >> 96) as u32)
    }
}

/// One membership of one group. Never reused (R1): the counter rises within an incarnation, and the
/// incarnation is random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct EpochId {
    /// The peer group that this is a membership of.
    pub group: GroupId,
    /// The life of the master that opened it.
    pub incarnation: Incarnation,
    /// Rises with every epoch that this incarnation opens, over all groups.
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
    /// The membership it runs in.
    pub epoch: EpochId,
    /// The user's tag.
    pub tag: Tag,
    /// The position among the operations of that tag in that epoch.
    pub seq: Seq,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} in {}", self.tag, self.seq, self.epoch)
    }
}
