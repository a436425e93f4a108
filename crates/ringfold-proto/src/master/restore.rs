//! A restarted master restores the run from what its members report (R8).
//!
//! An outcome that a member has seen is kept. An operation without such an outcome is committed if all returned members
//! have done it, continues if all members of its epoch returned, and is aborted otherwise.

use super::group::{EpochStage, Group};
use super::reduce::OpRound;
use super::roster::{PeerRecord, PeerStatus};
use super::{Master, MasterAction};
use crate::cause::{Cause, Departure, JoinRejection, PeerName, ProtocolViolation};
use crate::claim::Claim;
use crate::epoch::{EpochDescription, Member};
use crate::event::Event;
use crate::id::{ConnId, EpochId, GroupId, Incarnation, OpId, PeerId, Revision, Seq, Tag};
use crate::limits;
use crate::message::{
    EpochRecord, OpProgress, OpRecord, Outcome, Phase, Replica, Resume, RoundNumbers, ToPeer,
};
use crate::round::Round;
use crate::session::{Session, encoded_bytes};
use crate::time::Time;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// Lists of members of one epoch that another one is compared with.
const LISTS_COMPARED_MAX: usize = 8;

/// The phase from the return of the first member until the run continues.
#[derive(Debug)]
pub(super) struct Restoration {
    pub deadline: Time,
    /// The members as another master knew them.
    known: BTreeSet<PeerId>,
    pub returned: BTreeMap<PeerId, Resume>,
    /// The largest world that a returned peer knows.
    expected: usize,
}

impl Restoration {
    /// Keeps one list of members for all peers that report the same: each names all of them.
    fn share_members(&self, resume: &mut Resume) {
        for EpochRecord { description, .. } in &mut resume.epochs {
            let known = self.returned.values().flat_map(|r| &r.epochs).map(|epoch| &epoch.description);
            let mut known = known.filter(|known| known.id == description.id).take(LISTS_COMPARED_MAX);
            if let Some(same) = known.find(|known| known.members == description.members) {
                let decoded = |m: &Member| size_of::<Member>() + size_of_val(&m.addresses[..]);
                let bytes = description.members.iter().map(decoded).sum::<usize>();
                let bytes = bytes + encoded_bytes(&description.members);
                resume.held_bytes = resume.held_bytes.saturating_sub(bytes);
                description.members = same.members.clone();
            }
        }
    }
}

/// The world that a peer knows.
fn world_of(resume: &Resume) -> usize {
    resume.attributes.global_world as usize
}

