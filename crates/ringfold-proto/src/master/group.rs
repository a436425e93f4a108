//! The state of one peer group.

use super::network::{AdoptedNetwork, MeasuredPaths};
use super::recovery::LostState;
use super::reduce::OpRound;
use super::resumption::SuspendedOps;
use super::sync::SyncRound;
use crate::cause::Cause;
use crate::epoch::EpochDescription;
use crate::id::{OpId, PeerId, Revision, Seq, Tag};
use crate::round::Round;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The stage of a group's epoch.
#[derive(Debug, Default)]
pub(super) enum EpochStage {
    /// The members have changed; a new epoch must be proposed.
    #[default]
    Stale,
    /// The solver searches a ring without the failed edges.
    Solving { request: u64, deadline: Time },
    /// Members connect; each votes with the members that it could not reach.
    Proposed { description: EpochDescription, round: Round<BTreeSet<PeerId>>, deadline: Time },
    /// The group has no members.
    Empty,
    /// Operations may run.
    Open { description: EpochDescription },
}

#[derive(Debug, Default)]
pub(super) struct Group {
    pub stage: EpochStage,
    /// Why the last epoch ended.
    pub ended: Option<Cause>,
    /// Why the epoch before the open one ended, if it failed.
    pub began_after: Option<Cause>,
    /// The ring of the last epoch or of the solver, with new members at its end.
    pub ring: Vec<PeerId>,
    /// Undecided operations of the open epoch.
    pub ops: BTreeMap<(Tag, Seq), OpRound>,
    /// The next sequence number of each tag in the open epoch.
    pub decided: BTreeMap<Tag, Seq>,
    /// Operations of earlier epochs that members wait to resume.
    pub suspended: SuspendedOps,
    /// Pairs whose link failed, and until when they are not used.
    pub distrusted: BTreeMap<(PeerId, PeerId), Time>,
    /// No ring through all members is left: since when, and when that was found last. `None` after a committed operation.
    pub no_ring: Option<(Time, Time)>,
    /// Bytes per second from one peer to another; `None` if the probe failed.
    pub bandwidth: BTreeMap<(PeerId, PeerId), Option<u64>>,
    /// What members have measured.
    pub measured: MeasuredPaths,
    /// The network that plans of the open epoch are chosen for.
    pub plans: AdoptedNetwork,
    /// A ring that the solver found after the last optimisation had ended.
    pub better_ring: Option<Vec<PeerId>>,
    /// The request of the last optimisation, for later improvements.
    pub improving: Option<u64>,
    pub sync: Option<SyncRound>,
    /// Completed syncs.
    pub syncs: u64,
    /// The next revision; `None` before the first sync.
    pub next_revision: Option<Revision>,
    /// The next revision when the last member left: a later sync starts another run.
    pub ended_before: Option<Revision>,
    /// The members that completed the last sync, less those that left since.
    pub holders: usize,
    /// Set while no member holds the state of the last sync.
    pub lost: Option<LostState>,
    /// Until when a peer that comes back with a newer state than that of the run sets the run to it.
    pub newest_until: Option<Time>,
}

impl Group {
    pub fn open_epoch(&self) -> Option<&EpochDescription> {
        match &self.stage {
            EpochStage::Open { description } => Some(description),
            _ => None,
        }
    }

    /// The revision of the last sync.
    pub fn last_revision(&self) -> Option<Revision> {
        self.next_revision.map(|next| Revision(next.0.saturating_sub(1)))
    }

    /// Whether no sync was completed, in this run or an earlier one.
    pub fn is_new(&self) -> bool {
        self.syncs == 0 && self.next_revision.is_none() && self.ended_before.is_none()
    }

    /// Whether the pair is not used now.
    pub fn distrusts(&self, a: PeerId, b: PeerId) -> bool {
        self.distrusted.contains_key(&(a.min(b), a.max(b)))
    }

    pub fn distrust(&mut self, a: PeerId, b: PeerId, until: Time) {
        self.distrusted.insert((a.min(b), a.max(b)), until);
    }

    /// The number of other undecided operations that a peer has started.
    pub fn in_flight(&self, peer: PeerId, beside: OpId) -> usize {
        let others = self.ops.iter().filter(|(key, _)| **key != (beside.tag, beside.seq));
        others.filter(|(_, op)| op.started.contains_key(&peer)).count()
    }

    /// Removes a peer that departed.
    pub fn forget(&mut self, peer: PeerId) {
        self.ring.retain(|p| *p != peer);
        self.distrusted.retain(|(a, b), _| *a != peer && *b != peer);
        self.bandwidth.retain(|(a, b), _| *a != peer && *b != peer);
        self.measured.forget(peer);
        self.better_ring = None;
        self.improving = None;
        self.stage = EpochStage::Stale;
    }

    pub fn deadlines(&self) -> impl Iterator<Item = Time> + '_ {
        let stage = match &self.stage {
            EpochStage::Stale | EpochStage::Empty | EpochStage::Open { .. } => None,
            EpochStage::Solving { deadline, .. } | EpochStage::Proposed { deadline, .. } => Some(*deadline),
        };
        let ops = self.ops.values().map(|op| op.deadline);
        let lost = self.lost.as_ref().and_then(LostState::timeout);
        ops.chain(stage).chain(self.sync.as_ref().and_then(SyncRound::check_at)).chain(lost)
    }
}
