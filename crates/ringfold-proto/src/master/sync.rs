//! Syncs of shared state: collect offers, elect one content, let peers fetch it, increment the revision.

use super::Master;
use super::election::{Candidate, Election, ElectionInput, RecoveryRule, elect};
use super::group::Group;
use super::phase::VoteCall;
use super::recovery::LostState;
use crate::cause::{JointCall, StateRejection};
use crate::event::Event;
use crate::id::{GroupId, PeerId, Revision};
use crate::message::{Answer, Phase, ToPeer};
use crate::recovery::Recover;
use crate::round::Round;
use crate::shared_state::{StateEntry, SyncOffer, SyncVerdict};
use crate::time::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// The stage of a sync.
#[derive(Debug)]
enum SyncStage {
    /// Offers are collected.
    Offer { offers: Round<(VoteCall, SyncOffer)>, order: Vec<PeerId> },
    /// The elected content is transferred; each peer votes with whether it is complete.
    Transfer {
        revision: Revision,
        done: Round<bool>,
        calls: BTreeMap<PeerId, VoteCall>,
        rejected: BTreeMap<PeerId, StateRejection>,
    },
}

/// One sync of one group.
#[derive(Debug)]
pub(super) struct SyncRound {
    stage: SyncStage,
    /// No vote has an earlier deadline.
    check_at: Time,
    /// The peers that start no collective until it ends.
    excluding: BTreeSet<PeerId>,
}

impl SyncRound {
    pub fn new(now: Time) -> Self {
        let stage = SyncStage::Offer { offers: Round::new(now), order: Vec::new() };
        Self { stage, check_at: Time(u64::MAX), excluding: BTreeSet::new() }
    }

    pub fn offer(&mut self, peer: PeerId, vote: VoteCall, offer: SyncOffer, excludes_collectives: bool) {
        match excludes_collectives {
            true => self.excluding.insert(peer),
            false => self.excluding.remove(&peer),
        };
        if let SyncStage::Offer { offers, order } = &mut self.stage {
            self.check_at = self.check_at.min(vote.deadline);
            if offers.vote(peer, (vote, offer)).is_some() {
                order.retain(|p| *p != peer);
            }
            order.push(peer);
        }
    }

    /// Bytes of the offer of a peer, while offers are collected.
    pub fn offered_bytes(&self, peer: PeerId) -> usize {
        let entries =
            self.offers().and_then(|offers| offers.votes().get(&peer)).map(|(_, offer)| &offer.entries);
        let bytes = |entry: &StateEntry| size_of::<StateEntry>() + entry.key.len();
        entries.map_or(0, |entries| entries.iter().map(bytes).sum())
    }

    pub fn withdraw_offer(&mut self, peer: PeerId) -> Option<VoteCall> {
        let SyncStage::Offer { offers, order } = &mut self.stage else { return None };
        order.retain(|p| *p != peer);
        offers.withdraw(peer).map(|(vote, _)| vote)
    }

    /// Drops a peer that departed.
    pub fn forget(&mut self, peer: PeerId) {
        self.withdraw_offer(peer);
        if let SyncStage::Transfer { done, calls, .. } = &mut self.stage {
            done.withdraw(peer);
            calls.remove(&peer);
        }
    }

    /// Fails the peers that have not completed their fetches, so that the others need not wait.
    fn fail_fetchers(&mut self) {
        if let SyncStage::Transfer { done, calls, .. } = &mut self.stage {
            for peer in done.missing(calls.keys().copied()) {
                done.vote(peer, false);
            }
        }
    }

    /// When a warning about missing offers is due.
    pub fn warn_at(&self, wait: Duration) -> Option<Time> {
        match &self.stage {
            SyncStage::Offer { offers, .. } => Some(offers.warn_at(wait)),
            SyncStage::Transfer { .. } => None,
        }
    }

    /// Whether a warning about missing offers is due; if so, counts it.
    pub fn take_warning(&mut self, now: Time, wait: Duration) -> bool {
        match &mut self.stage {
            SyncStage::Offer { offers, .. } => offers.take_warning(now, wait),
            SyncStage::Transfer { .. } => false,
        }
    }

    /// While offers are collected: since when, the peers that have offered, and those of these members that have not.
    pub fn offered(&self, members: &[PeerId]) -> Option<(Time, Vec<PeerId>, Vec<PeerId>)> {
        let offers = self.offers()?;
        let missing = offers.missing(members.iter().copied());
        Some((offers.opened, offers.votes().keys().copied().collect(), missing))
    }

    /// Whether a peer fetches, or serves, the elected content.
    pub fn is_transferring(&self, peer: PeerId) -> bool {
        match &self.stage {
            SyncStage::Offer { .. } => false,
            SyncStage::Transfer { done, calls, .. } => {
                calls.contains_key(&peer) && done.vote_of(peer).is_none()
            }
        }
    }

    /// The peers that have offered and wait for others.
    pub fn offering(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.offers().into_iter().flat_map(|offers| offers.votes().keys().copied())
    }

    /// Of them those that start no collective meanwhile.
    pub fn offering_exclusively(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.offering().filter(|peer| self.excluding.contains(peer))
    }

