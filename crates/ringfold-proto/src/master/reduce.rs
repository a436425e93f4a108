//! The outcome of collectives: decided once per operation (R6). The data flows without the master.

use super::Master;
use crate::cause::{Cause, Departure, ProtocolViolation, WaitingPeer};
use crate::claim::Claim;
use crate::descriptor::Descriptor;
use crate::event::Event;
use crate::id::{GroupId, OpId, PeerId, Seq, Tag};
use crate::integrity::Dissent;
use crate::limits;
use crate::message::{Ballot, Outcome, ToPeer};
use crate::round::Round;
use crate::time::Time;
use std::collections::BTreeMap;

/// An undecided operation. Only "done" votes are collected; any other vote aborts it.
#[derive(Debug)]
pub(super) struct OpRound {
    /// The digests of the results, if the operation compares them.
    pub round: Round<Option<u64>>,
    /// The earliest deadline of all participants; it holds for all (R6).
    pub deadline: Time,
    /// The peers that have started it, as far as is known, with their arguments.
    pub started: BTreeMap<PeerId, Descriptor>,
    /// Pairs of a peer and another one whose arguments differ, where those of the second are not known yet.
    pub differing: Vec<(PeerId, PeerId)>,
    /// Set if it must be aborted.
    pub failed: Option<Cause>,
}

impl OpRound {
    /// The members that others wait for: those that have not started it. If all have, those that are not done.
    pub fn missing_peers(&self, members: impl IntoIterator<Item = PeerId>) -> Vec<PeerId> {
        let missing = self.round.missing(members);
        let absent: Vec<_> = missing.iter().copied().filter(|p| !self.started.contains_key(p)).collect();
        if absent.is_empty() { missing } else { absent }
    }
}

impl Master {
    /// Handles the vote of a peer that has ended its part of an operation.
    pub(super) fn handle_op_vote(
        &mut self,
        now: Time,
        peer: PeerId,
        op: OpId,
        descriptor: Descriptor,
        ballot: Ballot,
    ) {
        if !self.record_participant(now, peer, op, descriptor) {
            return;
        }
        let Some(round) = self.groups.get_mut(&op.epoch.group).and_then(|g| g.ops.get_mut(&(op.tag, op.seq)))
        else {
            return;
        };
        match ballot {
            Ballot::Done { digest } => _ = round.round.vote(peer, digest),
            Ballot::Corrupted { from } => {
                let cause = Cause::Corrupted { from: self.peer_name(from), to: self.peer_name(peer) };
                self.fail_op(op, cause);
            }
            Ballot::Differs { from } => match round.started.get(&from).copied() {
                Some(other) => {
                    let cause = self.mismatch((peer, descriptor), (from, other));
                    self.fail_op(op, cause);
                }
                // Its own message is in transit; then the error can name both arguments.
                None if self.roster.is_accepted(from)
                    && self.roster.group_of(from) == Some(op.epoch.group) =>
                {
                    if !round.differing.contains(&(peer, from)) {
                        round.differing.push((peer, from));
                    }
                }
                // It is no member, so its arguments will never be known.
                None => self.fail_op(op, Cause::Unable { who: self.peer_name(peer) }),
            },
            Ballot::LinkBroken { with } => {
                let cause = Cause::LinkLost { from: self.peer_name(peer), to: self.peer_name(with) };
                self.fail_op(op, cause);
            }
            Ballot::Unable => {
                let who = self.peer_name(peer);
                self.fail_op(op, Cause::Unable { who });
            }
            Ballot::TimedOut => {
                let members = self.roster.members(op.epoch.group).into_iter();
                let others = round.missing_peers(members.filter(|member| *member != peer));
                // If all others are done, the peer waited for its own result.
                let late = if others.is_empty() { vec![peer] } else { others };
                let begun = late.iter().all(|peer| round.started.contains_key(peer));
                let call = (round.call(op.tag), round.round.opened);
                let wait = self.wait_for(now, Some(call), &late, begun);
                self.fail_op(op, Cause::Timeout(wait));
            }
        }
    }

    /// Decides operations that have failed or are complete.
    pub(super) fn advance_ops(&mut self) -> bool {
        if self.restoration.is_some() {
            return false;
        }
        let mut decided = Vec::new();
        for (id, group) in &self.groups {
            let Some(epoch) = group.open_epoch() else { continue };
            // Members of the group are members of its open epoch.
            let world = self.roster.group_world(*id);
            for ((tag, seq), op) in &group.ops {
                let living = epoch.members.iter().map(|m| m.peer).filter(|p| self.roster.is_accepted(*p));
                let outcome = match &op.failed {
                    Some(cause) => Outcome::Aborted(cause.clone()),
                    None if op.round.has(world) && op.round.is_complete(living) => {
                        self.commit_unless_differing(op.round.votes())
                    }
                    None => continue,
                };
                decided.push((OpId { epoch: epoch.id, tag: *tag, seq: *seq }, outcome));
            }
        }
        let any = !decided.is_empty();
        for (op, outcome) in decided {
            self.decide(op, outcome);
        }
        any
    }

    /// The outcome of an operation that is done on all peers, with the digests of their results.
    pub(super) fn commit_unless_differing(&self, digests: &BTreeMap<PeerId, Option<u64>>) -> Outcome {
        match Dissent::of(digests) {
            None => Outcome::COMMITTED,
            Some(Dissent { who, agree }) => {
                Outcome::Aborted(Cause::ResultsDiffer { who: self.peer_names(&who), agree })
            }
        }
    }

