//! Operations that survivors of a lost member resume in the next epoch.
//!
//! A resumable operation that loses a member is aborted as any other (R6), but its survivors keep the call, and report what
//! they hold before they are ready for the next epoch. If all members of that epoch have reported, its description says that
//! the operation is resumed, as a new one with a new id (R1). Otherwise all survivors fail their calls when the epoch opens.

use super::Master;
use crate::descriptor::Descriptor;
use crate::epoch::{EpochDescription, ResumedOp};
use crate::event::Event;
use crate::id::{GroupId, OpId, PeerId};
use crate::limits;
use std::collections::BTreeMap;

/// What a peer holds of an operation.
#[derive(Debug)]
struct Holding {
    descriptor: Descriptor,
    chunks: BTreeMap<PeerId, u32>,
}

/// The operations of a group that peers wait to resume.
#[derive(Debug, Default)]
pub(super) struct SuspendedOps {
    by_op: BTreeMap<OpId, BTreeMap<PeerId, Holding>>,
}

impl SuspendedOps {
    /// The operations that all members can resume.
    fn resumed(&self, description: &EpochDescription) -> Vec<ResumedOp> {
        if !description.is_full_mesh() || description.members.len() < 2 {
            return Vec::new();
        }
        let resumed = self.by_op.iter().filter_map(|(op, reports)| {
            let reports = description.members.iter().map(|member| reports.get(&member.peer));
            let reports = reports.collect::<Option<Vec<&Holding>>>()?;
            let first = reports[0].descriptor.shared();
            if reports.iter().any(|report| report.descriptor.shared() != first) {
                return None;
            }
            let held = reports.iter().flat_map(|report| {
                description.members.iter().map(|member| report.chunks.get(&member.peer).copied())
            });
            Some(ResumedOp { op: *op, held: held.collect::<Option<_>>()? })
        });
        let mut resumed: Vec<_> = resumed.collect();
        // Each is the first operation of its tag.
        resumed.sort_by_key(|resumed| resumed.op.tag);
        resumed.dedup_by_key(|resumed| resumed.op.tag);
        resumed.truncate(limits::RESUMED_OPS_MAX);
        resumed
    }
}

impl Master {
    /// A member waits to resume an operation.
    pub(super) fn handle_suspended(
        &mut self,
        peer: PeerId,
        op: OpId,
        descriptor: Descriptor,
        held: Vec<(PeerId, u32)>,
    ) {
        let is_member = self.roster.is_accepted(peer) && self.roster.group_of(peer) == Some(op.epoch.group);
        let Some(group) = self.groups.get_mut(&op.epoch.group).filter(|_| is_member) else { return };
        // Those of the open epoch are decided, or another proposal follows.
        if group.open_epoch().is_some() || !descriptor.is_resumable() {
            return;
        }
        let reported = group.suspended.by_op.values().filter(|reports| reports.contains_key(&peer)).count();
        if reported < limits::RESUMED_OPS_MAX {
            let holding = Holding { descriptor, chunks: held.into_iter().collect() };
            group.suspended.by_op.entry(op).or_default().insert(peer, holding);
        }
    }

    /// The operations that an epoch which opens resumes. The others are given up.
    pub(super) fn resumed_ops(&mut self, id: GroupId, description: &EpochDescription) -> Vec<ResumedOp> {
        let Some(group) = self.groups.get_mut(&id) else { return Vec::new() };
        let resumed = core::mem::take(&mut group.suspended).resumed(description);
        for resumed in &resumed {
            self.notify(Event::OpResumed { op: resumed.op, epoch: description.id });
        }
        resumed
    }
}
