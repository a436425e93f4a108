//! Who is in an epoch, as the executor is told.

use crate::limits;
use crate::shape::GroupShape;
use ringfold_proto::id::{PeerId, Rank};
use ringfold_proto::tuning::Tuning;

/// The members of one epoch, and what they agreed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// All members, in rank order.
    pub members: Vec<PeerId>,
    /// Which of them we are.
    pub me: Rank,
    /// How they are linked. The executor only keeps it, for whoever makes plans.
    pub shape: GroupShape,
    /// What they agreed on.
    pub tuning: Tuning,
}

impl Membership {
    /// Members that are linked pairwise, with the bounded form of a tuning.
    pub fn uniform(members: Vec<PeerId>, me: Rank, tuning: Tuning) -> Self {
        let shape = GroupShape::uniform(members.len());
        Self { members, me, shape, tuning: tuning.bounded() }
    }

    /// Whether the parts fit together.
    pub(super) fn is_sound(&self) -> bool {
        let world = self.members.len();
        let mut sorted = self.members.clone();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.len() == world && world <= limits::WORLD_MAX && self.me.index() < world
    }
}