    /// Aborts every undecided operation of a group (R6).
    pub(super) fn abort_all_ops(&mut self, id: GroupId, cause: &Cause) {
        let Some(group) = self.groups.get(&id) else { return };
        let Some(epoch) = group.open_epoch().map(|d| d.id) else { return };
        let undecided: Vec<_> =
            group.ops.keys().map(|(tag, seq)| OpId { epoch, tag: *tag, seq: *seq }).collect();
        for op in undecided {
            self.decide(op, Outcome::Aborted(cause.clone()));
        }
    }

    pub(super) fn expire_ops(&mut self, now: Time) {
        let mut expired = Vec::new();
        for (id, group) in &self.groups {
            let Some(epoch) = group.open_epoch().map(|d| d.id) else { continue };
            for ((tag, seq), op) in group.ops.iter().filter(|(_, op)| op.deadline <= now) {
                let missing = op.missing_peers(self.roster.members(*id));
                let begun = missing.iter().all(|peer| op.started.contains_key(peer));
                let wait = self.wait_for(now, Some((op.call(*tag), op.round.opened)), &missing, begun);
                expired.push((OpId { epoch, tag: *tag, seq: *seq }, Cause::Timeout(wait)));
            }
        }
        for (op, cause) in expired {
            self.fail_op(op, cause);
        }
    }

    pub(super) fn fail_op(&mut self, op: OpId, cause: Cause) {
        if let Some(round) = self.op_mut(op) {
            round.failed.get_or_insert(cause);
        }
    }

    /// Sends the outcome to the whole group, also to peers that have not called, so that `seq` stays equal.
    pub(super) fn decide(&mut self, op: OpId, outcome: Outcome) {
        let outcome = self.with_newer_network(op, outcome);
        let attributes = self.attributes(op.epoch.group);
        let Some(group) = self.groups.get_mut(&op.epoch.group) else { return };
        let decided = group.ops.remove(&(op.tag, op.seq));
        let descriptor = decided.as_ref().and_then(|op| op.started.values().next());
        let bytes = descriptor.map_or(0, |d| d.count.saturating_mul(d.dtype.bytes() as u64));
        let next = group.decided.entry(op.tag).or_default();
        *next = (*next).max(Seq(op.seq.0 + 1));
        if matches!(outcome, Outcome::Committed { .. }) {
            group.no_ring = None;
        }
        let members = group.open_epoch().map(|d| d.members.iter().map(|m| m.peer).collect::<Vec<_>>());
        self.notify(Event::OpDecided { op, outcome: outcome.clone(), bytes });
        let signature = self.config.signer.sign(Claim::Decided(op, &outcome));
        self.send_all(members.unwrap_or_default(), &ToPeer::Decided { op, outcome, attributes, signature });
    }

    fn mismatch(&self, one: (PeerId, Descriptor), other: (PeerId, Descriptor)) -> Cause {
        let waiting = |(peer, what): (PeerId, Descriptor)| WaitingPeer {
            who: self.peer_name(peer),
            call: what.to_string(),
        };
        Cause::Mismatch { one: waiting(one), other: waiting(other) }
    }

    /// Records that a peer takes part. False if the operation is decided or invalid.
    pub(super) fn record_participant(
        &mut self,
        now: Time,
        peer: PeerId,
        op: OpId,
        descriptor: Descriptor,
    ) -> bool {
        let timeout = self.config.timing.timeout(descriptor.deadline_ms);
        let Some(group) = self.groups.get_mut(&op.epoch.group) else { return false };
        let is_in_epoch = self.roster.get(peer).is_some_and(|record| record.is_in(op.epoch));
        if !is_in_epoch || group.open_epoch().is_none_or(|d| d.id != op.epoch) {
            // Of an earlier epoch. The peer learns its outcome from the proposal of the new one.
            return false;
        }
        let next = group.decided.get(&op.tag).copied().unwrap_or_default();
        if op.seq < next {
            return false;
        }
        if op.seq > next {
            self.remove(peer, Departure::Misbehaved(ProtocolViolation::Sequence { op, next }));
            return false;
        }
        if group.ops.len() >= limits::OPS_IN_FLIGHT_MAX
            && group.in_flight(peer, op) >= limits::OPS_IN_FLIGHT_MAX
        {
            self.remove(peer, Departure::Misbehaved(ProtocolViolation::TooManyOperations));
            return false;
        }
        let known = group.decided.contains_key(&op.tag) || group.ops.contains_key(&(op.tag, op.seq));
        if !known && group.decided.len() + group.ops.len() >= limits::TAGS_PER_EPOCH_MAX {
            // A new epoch forgets the tags.
            self.end_epoch(op.epoch.group, &Cause::EpochEnded);
            return false;
        }
        group.plans.note_descriptor(&descriptor);
        let round = group.ops.entry((op.tag, op.seq)).or_insert_with(|| OpRound {
            round: Round::new(now),
            deadline: now + timeout,
            started: BTreeMap::new(),
            differing: Vec::new(),
            failed: None,
        });
        round.deadline = round.deadline.min(round.round.opened + timeout);
        // The arguments of all who have started it agree, or it has failed: the first ones stand for all.
        let first = round.started.iter().next().filter(|(_, d)| d.shared() != descriptor.shared());
        let reported = round.differing.iter().filter(|(_, other)| *other == peer);
        let reported =
            reported.filter_map(|(by, _)| round.started.get_key_value(by)).min_by_key(|(p, _)| **p);
        let differing = first.or(reported).map(|(p, d)| (*p, *d));
        round.started.insert(peer, descriptor);
        if let Some(other) = differing {
            let cause = self.mismatch(other, (peer, descriptor));
            self.fail_op(op, cause);
        }
        true
    }

    fn op_mut(&mut self, op: OpId) -> Option<&mut OpRound> {
        let key: (Tag, Seq) = (op.tag, op.seq);
        self.groups.get_mut(&op.epoch.group)?.ops.get_mut(&key)
    }
}
