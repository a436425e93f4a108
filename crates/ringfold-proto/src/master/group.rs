//! What the master keeps for one peer group.

use super::reduce::OpRound;
use super::sync::SyncRound;
use crate::cause::Cause;
use crate::epoch::EpochDescription;
use crate::id::{OpId, PeerId, Revision, Seq, Tag};
use crate::round::Round;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// How far the group's membership has come.
#[derive(Debug, Default)]
pub(super) enum EpochStage {
    /// The members have changed, and a new epoch is to be proposed.
    #[default]
    Stale,
    /// A solver looks for a ring without the edges that failed.
    Solving { request: u64, deadline: Time },
    /// Members are reaching for each other; each votes with those it could not reach.
    Proposed { description: EpochDescription, round: Round<BTreeSet<PeerId>>, deadline: Time },
    /// Nobody is in the group.
    Empty,
    /// Operations run.
    Open { description: EpochDescription },
}

#[derive(Debug, Default)]
pub(super) struct Group {
    pub stage: EpochStage,
    /// Why the last epoch ended.
    pub ended: Option<Cause>,
    /// The ring that the last epoch had or a solver found; members that left are skipped, newcomers
    /// come last.
    pub ring: Vec<PeerId>,
    /// Undecided operations of the open epoch.
    pub ops: BTreeMap<(Tag, Seq), OpRound>,
    /// How many operations of each tag were decided in the open epoch.
    pub decided: BTreeMap<Tag, Seq>,
    /// Pairs that could not reach each other, and until when they are not trusted.
    pub distrusted: BTreeMap<(PeerId, PeerId), Time>,
    /// Bytes per second from one peer to another; none where a probe failed.
    pub bandwidth: BTreeMap<(PeerId, PeerId), Option<u64>>,
    /// A ring that a solver found after the last optimisation had ended.
    pub better_ring: Option<Vec<PeerId>>,
    /// The ticket of the last optimisation's request, for improvements that come later.
    pub improving: Option<u64>,
    pub sync: Option<SyncRound>,
    /// Completed syncs.
    pub syncs: u64,
    /// The revision that comes next; none while nobody has synced.
    pub next_revision: Option<Revision>,
    /// The revision that would have come next when the last member said goodbye; what comes now is another run.
    pub ended_before: Option<Revision>,
}

impl Group {
    pub fn open_epoch(&self) -> Option<&EpochDescription> {
        match &self.stage {
            EpochStage::Open { description } => Some(description),
            _ => None,
        }
    }

    /// Whether two peers are not to be neighbours now.
    pub fn distrusts(&self, a: PeerId, b: PeerId) -> bool {
        self.distrusted.contains_key(&(a.min(b), a.max(b)))
    }

    pub fn distrust(&mut self, a: PeerId, b: PeerId, until: Time) {
        self.distrusted.insert((a.min(b), a.max(b)), until);
    }

    /// How many undecided operations beside this one a peer takes part in, as far as is known.
    pub fn in_flight(&self, peer: PeerId, beside: OpId) -> usize {
        let others = self.ops.iter().filter(|(key, _)| **key != (beside.tag, beside.seq));
        others.filter(|(_, op)| op.started.contains_key(&peer)).count()
    }

    /// Drops what is known of a peer that departed.
    pub fn forget(&mut self, peer: PeerId) {
        self.ring.retain(|p| *p != peer);
        self.distrusted.retain(|(a, b), _| *a != peer && *b != peer);
        self.bandwidth.retain(|(a, b), _| *a != peer && *b != peer);
        self.better_ring = None;
        self.improving = None;
        self.stage = EpochStage::Stale;
    }

    pub fn deadlines(&self) -> impl Iterator<Item = Time> + '_ {
        let stage = match &self.stage {
            EpochStage::Stale | EpochStage::Empty | EpochStage::Open { .. } => None,
            EpochStage::Solving { deadline, .. } => Some(*deadline),
            EpochStage::Proposed { deadline, .. } => Some(*deadline),
        };
        let ops = self.ops.values().map(|op| op.deadline);
        ops.chain(stage).chain(self.sync.as_ref().and_then(SyncRound::deadline))
    }
}
