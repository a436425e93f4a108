//! Votes: the part that all phases have in common.

use super::Master;
use super::sync::SyncRound;
use crate::cause::{Cause, Departure, JointCall, ProtocolViolation, Wait};
use crate::event::Event;
use crate::id::{CallId, GroupId, PeerId};
use crate::message::{Answer, Phase, Request, ToPeer};
use crate::round::Round;
use crate::time::Time;

/// The call that a vote belongs to, and its deadline. At the deadline only this call fails; the other voters keep waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct VoteCall {
    pub call: CallId,
    pub deadline: Time,
}

/// A run-wide round.
#[derive(Debug)]
pub(super) struct PhaseRound {
    pub round: Round<VoteCall>,
    /// Whether all have voted and the action of the phase is running.
    pub acting: bool,
    /// No vote has an earlier deadline.
    check_at: Time,
}

impl PhaseRound {
    pub fn new(now: Time) -> Self {
        Self { round: Round::new(now), acting: false, check_at: Time(u64::MAX) }
    }

    fn vote(&mut self, peer: PeerId, vote: VoteCall) {
        self.check_at = self.check_at.min(vote.deadline);
        self.round.vote(peer, vote);
    }

    fn deadline(&self) -> Option<Time> {
        self.round.votes().values().map(|vote| vote.deadline).min().filter(|_| !self.acting)
    }

    /// When to look for votes whose deadline has passed.
    pub fn check_at(&self) -> Option<Time> {
        (!self.acting && !self.round.is_empty()).then_some(self.check_at)
    }
}

impl Master {
    /// Handles a vote. A vote for the last completed round gets the answer of that round.
    pub(super) fn handle_vote(
        &mut self,
        now: Time,
        peer: PeerId,
        call: CallId,
        round: u64,
        deadline_ms: u32,
        request: Request,
    ) {
        let phase = request.phase();
        if !self.roster.is_accepted(peer) {
            // It was demoted and does not know it yet. It will vote again.
            return;
        }
        let Some(group) = self.roster.group_of(peer) else { return };
        let completed = self.rounds_of(group).of(phase);
        if round == completed && round > 0 {
            return self.answer(peer, call, phase, round, self.last_answer(peer, phase, group));
        }
        if round != completed + 1 {
            let why = ProtocolViolation::Round { phase, voted: round, completed };
            return self.remove(peer, Departure::Misbehaved(why));
        }
        let vote = VoteCall { call, deadline: now + self.config.timing.timeout(deadline_ms) };
        let excludes_collectives = request.excludes_collectives();
        match request {
            Request::Sync(offer) | Request::SyncBeside(offer) => {
                let group = self.groups.entry(group).or_default();
                let sync = group.sync.get_or_insert_with(|| SyncRound::new(now));
                sync.offer(peer, vote, offer, excludes_collectives);
            }
            Request::UpdateTopology | Request::ArePeersPending | Request::OptimizeTopology => {
                self.votes.entry(phase).or_insert_with(|| PhaseRound::new(now)).vote(peer, vote);
            }
        }
    }

    /// Takes the votes of a phase if all members of the run have voted.
    pub(super) fn take_complete(&mut self, phase: Phase) -> Option<Round<VoteCall>> {
        let round = &self.votes.get(&phase)?.round;
        if !round.has(self.roster.world()) || !round.is_complete(self.roster.accepted()) {
            return None;
        }
        self.count_round(phase);
        self.votes.remove(&phase).map(|votes| votes.round)
    }

    /// Counts a round in which all have voted, also for the peers that it admits.
    pub(super) fn count_round(&mut self, phase: Phase) {
        *self.rounds.of_mut(phase) += 1;
    }

    /// Ends a run-wide round with the same answer for all voters.
    pub(super) fn complete_phase(&mut self, phase: Phase, votes: Round<VoteCall>, answer: Answer) {
        let number = self.rounds.of(phase);
        self.notify(Event::RoundDecided(phase, number));
        for (peer, vote) in votes.into_votes() {
            self.answer(peer, vote.call, phase, number, answer.clone());
        }
    }

    pub(super) fn answer(&mut self, peer: PeerId, call: CallId, phase: Phase, round: u64, answer: Answer) {
        let Some(group) = self.roster.group_of(peer) else { return };
        let attributes = self.attributes(group);
        self.send(peer, ToPeer::Answer { call, phase, round, answer, attributes });
    }

    /// Withdraws one peer's vote with an error.
    pub(super) fn fail_vote(&mut self, peer: PeerId, phase: Phase, cause: &Cause) {
        let vote = if phase.is_run_wide() {
            self.votes.get_mut(&phase).and_then(|votes| votes.round.withdraw(peer))
        } else {
            let group = self.roster.group_of(peer).and_then(|g| self.groups.get_mut(&g));
            group.and_then(|g| g.sync.as_mut()).and_then(|s| s.withdraw_offer(peer))
        };
        if let Some(vote) = vote {
            self.answer(peer, vote.call, phase, 0, Answer::Failed(cause.clone()));
        }
    }

    /// Fails votes whose deadline has passed.
    pub(super) fn expire_phases(&mut self, now: Time) {
        for phase in Phase::ALL {
            let round = self.votes.get(&phase).filter(|r| r.deadline().is_some_and(|d| d <= now));
            let Some(round) = round else { continue };
            let missing = round.round.missing(self.roster.accepted());
            let wait =
                self.wait_for(now, Some((JointCall::Vote(phase), round.round.opened)), &missing, false);
            self.expire_votes(phase, overdue(&round.round, now), wait);
        }
        for votes in self.votes.values_mut() {
            votes.check_at = votes.deadline().unwrap_or(Time(u64::MAX));
        }
        self.drop_empty_rounds();
    }

    /// Fails the votes of the overdue peers.
    pub(super) fn expire_votes(&mut self, phase: Phase, overdue: Vec<PeerId>, wait: Wait) {
        let cause = Cause::Timeout(wait);
        self.notify(Event::RoundFailed(phase, cause.clone()));
        for peer in overdue {
            self.fail_vote(peer, phase, &cause);
        }
    }

    /// Drops rounds without votes.
    pub(super) fn drop_empty_rounds(&mut self) {
        self.votes.retain(|_, votes| !votes.round.is_empty());
        self.admitting.take_if(|votes| votes.is_empty());
        if !self.votes.contains_key(&Phase::Optimise) {
            self.optimising = None;
        }
        for group in self.groups.values_mut() {
            group.sync.take_if(|s| s.is_idle());
        }
    }

    fn last_answer(&self, peer: PeerId, phase: Phase, group: GroupId) -> Answer {
        match phase {
            Phase::Topology | Phase::Optimise => Answer::Topology,
            Phase::Pending => Answer::Pending(self.last_pending),
            Phase::Sync => {
                let synced = self.roster.get(peer).and_then(|r| r.synced);
                let last = self.groups.get(&group).and_then(|g| g.next_revision);
                let last = last.map(|r| crate::id::Revision(r.0.saturating_sub(1)));
                Answer::Synced(last.or(synced).unwrap_or_default())
            }
        }
    }
}

/// The peers whose deadline has passed.
fn overdue(round: &Round<VoteCall>, now: Time) -> Vec<PeerId> {
    round.votes().iter().filter(|(_, vote)| vote.deadline <= now).map(|(peer, _)| *peer).collect()
}