    /// Whether a peer has offered and waits for others.
    pub fn is_offering(&self, peer: PeerId) -> bool {
        self.offers().is_some_and(|offers| offers.vote_of(peer).is_some())
    }

    fn offers(&self) -> Option<&Round<(VoteCall, SyncOffer)>> {
        match &self.stage {
            SyncStage::Offer { offers, .. } => Some(offers),
            SyncStage::Transfer { .. } => None,
        }
    }

    pub fn is_idle(&self) -> bool {
        match &self.stage {
            SyncStage::Offer { offers, .. } => offers.is_empty(),
            SyncStage::Transfer { calls, .. } => calls.is_empty(),
        }
    }

    /// When to look for votes whose deadline has passed.
    pub fn check_at(&self) -> Option<Time> {
        (!self.is_idle()).then_some(self.check_at)
    }

    fn deadline(&self) -> Option<Time> {
        match &self.stage {
            SyncStage::Offer { offers, .. } => offers.votes().values().map(|(vote, _)| vote.deadline).min(),
            // Catches fetches that never end; dead sources are detected by their silence.
            SyncStage::Transfer { calls, .. } => calls.values().map(|vote| vote.deadline).min(),
        }
    }
}

impl Master {
    pub(super) fn handle_sync_done(&mut self, peer: PeerId, round: u64, complete: bool) {
        let Some(id) = self.roster.group_of(peer) else { return };
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.syncs + 1 != round {
            return;
        }
        if let Some(SyncRound { stage: SyncStage::Transfer { done, calls, .. }, .. }) = &mut group.sync
            && calls.contains_key(&peer)
        {
            done.vote(peer, complete);
        }
    }

    pub(super) fn advance_sync(&mut self, now: Time) -> bool {
        if self.restoration.is_some() {
            return false;
        }
        let ids: Vec<_> = self.groups.keys().copied().collect();
        ids.into_iter().any(|id| self.advance_group_sync(now, id))
    }

    pub(super) fn expire_sync(&mut self, now: Time) {
        let mut expired = Vec::new();
        for group in self.groups.values_mut() {
            let Some(sync) = group.sync.as_mut().filter(|s| s.deadline().is_some_and(|d| d <= now)) else {
                continue;
            };
            sync.fail_fetchers();
        }
        for (id, group) in &self.groups {
            let Some(SyncRound { stage: SyncStage::Offer { offers, .. }, .. }) = &group.sync else {
                continue;
            };
            let overdue = offers.votes().iter().filter(|(_, (vote, _))| vote.deadline <= now);
            let overdue: Vec<_> = overdue.map(|(peer, _)| *peer).collect();
            if !overdue.is_empty() {
                let missing = offers.missing(self.roster.members(*id));
                let call = (JointCall::Vote(Phase::Sync), offers.opened);
                expired.push((overdue, self.wait_for(now, Some(call), &missing, false)));
            }
        }
        for (overdue, wait) in expired {
            self.expire_votes(Phase::Sync, overdue, wait);
        }
        for sync in self.groups.values_mut().filter_map(|group| group.sync.as_mut()) {
            sync.check_at = sync.deadline().unwrap_or(Time(u64::MAX));
        }
        self.drop_empty_rounds();
    }

    fn advance_group_sync(&mut self, now: Time, id: GroupId) -> bool {
        let world = self.roster.group_world(id);
        let Some(group) = self.groups.get_mut(&id) else { return false };
        let Some(sync) = &group.sync else { return false };
        if sync.is_idle() {
            group.sync = None;
            return true;
        }
        match &sync.stage {
            SyncStage::Offer { offers, .. }
                if offers.has(world) && offers.is_complete(self.roster.members(id)) =>
            {
                self.hold_election(now, id)
            }
            SyncStage::Transfer { done, calls, .. }
                if done.has(calls.len()) && done.is_complete(calls.keys().copied()) =>
            {
                self.finish_sync(now, id)
            }
            _ => return false,
        }
        true
    }

