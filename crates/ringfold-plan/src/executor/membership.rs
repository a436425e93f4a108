//! The members of an epoch.

use crate::limits;
use crate::shape::GroupShape;
use ringfold_proto::id::{PeerId, Rank};
use ringfold_proto::tuning::Tuning;

/// The members of an epoch, its shape and tuning.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// All members, in rank order.
    pub members: Vec<PeerId>,
    pub me: Rank,
    /// The links. The executor stores it for the planner.
    pub shape: GroupShape,
    pub tuning: Tuning,
}

impl Membership {
    /// Members with all links; the tuning is clamped to its bounds.
    pub fn uniform(members: Vec<PeerId>, me: Rank, tuning: Tuning) -> Self {
        let shape = GroupShape::uniform(members.len());
        Self { members, me, shape, tuning: tuning.bounded() }
    }

    /// Whether the members are distinct, not too many, and include this peer.
    pub(super) fn is_valid(&self) -> bool {
        let world = self.members.len();
        let mut sorted = self.members.clone();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.len() == world && world <= limits::WORLD_MAX && self.me.index() < world
    }
}
