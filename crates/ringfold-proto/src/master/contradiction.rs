//! Peers that wait for different things can wait for ever; where that is provable, they are told at
//! once who waits for what (R10). Everything else is left to the deadlines.
//!
//! It is provable for calls that shut out all others on their peer: a peer in update_topology,
//! optimize_topology or sync_shared_state starts no collective and casts no other such vote until it is
//! answered. Asking whether peers are pending is legal beside anything.

use super::Master;
use crate::cause::{Cause, WaitingPeer};
use crate::event::Event;
use crate::id::{GroupId, OpId, PeerId};
use crate::message::Phase;

#[derive(Clone)]
struct ExclusiveVoter {
    peer: PeerId,
    group: GroupId,
    phase: Phase,
}

impl Master {
    pub(super) fn advance_contradictions(&mut self) -> bool {
        if self.restoration.is_some() {
            return false;
        }
        let blocked = self.exclusive_voters();
        if blocked.is_empty() {
            return false;
        }
        if let Some((one, other)) = contradicting_votes(&blocked) {
            let cause = self.contradiction(
                &one,
                WaitingPeer { who: self.peer_name(other.peer), call: other.phase.to_string() },
            );
            self.notify(Event::RoundFailed(one.phase, cause.clone()));
            self.fail_vote(one.peer, one.phase, &cause);
            self.fail_vote(other.peer, other.phase, &cause);
            self.drop_empty_rounds();
            return true;
        }
        if let Some((vote, op, starter)) = self.contradicting_op(&blocked) {
            let asked = self.groups.get(&vote.group).and_then(|g| g.ops.get(&(op.tag, op.seq)));
            let asked = asked.and_then(|round| round.started.get(&starter));
            let call = asked.map_or_else(|| op.to_string(), |d| format!("{d}, {}", op.tag));
            let cause = self.contradiction(&vote, WaitingPeer { who: self.peer_name(starter), call });
            self.notify(Event::RoundFailed(vote.phase, cause.clone()));
            self.fail_vote(vote.peer, vote.phase, &cause);
            self.fail_op(op, cause);
            self.drop_empty_rounds();
            return true;
        }
        false
    }

    /// Peers in calls that shut out others, in phases that still collect votes.
    fn exclusive_voters(&self) -> Vec<ExclusiveVoter> {
        let mut blocked = Vec::new();
        for (phase, votes) in self.votes.iter().filter(|(phase, votes)| phase.is_exclusive() && !votes.acting)
        {
            for peer in votes.round.votes().keys() {
                let Some(group) = self.roster.group_of(*peer) else { continue };
                blocked.push(ExclusiveVoter { peer: *peer, group, phase: *phase });
            }
        }
        for (id, group) in &self.groups {
            let offers = group.sync.iter().flat_map(super::sync::SyncRound::offering);
            blocked.extend(offers.map(|peer| ExclusiveVoter { peer, group: *id, phase: Phase::Sync }));
        }
        blocked
    }

    /// An operation that someone has started and that lacks the part of a peer which is blocked elsewhere.
    fn contradicting_op(&self, blocked: &[ExclusiveVoter]) -> Option<(ExclusiveVoter, OpId, PeerId)> {
        for vote in blocked {
            let Some(group) = self.groups.get(&vote.group) else { continue };
            let Some(epoch) = group.open_epoch() else { continue };
            if epoch.rank_of(vote.peer).is_none() {
                continue;
            }
            let lacking =
                |op: &&super::reduce::OpRound| op.failed.is_none() && !op.started.contains_key(&vote.peer);
            for ((tag, seq), op) in group.ops.iter().filter(|(_, op)| lacking(op)) {
                let Some(starter) = op.started.keys().next() else { continue };
                return Some((vote.clone(), OpId { epoch: epoch.id, tag: *tag, seq: *seq }, *starter));
            }
        }
        None
    }

    fn contradiction(&self, vote: &ExclusiveVoter, other: WaitingPeer) -> Cause {
        Cause::Mismatch {
            one: WaitingPeer { who: self.peer_name(vote.peer), call: vote.phase.to_string() },
            other,
        }
    }
}

/// Two votes that can't both be answered: run-wide ones of different phases, or a sync of a group beside
/// a run-wide one of the same group.
fn contradicting_votes(blocked: &[ExclusiveVoter]) -> Option<(ExclusiveVoter, ExclusiveVoter)> {
    for (i, one) in blocked.iter().enumerate() {
        for other in &blocked[i + 1..] {
            let run_wide = one.phase.is_run_wide() && other.phase.is_run_wide();
            if one.phase != other.phase && (run_wide || one.group == other.group) {
                return Some((one.clone(), other.clone()));
            }
        }
    }
    None
}
