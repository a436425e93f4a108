//! Operations of different tags that wait for each other after an epoch has failed.
//!
//! When an epoch ends, the operations that a member has started fail there, and those that it starts later belong to the next epoch.
//! So one member may wait in the operation of a tag for another one, which has seen it fail and makes the call again only
//! after its other calls have ended; and those may wait for the first one in the same way. A program that makes several calls,
//! waits for all and repeats what failed would wait until a deadline. All calls of such a circle fail instead, as those before
//! them did, and all members repeat them.

use super::Master;
use super::group::Group;
use super::reduce::OpRound;
use crate::event::Event;
use crate::id::{OpId, PeerId, Seq, Tag};
use crate::time::Time;
use std::collections::BTreeSet;

impl Master {
    /// Aborts operations that wait for each other in the first calls of an epoch that follows a failed one.
    pub(super) fn fail_out_of_step(&mut self, now: Time) {
        let mut found = Vec::new();
        for (id, group) in &self.groups {
            let (Some(epoch), Some(cause)) = (group.open_epoch(), &group.began_after) else { continue };
            let members: BTreeSet<_> = self.roster.members(*id).into_iter().collect();
            let waited = |op: &OpRound| op.round.opened + self.config.timing.warn_after <= now;
            for tag in circle(group, &members, waited) {
                found.push((OpId { epoch: epoch.id, tag, seq: Seq(0) }, cause.clone()));
            }
        }
        for (op, cause) in found {
            self.notify(Event::OutOfStep(op));
            self.fail_op(op, cause);
        }
    }
}

/// The tags whose first operations of the epoch wait for each other: each lacks a member that waits in another one of them.
fn circle(group: &Group, members: &BTreeSet<PeerId>, waited: impl Fn(&OpRound) -> bool) -> Vec<Tag> {
    let is_waiting = |op: &OpRound| op.failed.is_none() && waited(op) && !lacking(op, members).is_empty();
    let first = group.ops.iter().filter(|((_, seq), op)| *seq == Seq(0) && is_waiting(op));
    let waiting: Vec<(Tag, &OpRound)> = first.map(|((tag, _), op)| (*tag, op)).collect();
    let next = |at: usize| {
        let lacks = lacking(waiting[at].1, members);
        let holds = move |op: &OpRound| lacks.iter().any(|peer| op.started.contains_key(peer));
        let others = waiting.iter().enumerate().filter(move |(other, (_, op))| *other != at && holds(op));
        others.map(|(other, _)| other).collect::<Vec<_>>()
    };
    let is_in_circle = |start: usize| {
        let (mut seen, mut open) = (BTreeSet::new(), next(start));
        while let Some(at) = open.pop() {
            if at == start {
                return true;
            }
            if seen.insert(at) {
                open.extend(next(at));
            }
        }
        false
    };
    (0..waiting.len()).filter(|at| is_in_circle(*at)).map(|at| waiting[at].0).collect()
}

/// The members that have not started an operation.
fn lacking(op: &OpRound, members: &BTreeSet<PeerId>) -> Vec<PeerId> {
    members.iter().copied().filter(|peer| !op.started.contains_key(peer)).collect()
}
