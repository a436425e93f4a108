//! Collectives: started when an epoch is open, voted on when done, ended by the master's decision.

use super::calls::{CallKind, ReduceCall, ReduceProgress};
use super::epochs::RememberedOutcome;
use super::{Completion, Failure, Peer, PeerAction};
use crate::cause::ProtocolViolation;
use crate::claim::Signature;
use crate::epoch::Attributes;
use crate::id::{OpId, PeerId, Seq};
use crate::limits;
use crate::message::{Ballot, Outcome, ToMaster};
use crate::time::Time;
use core::mem;
use std::sync::Arc;

impl Peer {
    /// The executor has this peer's result.
    pub fn handle_op_done(&mut self, op: OpId) {
        self.vote_op(op, Ballot::Done { digest: None });
    }

    /// The executor rejected the operation, and will not report its release.
    pub fn handle_op_refused(&mut self, op: OpId) {
        if let Some((_, reduce)) = self.reduce_of(op) {
            reduce.refused = true;
            self.vote_op(op, Ballot::Unable);
        }
    }

    /// The executor has the operation, and will never complete it: votes it down.
    pub fn handle_op_failed(&mut self, op: OpId) {
        self.vote_op(op, Ballot::Unable);
    }

    /// A peer's frames do not match the arguments of this peer.
    pub fn handle_op_mismatch(&mut self, op: OpId, from: PeerId) {
        self.vote_op(op, Ballot::Differs { from });
    }

    /// The executor has released the buffers of an operation.
    pub fn handle_op_released(&mut self, op: OpId) {
        let Some((call, reduce)) = self.reduce_of(op) else { return };
        let ReduceProgress::Releasing { result, .. } = &reduce.progress else { return };
        let result = result.clone().map(|world| Completion::Reduced { world });
        self.complete(call, result);
    }

    pub(super) fn handle_decided(
        &mut self,
        op: OpId,
        outcome: Outcome,
        attributes: Attributes,
        signature: Option<Box<Signature>>,
    ) {
        let Some(open) = self.open.as_mut().filter(|o| o.description.id == op.epoch) else { return };
        let members = open.description.members.clone();
        let world = members.len() as u32;
        let record = open.tags.entry(op.tag).or_default();
        if op.seq < record.next {
            // A master that restored the run has signed it again.
            let same = |known: &&mut RememberedOutcome| {
                known.seq == op.seq && mem::discriminant(&known.outcome) == mem::discriminant(&outcome)
            };
            if let Some(known) = record.remembered.iter_mut().find(same) {
                (known.outcome, known.signature) = (outcome, signature);
            }
            return;
        }
        record.next = Seq(op.seq.0.saturating_add(1));
        if let Outcome::Committed { network } = &outcome {
            // All voters of this one know the outcomes before it.
            record.remembered.clear();
            let valid = network.as_ref().filter(|network| network.is_valid_for(world as usize));
            record.network = valid.map(|network| Arc::new((**network).clone())).or(record.network.take());
        }
        record.remembered.push_back(RememberedOutcome { seq: op.seq, outcome: outcome.clone(), signature });
        if record.remembered.len() > limits::OUTCOMES_REMEMBERED_MAX {
            record.remembered.pop_front();
        }
        let Some((_, reduce)) = self.reduce_of(op) else {
            return self.actions.push_back(PeerAction::SkipOp(op));
        };
        let done = matches!(reduce.progress, ReduceProgress::Voted { done: true, .. });
        if matches!(reduce.progress, ReduceProgress::Releasing { .. }) {
            return;
        }
        let (result, action) = match outcome {
            Outcome::Committed { .. } if done => (Ok(world), PeerAction::CommitOp(op)),
            Outcome::Committed { .. } => {
                return self.end_membership(Failure::master_misbehaved(ProtocolViolation::PrematureCommit));
            }
            Outcome::Aborted(cause) => (Err(Failure::Aborted(Box::new(cause))), PeerAction::AbortOp(op)),
        };
        // Set at the decision, not at the release: all peers receive decisions in the same order.
        let (visible, members) = match &result {
            Ok(_) => (attributes.with_group_world(world), Some(members)),
            Err(_) => (attributes, None),
        };
        reduce.progress = ReduceProgress::Releasing { op, result };
        let refused = reduce.refused;
        self.visible = visible;
        if let Some(members) = members {
            self.visible_members = members;
        }
        if refused {
            return self.handle_op_released(op);
        }
        self.actions.push_back(action);
    }

    /// Starts the waiting collectives if an epoch is open.
    pub(super) fn start_waiting_ops(&mut self, now: Time) {
        let Some(open) = self.open.as_ref().filter(|o| !o.ended) else { return };
        let world = open.description.members.len();
        let epoch = open.description.id;
        let announce_at = Some(now + self.config.timing.announce_after);
        let mut too_few = Vec::new();
        for (id, call) in &mut self.calls {
            let CallKind::Reduce(reduce) = &mut call.kind else { continue };
            let ReduceCall { tag, descriptor, progress: ReduceProgress::WaitingForEpoch, .. } = *reduce
            else {
                continue;
            };
            if world < 2 {
                too_few.push(*id);
                continue;
            }
            let record = open.tags.get(&tag);
            let seq = record.map_or(Seq(0), |record| record.next);
            let network = record.and_then(|record| record.network.clone());
            let op = OpId { epoch, tag, seq };
            reduce.progress = ReduceProgress::Running { op, announce_at };
            self.actions.push_back(PeerAction::StartOp { op, call: *id, descriptor, network });
        }
        for call in too_few {
            self.show_latest();
            self.complete(call, Err(Failure::TooFewPeers));
        }
    }

    /// Announces long operations to the master, so that it can tell who waits for whom.
    pub(super) fn announce_ops(&mut self, now: Time) {
        let mut due = Vec::new();
        for call in self.calls.values_mut() {
            let CallKind::Reduce(reduce) = &mut call.kind else { continue };
            if let ReduceProgress::Running { op, announce_at } = &mut reduce.progress
                && announce_at.take_if(|at| *at <= now).is_some()
            {
                due.push((*op, reduce.descriptor));
            }
        }
        for (op, descriptor) in due {
            self.send(ToMaster::Started { op, descriptor });
        }
    }

    /// Votes once. Only a timeout may follow a "done".
    pub(super) fn vote_op(&mut self, op: OpId, ballot: Ballot) {
        let Some((_, reduce)) = self.reduce_of(op) else { return };
        let done = match &reduce.progress {
            ReduceProgress::Running { .. } => Some(matches!(ballot, Ballot::Done { .. })),
            ReduceProgress::Voted { ballot: Ballot::Done { .. }, .. } => {
                (ballot == Ballot::TimedOut).then_some(true)
            }
            _ => None,
        };
        if let Some(done) = done {
            reduce.progress = ReduceProgress::Voted { op, done, ballot: ballot.clone() };
            let descriptor = reduce.descriptor;
            self.send(ToMaster::OpVote { op, descriptor, ballot });
        }
    }
}