impl Master {
    /// A peer returns: on another connection, or from an earlier incarnation.
    pub(super) fn handle_resume(
        &mut self,
        now: Time,
        conn: ConnId,
        peer: PeerId,
        mut resume: Resume,
        replica: Option<Replica>,
    ) {
        let is_known = resume.incarnation == self.incarnation && self.roster.get(peer).is_some();
        if is_known {
            return self.rebind(now, conn, peer, Some(resume.received));
        }
        if !resume.epochs.iter().any(|r| r.opened) {
            // It was registered and not accepted: nothing of it has to be restored.
            let returns = resume.incarnation != self.incarnation;
            if returns || replica.is_none() {
                return self.handle_join(now, conn, peer, resume.join, replica, returns);
            }
            // Its replica was lost with it.
        }
        if resume.incarnation == self.incarnation {
            return self.reject_join(conn, JoinRejection::WasRemoved);
        }
        let repeats_all =
            |r: &PeerRecord| r.status == PeerStatus::Accepted && r.session.is_all_unacknowledged();
        if self.restored && self.roster.get(peer).is_some_and(repeats_all) {
            return self.rebind(now, conn, peer, None);
        }
        let too_late = self.started.is_some_and(|s| s + self.config.timing.restore_window <= now);
        // If the members are known, those that missed the restoration were evicted when an epoch followed.
        let is_evicted = self.heirs.as_ref().is_some_and(|h| self.epoch_counter > 0 || !h.contains(&peer));
        if self.restored || too_late || is_evicted {
            return self.reject_join(conn, JoinRejection::TooLate);
        }
        let sound =
            |r: &EpochRecord| r.description.is_valid_for(peer) && r.description.id.group == resume.join.group;
        if !resume.epochs.iter().all(sound) {
            return self.reject_join(conn, JoinRejection::Misbehaved(ProtocolViolation::Epoch));
        }
        let is_replica_valid = |r: Replica| (1..=limits::REPLICA_RANKS_MAX).contains(&r.ranks);
        if !is_plausible(&resume) || !replica.is_none_or(is_replica_valid) {
            return self.reject_join(conn, JoinRejection::Misbehaved(ProtocolViolation::Counters));
        }
        let returned = self.restoration.as_ref().map(|r| &r.returned);
        if returned.is_some_and(|r| r.len() >= limits::WORLD_MAX && !r.contains_key(&peer)) {
            return self.reject_join(conn, JoinRejection::RunFull);
        }
        if self.restoration.as_ref().is_none_or(|r| r.returned.is_empty()) {
            self.begin_restoration(now, resume.incarnation);
        }
        if let Some(old) = self.roster.get(peer).and_then(|r| r.conn).filter(|old| *old != conn) {
            self.actions.push_back(MasterAction::Close { conn: old });
        }
        self.roster.insert(PeerRecord {
            peer,
            conn: Some(conn),
            session: Session::default(),
            join: resume.join.clone(),
            replica,
            status: PeerStatus::Returned,
            seniority: resume.seniority,
            heard_at: now,
            outdated_before: 0,
            synced: resume.synced,
            fetched: None,
            had_epoch: true,
            seat: None,
            ended_links: BTreeSet::new(),
        });
        self.rejected.remove(&peer);
        self.suspects.remove(&peer);
        self.notify(Event::Returned(self.peer_name(peer)));
        self.send(peer, ToPeer::Restoring { incarnation: self.incarnation });
        if let Some(restoration) = &mut self.restoration {
            restoration.expected = restoration.expected.max(world_of(&resume));
            restoration.share_members(&mut resume);
            restoration.returned.insert(peer, resume);
        }
    }

    /// Waits for the members of an earlier incarnation, and accepts no others meanwhile. If they are known, only `heirs` may
    /// return.
    pub fn expect_members(&mut self, now: Time, members: &[PeerId], heirs: Option<BTreeSet<PeerId>>) {
        self.started.get_or_insert(now);
        let has_none = heirs.is_some() && members.is_empty();
        self.heirs = heirs;
        if has_none {
            return;
        }
        let deadline = now + self.config.timing.restore_grace;
        self.restoration = Some(Restoration {
            deadline,
            known: members.iter().copied().collect(),
            returned: BTreeMap::new(),
            expected: 0,
        });
    }

    /// Drops a returned peer that departed again.
    pub(super) fn forget_returned(&mut self, peer: PeerId) {
        if let Some(restoration) = &mut self.restoration {
            restoration.returned.remove(&peer);
            restoration.expected = restoration.returned.values().map(world_of).max().unwrap_or(0);
        }
    }

    pub(super) fn advance_restoration(&mut self, now: Time) -> bool {
        let Some(restoration) = &self.restoration else { return false };
        let returned = &restoration.returned;
        if returned.is_empty() || returned.len() < restoration.expected {
            return false;
        }
        let mut members =
            returned.values().flat_map(|r| &r.epochs).flat_map(|e| e.description.members.iter());
        // One that had not opened its first epoch joins again.
        let all_heard = restoration.known.iter().all(|p| self.roster.get(*p).is_some());
        if !all_heard || members.any(|member| !returned.contains_key(&member.peer)) {
            return false;
        }
        self.finish_restoration(now);
        true
    }

    pub(super) fn expire_restoration(&mut self, now: Time) {
        if self.restoration.as_ref().is_some_and(|r| r.deadline <= now) {
            self.finish_restoration(now);
        }
    }

