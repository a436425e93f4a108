//! Contradicting calls: peers that can only wait for each other fail at once, with an error that names both (R10).
//!
//! This is certain for exclusive votes: a peer in update_topology, optimize_topology or sync_shared_state starts no
//! other such vote until it is answered, and no collective, unless the sync says so. All other cases are left to the
//! deadlines.

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
        if let Some((one, other)) = self.contradicting_votes() {
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
        if let Some((vote, op, starter)) = self.contradicting_op() {
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

    /// The peers in votes that are not complete and exclude collectives.
    fn exclusive_voters(&self) -> impl Iterator<Item = ExclusiveVoter> + '_ {
        let syncing = self.groups.iter().flat_map(|(id, group)| {
            let offers = group.sync.iter().flat_map(super::sync::SyncRound::offering_exclusively);
            offers.map(|peer| ExclusiveVoter { peer, group: *id, phase: Phase::Sync })
        });
        self.run_wide_voters().flat_map(|(_, voters)| voters).chain(syncing)
    }

    /// Of them those of run-wide phases, by phase.
    fn run_wide_voters(
        &self,
    ) -> impl Iterator<Item = (Phase, impl Iterator<Item = ExclusiveVoter> + '_)> + '_ {
        let exclusive = self.votes.iter().filter(|(phase, votes)| phase.is_exclusive() && !votes.acting);
        exclusive.map(|(phase, votes)| {
            let voter = |peer: &PeerId| {
                let group = self.roster.group_of(*peer)?;
                Some(ExclusiveVoter { peer: *peer, group, phase: *phase })
            };
            (*phase, votes.round.votes().keys().filter_map(voter))
        })
    }

    /// Two votes that cannot both be answered: of different phases, both run-wide or in the same group.
    fn contradicting_votes(&self) -> Option<(ExclusiveVoter, ExclusiveVoter)> {
        let mut firsts = self.run_wide_voters().filter_map(|(_, mut voters)| voters.next());
        let one = firsts.next()?;
        if let Some(other) = firsts.next() {
            return Some((one, other));
        }
        let offering = |group: GroupId| self.groups.get(&group)?.sync.as_ref()?.offering().next();
        if self.groups.keys().all(|group| offering(*group).is_none()) {
            return None;
        }
        let mut voters = self.run_wide_voters().flat_map(|(_, voters)| voters);
        voters.find_map(|one| {
            let other = ExclusiveVoter { peer: offering(one.group)?, group: one.group, phase: Phase::Sync };
            Some((one, other))
        })
    }

    /// An operation that one peer has started, and that waits for a peer in an exclusive vote.
    fn contradicting_op(&self) -> Option<(ExclusiveVoter, OpId, PeerId)> {
        if self.groups.values().all(|group| group.ops.is_empty()) {
            return None;
        }
        for vote in self.exclusive_voters() {
            let Some(group) = self.groups.get(&vote.group) else { continue };
            let Some(epoch) = group.open_epoch() else { continue };
            if self.roster.get(vote.peer).is_none_or(|record| !record.is_in(epoch.id)) {
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
