//! Votes in the phases: the part that they have in common.

use super::Master;
use super::optimise::OptimiseRound;
use super::sync::SyncRound;
use crate::cause::{Cause, Departure};
use crate::event::Event;
use crate::id::{CallId, GroupId, PeerId};
use crate::message::{Answer, Phase, Request, ToPeer};
use crate::round::Round;
use crate::time::Time;
use core::time::Duration;

/// A run-wide round whose votes carry nothing but the caller.
#[derive(Debug)]
pub(super) struct PhaseRound {
    pub round: Round<CallId>,
    /// All have voted; what they voted for is under way.
    pub acting: bool,
}

impl PhaseRound {
    pub fn new(now: Time, deadline: Time) -> Self {
        Self { round: Round::new(now, deadline), acting: false }
    }

    pub fn deadline(&self) -> Option<Time> {
        (!self.acting).then_some(self.round.deadline)
    }
}

impl Master {
    /// A peer votes in a phase. A vote for a round that others saw the end of is answered as theirs was.
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
            // It was accepted too early and does not know yet that it waits again: then it will vote again.
            return;
        }
        let Some(group) = self.roster.group_of(peer) else { return };
        let completed = self.rounds_of(group).of(phase);
        if round == completed && round > 0 {
            return self.answer(peer, call, phase, round, self.last_answer(peer, phase, group));
        }
        if round != completed + 1 {
            let why = format!("it votes in {phase} {round}, but {completed} are complete");
            return self.remove(now, peer, Departure::Misbehaved(why));
        }
        let patience = match deadline_ms {
            0 => self.config.timing.wait_max,
            ms => Duration::from_millis(u64::from(ms)),
        };
        let deadline = now + patience;
        match request {
            Request::UpdateTopology => {
                vote_in(&mut self.topology, peer, call, now, deadline);
            }
            Request::ArePeersPending => vote_in(&mut self.pending, peer, call, now, deadline),
            Request::OptimizeTopology => {
                let optimise = self.optimise.get_or_insert_with(|| OptimiseRound::new(now, deadline));
                optimise.votes.round.deadline = optimise.votes.round.deadline.min(deadline);
                optimise.votes.round.vote(peer, call);
            }
            Request::Sync(offer) => {
                let group = self.groups.entry(group).or_default();
                group
                    .sync
                    .get_or_insert_with(|| SyncRound::new(now, deadline))
                    .offer(peer, call, offer, deadline);
            }
        }
    }

    /// A peer's call ended without an answer.
    pub(super) fn handle_withdraw(&mut self, peer: PeerId, call: CallId) {
        let optimise = self.optimise.as_mut().map(|o| &mut o.votes);
        for phase in [self.topology.as_mut(), self.pending.as_mut(), optimise].into_iter().flatten() {
            if !phase.acting && phase.round.vote_of(peer) == Some(&call) {
                phase.round.withdraw(peer);
            }
        }
        for group in self.groups.values_mut() {
            if let Some(sync) = &mut group.sync {
                sync.withdraw(peer, call);
            }
        }
    }

    /// All have voted: from now on the round counts, also for whoever is accepted by it.
    pub(super) fn count_round(&mut self, phase: Phase) {
        *self.rounds.of_mut(phase) += 1;
    }

    /// Ends a run-wide round: the same answer for everyone who voted.
    pub(super) fn complete_phase(&mut self, phase: Phase, votes: Round<CallId>, answer: Answer) {
        let number = self.rounds.of(phase);
        self.notify(Event::RoundDecided(phase, number));
        for (peer, call) in votes.into_votes() {
            self.answer(peer, call, phase, number, answer.clone());
        }
    }

    pub(super) fn answer(&mut self, peer: PeerId, call: CallId, phase: Phase, round: u64, answer: Answer) {
        let Some(group) = self.roster.group_of(peer) else { return };
        let attributes = self.attributes(group);
        self.send(peer, ToPeer::Answer { call, phase, round, answer, attributes });
    }

    /// Takes back one peer's vote and tells it why.
    pub(super) fn fail_vote(&mut self, peer: PeerId, phase: Phase, cause: &Cause) {
        let optimise = self.optimise.as_mut().map(|o| &mut o.votes);
        let call = match phase {
            Phase::Topology => self.topology.as_mut().and_then(|r| r.round.withdraw(peer)),
            Phase::Pending => self.pending.as_mut().and_then(|r| r.round.withdraw(peer)),
            Phase::Optimise => optimise.and_then(|r| r.round.withdraw(peer)),
            Phase::Sync => {
                let group = self.roster.group_of(peer).and_then(|g| self.groups.get_mut(&g));
                group.and_then(|g| g.sync.as_mut()).and_then(|s| s.withdraw_offer(peer))
            }
        };
        if let Some(call) = call {
            self.answer(peer, call, phase, 0, Answer::Failed(cause.clone()));
        }
    }

    /// Rounds in which live peers did not vote in time fail for those who did.
    pub(super) fn expire_phases(&mut self, now: Time) {
        for phase in [Phase::Topology, Phase::Pending, Phase::Optimise] {
            let round = match phase {
                Phase::Topology => self.topology.as_ref(),
                Phase::Pending => self.pending.as_ref(),
                _ => self.optimise.as_ref().map(|o| &o.votes),
            };
            let Some(round) = round.filter(|r| r.deadline().is_some_and(|d| d <= now)) else { continue };
            let waited_for = self.named_few(&round.round.missing(self.roster.accepted()));
            let voters: Vec<_> = round.round.votes().keys().copied().collect();
            let cause = Cause::Timeout { waited_for };
            self.notify(Event::RoundFailed(phase, cause.clone()));
            for peer in voters {
                self.fail_vote(peer, phase, &cause);
            }
            match phase {
                Phase::Topology => self.topology = None,
                Phase::Pending => self.pending = None,
                _ => self.optimise = None,
            }
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

fn vote_in(phase: &mut Option<PhaseRound>, peer: PeerId, call: CallId, now: Time, deadline: Time) {
    let phase = phase.get_or_insert_with(|| PhaseRound::new(now, deadline));
    phase.round.deadline = phase.round.deadline.min(deadline);
    phase.round.vote(peer, call);
}