    /// Continues a session on another connection, and repeats the messages after `received`. `None` repeats all, for a
    /// member that returned and lost its connection before it heard that the run continues.
    fn rebind(&mut self, now: Time, conn: ConnId, peer: PeerId, received: Option<u64>) {
        self.suspects.remove(&peer);
        let Some(record) = self.roster.get_mut(peer) else { return };
        let old = record.conn.replace(conn).filter(|old| *old != conn);
        record.heard_at = now;
        let rebound = ToPeer::Rebound { received: record.session.received() };
        let rebound = received.map(|_| record.session.unnumbered(rebound));
        let missed = record.session.unacknowledged_after(received.unwrap_or(0));
        self.actions.extend(old.map(|conn| MasterAction::Close { conn }));
        let send = |message| MasterAction::Send { conn, message: Box::new(message) };
        self.actions.extend(rebound.into_iter().chain(missed).map(send));
        self.notify(Event::Reconnected(self.peer_name(peer)));
    }

    /// Members of an earlier incarnation return: peers that were accepted meanwhile wait again.
    fn begin_restoration(&mut self, now: Time, of: Incarnation) {
        self.notify(Event::RestoreBegan(of));
        for peer in self.roster.accepted().collect::<Vec<_>>() {
            self.demote(peer);
        }
        self.votes.clear();
        (self.admitting, self.optimising) = (None, None);
        self.rounds = RoundNumbers::default();
        self.groups.clear();
        let deadline = now + self.config.timing.restore_grace;
        let known = self.restoration.take().map(|r| r.known).unwrap_or_default();
        self.restoration = Some(Restoration { deadline, known, returned: BTreeMap::new(), expected: 0 });
    }

    /// Lets a member wait again. What it sent before it knows that is ignored.
    pub(super) fn demote(&mut self, peer: PeerId) {
        self.roster.set_status(peer, PeerStatus::Pending);
        self.clear_rejected(peer);
        if let Some(record) = self.roster.get_mut(peer) {
            record.synced = None;
        }
        self.notify(Event::Demoted(self.peer_name(peer)));
        self.send(peer, ToPeer::Demoted);
        if let Some(record) = self.roster.get_mut(peer) {
            record.outdated_before = record.session.sent();
        }
    }

    fn finish_restoration(&mut self, now: Time) {
        let Some(Restoration { mut returned, .. }) = self.restoration.take() else { return };
        self.restored = !returned.is_empty();
        self.evict_outsiders(&mut returned);
        for peer in returned.keys() {
            self.roster.set_status(*peer, PeerStatus::Accepted);
            if let Some(record) = self.roster.get_mut(*peer) {
                record.heard_at = now;
            }
        }
        self.announce_members(&[]);
        self.notify(Event::RestoreEnded(returned.len()));
        for resume in returned.values() {
            for phase in Phase::RUN_WIDE {
                if phase == Phase::Pending && resume.rounds.pending >= self.rounds.pending {
                    self.last_pending = resume.last_pending;
                }
                let count = self.rounds.of_mut(phase);
                *count = (*count).max(resume.rounds.of(phase));
            }
            let counters = resume.epochs.iter().map(|e| e.description.id.counter);
            self.epoch_counter = counters.fold(self.epoch_counter, u64::max);
        }
        let groups: BTreeSet<_> = returned.values().map(|r| r.join.group).collect();
        for id in groups {
            let of_group: BTreeMap<_, _> = returned.iter().filter(|(_, r)| r.join.group == id).collect();
            self.restore_group(now, id, &of_group);
        }
        self.remove_incomplete_replicas();
    }