    fn hold_election(&mut self, now: Time, id: GroupId) {
        if self.postpone_sync(now, id) {
            return;
        }
        let last = self.groups.get(&id).and_then(Group::last_revision);
        let holds = |peer: &PeerId| last.is_some() && self.roster.get(*peer).and_then(|r| r.synced) == last;
        let held = self.roster.members(id).iter().any(holds);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(SyncRound { stage: SyncStage::Offer { offers, order }, excluding, .. }) = group.sync.take()
        else {
            return;
        };
        let (next, number) = (group.next_revision, group.syncs + 1);
        let candidate = |peer: &PeerId| {
            let record = self.roster.get(*peer)?;
            let (_, offer) = offers.vote_of(*peer)?;
            let (seniority, synced) = (record.seniority, record.synced);
            Some(Candidate { name: self.roster.peer_name(*peer), seniority, synced, offer })
        };
        let candidates = order.iter().filter_map(candidate).collect();
        let settings = self.config.recovery;
        let recovery = RecoveryRule {
            policy: settings.policy,
            holders_min: settings.min.unwrap_or(1),
            lost: next.map(|_| group.holders),
            newest_wins: group.newest_until.is_some_and(|until| now < until),
        };
        let Election { verdicts, revision, reset, recovered } =
            elect(&ElectionInput { candidates, next, held, recovery });
        // Less than `answer_grace`: after that, peers would treat the master as lost.
        let grace = self.config.timing.answer_grace / 2;
        let transfer = |vote: &VoteCall| VoteCall { call: vote.call, deadline: vote.deadline + grace };
        let calls: BTreeMap<_, _> =
            offers.votes().iter().map(|(p, (vote, _))| (*p, transfer(vote))).collect();
        let Some(revision) = revision else { return self.reject_all(now, verdicts, &calls, &excluding) };
        let Some(group) = self.groups.get_mut(&id) else { return };
        if settings.policy == Recover::Newest && !held {
            // A new master does not know how many will come back.
            let until = group.lost.as_ref().and_then(LostState::deadline).unwrap_or(now + settings.after);
            group.newest_until = Some(until).filter(|_| revision > Revision(0));
        }
        let before = group.ended_before.take();
        if let Some(state) = recovered {
            self.notify(Event::Recovered(id, state));
        }
        if reset || before.is_some_and(|before| revision < before) {
            self.notify(Event::RevisionReset(id, revision));
        }
        self.begin_transfer(now, id, number, revision, verdicts, calls);
        if let Some(sync) = self.groups.get_mut(&id).and_then(|group| group.sync.as_mut()) {
            sync.excluding = excluding;
        }
    }

    /// No peer has the state: all offers fail, and the round does not count.
    fn reject_all(
        &mut self,
        now: Time,
        verdicts: BTreeMap<PeerId, SyncVerdict>,
        calls: &BTreeMap<PeerId, VoteCall>,
        excluding: &BTreeSet<PeerId>,
    ) {
        for (peer, verdict) in verdicts {
            let (Some(vote), SyncVerdict::Rejected(why)) = (calls.get(&peer), verdict) else { continue };
            self.notify(Event::StateRejected(self.peer_name(peer), why.clone()));
            self.answer(peer, vote.call, Phase::Sync, 0, Answer::StateRejected(why.clone()));
            self.start_rejection_grace(now, peer, why, !excluding.contains(&peer));
        }
    }

    fn begin_transfer(
        &mut self,
        now: Time,
        id: GroupId,
        number: u64,
        revision: Revision,
        verdicts: BTreeMap<PeerId, SyncVerdict>,
        calls: BTreeMap<PeerId, VoteCall>,
    ) {
        let mut done = Round::new(now);
        let mut rejected = BTreeMap::new();
        let fetches = |v: &&SyncVerdict| matches!(v, SyncVerdict::Elected(a) if !a.fetch.is_empty());
        let elected = verdicts.values().filter(|v| matches!(v, SyncVerdict::Elected(_))).count();
        let fetchers = verdicts.values().filter(fetches).count();
        self.notify(Event::StateElected(id, revision, elected - fetchers, fetchers));
        for (peer, verdict) in verdicts {
            match &verdict {
                SyncVerdict::Rejected(why) => {
                    self.notify(Event::StateRejected(self.peer_name(peer), why.clone()));
                    done.vote(peer, false);
                    rejected.insert(peer, why.clone());
                }
                // Holders do not answer; they serve until all are done.
                SyncVerdict::Elected(assignment) if assignment.fetch.is_empty() => _ = done.vote(peer, true),
                SyncVerdict::Elected(_) => {}
            }
            self.send(peer, ToPeer::SyncElected { round: number, verdict });
        }
        if let Some(group) = self.groups.get_mut(&id) {
            let check_at = calls.values().map(|vote| vote.deadline).min().unwrap_or(Time(u64::MAX));
            let stage = SyncStage::Transfer { revision, done, calls, rejected };
            group.sync = Some(SyncRound { stage, check_at, excluding: BTreeSet::new() });
        }
    }

    fn finish_sync(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(SyncRound {
            stage: SyncStage::Transfer { revision, done, calls, rejected }, excluding, ..
        }) = group.sync.take()
        else {
            return;
        };
        group.syncs += 1;
        let number = group.syncs;
        if done.votes().values().any(|complete| *complete) {
            group.next_revision = Some(Revision(revision.0.saturating_add(1)));
            group.holders = done.votes().values().filter(|complete| **complete).count();
            group.lost = None;
        }
        self.notify(Event::RoundDecided(Phase::Sync, number));
        for (peer, VoteCall { call, .. }) in calls {
            let complete = done.vote_of(peer).copied().unwrap_or(false);
            if let Some(record) = self.roster.get_mut(peer).filter(|_| complete) {
                record.synced = Some(revision);
            }
            let answer = match complete {
                true => Answer::Synced(revision),
                // A rejected peer knows the reason from its verdict.
                false => Answer::StateRejected(StateRejection::HoldersLost),
            };
            self.answer(peer, call, Phase::Sync, number, answer);
        }
        for (peer, why) in rejected {
            self.start_rejection_grace(now, peer, why, !excluding.contains(&peer));
        }
    }
}
