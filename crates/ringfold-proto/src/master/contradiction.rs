//! Contradicting calls: peers that can only wait for each other fail at once, with an error that names both (R10).
//!
//! This is certain for exclusive votes: a peer in update_topology, optimize_topology or sync_shared_state starts no
//! collective and no other such vote until it is answered. All other cases are left to the deadlines.

use super::Master;
use crate::cause::{Cause, WaitingPeer};
use crate::event::Event;
use crate::id::{GroupId, OpId, PeerId};
use crate::message::Phase;

/// A peer that waits in an exclusive vote.
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
        let voters = self.exclusive_voters();
        if voters.is_empty() {
            return false;
        }
        if let Some((one, other)) = contradicting_votes(&voters) {
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
        if let Some((vote, op, starter)) = self.contradicting_op(&voters) {
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

    /// The peers in exclusive votes that are not complete.
    fn exclusive_voters(&self) -> Vec<ExclusiveVoter> {
        let mut voters = Vec::new();
        for (phase, votes) in self.votes.iter().filter(|(phase, votes)| phase.is_exclusive() && !votes.acting)
        {
            for peer in votes.round.votes().keys() {
                let Some(group) = self.roster.group_of(*peer) else { continue };
                voters.push(ExclusiveVoter { peer: *peer, group, phase: *phase });
            }
        }
        for (id, group) in &self.groups {
            let offers = group.sync.iter().flat_map(super::sync::SyncRound::offering);
            voters.extend(offers.map(|peer| ExclusiveVoter { peer, group: *id, phase: Phase::Sync }));
        }
        voters
    }

    /// An operation that one peer has started, and that waits for a peer in an exclusive vote.
    fn contradicting_op(&self, voters: &[ExclusiveVoter]) -> Option<(ExclusiveVoter, OpId, PeerId)> {
        for vote in voters {
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

/// Two votes that cannot both be answered: of different phases, both run-wide or in the same group.
fn contradicting_votes(voters: &[ExclusiveVoter]) -> Option<(ExclusiveVoter, ExclusiveVoter)> {
    for (i, one) in voters.iter().enumerate() {
        for other in &voters[i + 1..] {
            let run_wide = one.phase.is_run_wide() && other.phase.is_run_wide();
            if one.phase != other.phase && (run_wide || one.group == other.group) {
                return Some((one.clone(), other.clone()));
            }
        }
    }
    None
}