    /// Evicts peers that an earlier incarnation had evicted, and that do not know it yet.
    fn evict_outsiders(&mut self, returned: &mut BTreeMap<PeerId, Resume>) {
        let lineage = lineage(returned);
        let mut newest: BTreeMap<GroupId, &EpochDescription> = BTreeMap::new();
        let mut rounds = RoundNumbers::default();
        for resume in returned.values().filter(|r| lineage.contains(&r.incarnation)) {
            for record in resume.epochs.iter().filter(|e| e.opened) {
                let known = newest.entry(resume.join.group).or_insert(&record.description);
                if record.description.id.counter > known.id.counter {
                    *known = &record.description;
                }
            }
            for phase in Phase::RUN_WIDE {
                *rounds.of_mut(phase) = rounds.of(phase).max(resume.rounds.of(phase));
            }
        }
        let is_member = |peer: PeerId, r: &Resume| {
            lineage.contains(&r.incarnation)
                && newest.get(&r.join.group).is_some_and(|d| d.rank_of(peer).is_some())
                // A member can have missed the end of one round at most.
                && Phase::RUN_WIDE.into_iter().all(|p| r.rounds.of(p) + 1 >= rounds.of(p))
        };
        let outsiders: Vec<_> =
            returned.iter().filter(|(p, r)| !is_member(**p, r)).map(|(p, _)| *p).collect();
        returned.retain(|peer, _| !outsiders.contains(peer));
        // Their replicas are removed when the run is restored.
        self.remove_all(outsiders.into_iter().map(|peer| (peer, Departure::EvictedBefore)).collect());
    }

    fn restore_group(&mut self, now: Time, id: GroupId, returned: &BTreeMap<&PeerId, &Resume>) {
        let records = || returned.values().flat_map(|r| &r.epochs);
        let Some(newest) =
            records().filter(|e| e.opened).map(|e| &e.description).max_by_key(|d| d.id.counter)
        else {
            return;
        };
        // A later proposal means that the epoch had ended, even if no other was opened.
        let ended = records().any(|e| e.description.id.counter > newest.id.counter);
        let kept = !ended && newest.members.iter().all(|m| returned.contains_key(&m.peer));
        let last = returned.values().filter_map(|r| r.synced).max();
        let mut group = Group {
            ring: newest.ring.iter().filter_map(|r| newest.members.get(r.index())).map(|m| m.peer).collect(),
            syncs: returned.values().map(|r| r.rounds.sync).max().unwrap_or(0),
            next_revision: last.map(|r| Revision(r.0.saturating_add(1))),
            holders: returned.values().filter(|r| last.is_some() && r.synced == last).count(),
            ..Group::default()
        };
        let absent: Vec<_> = newest.members.iter().filter(|m| !returned.contains_key(&m.peer)).collect();
        let cause = absent.first().map_or(Cause::EpochEnded, |m| Cause::PeerLost {
            who: PeerName { peer: m.peer, name: m.name.clone() },
            how: Departure::NotReturned,
        });
        let mut decisions = Vec::new();
        let commit = |digests: &_| self.commit_unless_differing(digests);
        for epoch in records().map(|e| e.description.id).collect::<BTreeSet<_>>() {
            let continues = kept && epoch == newest.id;
            let wait = now..now + self.config.timing.wait_max;
            decisions.extend(decide_epoch_ops(epoch, returned, continues, &cause, wait, &commit, &mut group));
        }
        if kept {
            self.notify(Event::EpochKept(newest.id));
            self.roster.seat(newest);
            group.stage = EpochStage::Open { description: newest.clone() };
        }
        group.ring.retain(|p| returned.contains_key(p));
        self.groups.insert(id, group);
        self.send_restored(id, returned, decisions);
        if kept {
            self.announce_open(id, newest);
        }
    }

    fn send_restored(
        &mut self,
        id: GroupId,
        returned: &BTreeMap<&PeerId, &Resume>,
        decisions: Vec<(OpId, Outcome)>,
    ) {
        let (rounds, last_pending, attributes) = (self.rounds_of(id), self.last_pending, self.attributes(id));
        for peer in returned.keys() {
            self.send(**peer, ToPeer::Restored { incarnation: self.incarnation, rounds, last_pending });
        }
        for (op, outcome) in decisions {
            self.notify(Event::OpDecided { op, outcome: outcome.clone(), bytes: 0 });
            let signature = self.config.signer.sign(Claim::Decided(op, &outcome));
            let message = ToPeer::Decided { op, outcome, attributes, signature };
            for (peer, resume) in returned {
                if resume.epochs.iter().any(|e| e.description.id == op.epoch) {
                    self.send(**peer, message.clone());
                }
            }
        }
    }
}

