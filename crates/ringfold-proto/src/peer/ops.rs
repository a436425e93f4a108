//! Collectives: started when an epoch is open, voted on when done, ended by the master's decision.

use super::calls::{CallKind, ReduceCall, ReduceProgress};
use super::epochs::RememberedOutcome;
use super::{Completion, Failure, Peer, PeerAction};
use crate::cause::{Cause, ProtocolViolation};
use crate::claim::Signature;
use crate::epoch::Attributes;
use crate::id::{OpId, PeerId, Seq};
use crate::limits;
use crate::message::{Ballot, Outcome, ToMaster};
use crate::time::Time;
use core::mem;
use std::sync::Arc;

impl Peer {
    /// The executor has this peer's result; with its digest, if the operation compares results.
    pub fn handle_op_done(&mut self, op: OpId, digest: Option<u64>) {
        self.vote_op(op, Ballot::Done { digest });
    }

    /// A payload of a peer does not match its checksum.
    pub fn handle_op_corrupted(&mut self, op: OpId, from: PeerId) {
        self.vote_op(op, Ballot::Corrupted { from });
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
        if let ReduceProgress::Suspending { .. } = &reduce.progress {
            return self.handle_op_suspended(op, None);
        }
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
        let done = matches!(reduce.progress, ReduceProgress::Voted { done: Some(_), .. });
        if !matches!(reduce.progress, ReduceProgress::Running { .. } | ReduceProgress::Voted { .. }) {
            return;
        }
        if let Outcome::Aborted(cause) = &outcome
            && self.suspend_op(op, cause)
        {
            return;
        }
        let Some((_, reduce)) = self.reduce_of(op) else { return };
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

    /// Suspends an operation if it lost a member and the others may resume it in the next epoch.
    pub(super) fn suspend_op(&mut self, op: OpId, cause: &Cause) -> bool {
        let is_whole = self.open.as_ref().is_some_and(|open| open.description.is_full_mesh());
        if !is_whole || !matches!(cause, Cause::PeerLost { .. }) {
            return false;
        }
        let Some((_, reduce)) = self.reduce_of(op) else { return false };
        if reduce.refused || !reduce.descriptor.is_resumable() {
            return false;
        }
        reduce.progress = ReduceProgress::Suspending { op, why: Failure::Aborted(Box::new(cause.clone())) };
        self.actions.push_back(PeerAction::SuspendOp(op));
        true
    }

    /// The executor has released the buffers of a suspended operation. It holds so many chunks of the contributions of each
    /// member; none if it cannot be resumed here.
    pub fn handle_op_suspended(&mut self, op: OpId, held: Option<Vec<(PeerId, u32)>>) {
        let Some((_, reduce)) = self.reduce_of(op) else { return };
        let ReduceProgress::Suspending { why, .. } = &reduce.progress else {
            // The call has failed meanwhile.
            return self.handle_op_released(op);
        };
        reduce.progress = ReduceProgress::Suspended { op, why: why.clone(), held: held.clone() };
        let descriptor = reduce.descriptor;
        if let Some(held) = held {
            self.send(ToMaster::Suspended { op, descriptor, held });
        }
        self.report_ready();
    }

    /// Fails the suspended operations: this peer is not a member of the next epoch.
    pub(super) fn give_up_suspended(&mut self) {
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            let CallKind::Reduce(reduce) = &self.calls[&id].kind else { continue };
            if let ReduceProgress::Suspending { why, .. } | ReduceProgress::Suspended { why, .. } =
                reduce.progress.clone()
            {
                self.visible = self.latest;
                self.fail_call(id, why);
            }
        }
    }

    /// Whether a suspended operation is not reported yet.
    pub(super) fn is_suspending(&self) -> bool {
        self.reduces().any(|reduce| matches!(reduce.progress, ReduceProgress::Suspending { .. }))
    }

    /// An epoch has opened: resumes the operations that its description names, and fails the other suspended ones.
    pub(super) fn end_suspensions(&mut self, now: Time) {
        let Some(open) = self.open.as_ref() else { return };
        let (epoch, resumed) = (open.description.id, open.description.resumed.clone());
        let announce_at = Some(now + self.config.timing.announce_after);
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            let Some(CallKind::Reduce(reduce)) = self.calls.get_mut(&id).map(|call| &mut call.kind) else {
                continue;
            };
            let (ReduceProgress::Suspending { op: before, why }
            | ReduceProgress::Suspended { op: before, why, .. }) = reduce.progress.clone()
            else {
                continue;
            };
            let is_free = matches!(reduce.progress, ReduceProgress::Suspended { held: Some(_), .. });
            match resumed.iter().find(|resumed| resumed.op == before && is_free) {
                Some(resumed) => {
                    let op = OpId { epoch, tag: reduce.tag, seq: Seq(0) };
                    reduce.progress = ReduceProgress::Running { op, announce_at };
                    let (descriptor, held) = (reduce.descriptor, resumed.held.as_slice().into());
                    self.actions.push_back(PeerAction::ResumeOp { op, call: id, descriptor, held });
                }
                None => {
                    self.visible = self.latest;
                    self.fail_call(id, why);
                }
            }
        }
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
            ReduceProgress::Running { .. } => Some(match ballot {
                Ballot::Done { digest } => Some(digest),
                _ => None,
            }),
            ReduceProgress::Voted { ballot: Ballot::Done { .. }, done, .. } => {
                (ballot == Ballot::TimedOut).then_some(*done)
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