/// Whether all counters are far from an overflow.
fn is_plausible(resume: &Resume) -> bool {
    let rounds = Phase::ALL.into_iter().map(|phase| resume.rounds.of(phase));
    let counters = resume.epochs.iter().map(|e| e.description.id.counter);
    let seqs = resume.epochs.iter().flat_map(|e| &e.ops).map(|op| op.seq.0);
    rounds.chain(counters).chain(seqs).chain([resume.seniority]).all(|n| n <= limits::COUNTER_MAX)
}

/// The incarnations whose members belong together: the one that most members returned from, and the one that it took the
/// run over from, because some members may not have heard of the later one.
fn lineage(returned: &BTreeMap<PeerId, Resume>) -> BTreeSet<Incarnation> {
    let incarnations: BTreeSet<_> = returned.values().map(|r| r.incarnation).collect();
    let lineage_of = |incarnation: &Incarnation| -> BTreeSet<Incarnation> {
        let before = returned.values().filter(|r| r.incarnation == *incarnation).filter_map(|r| r.previous);
        before.chain([*incarnation]).collect()
    };
    let size = |lineage: &BTreeSet<Incarnation>| {
        let members = returned.values().filter(|r| lineage.contains(&r.incarnation)).count();
        (members, lineage.len())
    };
    incarnations.iter().map(lineage_of).max_by_key(size).unwrap_or_default()
}

/// Decides the operations of one epoch, or restores them undecided if the epoch continues.
fn decide_epoch_ops(
    epoch: EpochId,
    returned: &BTreeMap<&PeerId, &Resume>,
    continues: bool,
    cause: &Cause,
    wait: Range<Time>,
    commit: &impl Fn(&BTreeMap<PeerId, Option<u64>>) -> Outcome,
    group: &mut Group,
) -> Vec<(OpId, Outcome)> {
    let mut ops: BTreeMap<(Tag, Seq), Vec<(PeerId, &OpRecord)>> = BTreeMap::new();
    let (mut members, mut decisions) = (Vec::new(), Vec::new());
    for (peer, resume) in returned {
        if let Some(record) = resume.epochs.iter().find(|e| e.description.id == epoch) {
            members.push(**peer);
            for op in &record.ops {
                ops.entry((op.tag, op.seq)).or_default().push((**peer, op));
            }
        }
    }
    let decided = |r: &OpRecord| matches!(r.progress, OpProgress::Decided(_));
    let known = ops.iter().filter(|(_, records)| records.iter().any(|(_, r)| decided(r)));
    let last_decided: BTreeMap<Tag, Seq> = known.map(|((tag, seq), _)| (*tag, *seq)).collect();
    for ((tag, seq), records) in ops {
        let seen = records.iter().find_map(|(_, r)| match &r.progress {
            OpProgress::Decided(outcome) => Some(outcome.clone()),
            _ => None,
        });
        let done: BTreeMap<_, _> =
            records.iter().filter_map(|(p, r)| r.progress.done().map(|digest| (*p, digest))).collect();
        let all_done = members.iter().all(|p| done.contains_key(p));
        // The result of one member alone was compared with none.
        let is_compared = done.len() > 1 || done.values().all(Option::is_none);
        let outcome = match seen {
            Some(outcome) => outcome,
            None if all_done && is_compared => commit(&done),
            // If a later one was decided, this one was decided too, and no member saw it committed.
            None if continues && last_decided.get(&tag).is_none_or(|last| seq > *last) => {
                let mut round = Round::new(wait.start);
                done.iter().for_each(|(p, digest)| _ = round.vote(*p, *digest));
                let started = records.iter().filter_map(|(p, r)| r.descriptor.map(|d| (*p, d))).collect();
                group.ops.insert(
                    (tag, seq),
                    OpRound { round, deadline: wait.end, started, differing: Vec::new(), failed: None },
                );
                continue;
            }
            None => Outcome::Aborted(cause.clone()),
        };
        decisions.push((OpId { epoch, tag, seq }, outcome));
        if continues {
            let next = group.decided.entry(tag).or_default();
            *next = (*next).max(Seq(seq.0 + 1));
        }
    }
    decisions
}
