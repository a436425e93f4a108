//! A round of votes, the mechanism of every phase.
//!
//! The expected voters are passed to each query, so that a member that departs does not block a round.

use crate::id::PeerId;
use crate::time::Time;
use core::time::Duration;
use std::collections::BTreeMap;

/// The votes of one round.
#[derive(Clone, Debug)]
pub struct Round<V> {
    votes: BTreeMap<PeerId, V>,
    /// When the first vote came.
    pub opened: Time,
    /// Warnings about missing peers so far.
    warnings: u32,
}

impl<V> Round<V> {
    /// A round without votes.
    pub fn new(now: Time) -> Self {
        Self { votes: BTreeMap::new(), opened: now, warnings: 0 }
    }

    /// Adds a vote. It replaces an earlier one of the same peer, and returns that.
    pub fn vote(&mut self, peer: PeerId, vote: V) -> Option<V> {
        self.votes.insert(peer, vote)
    }

    /// Removes a vote: the peer departed, or its call ended.
    pub fn withdraw(&mut self, peer: PeerId) -> Option<V> {
        self.votes.remove(&peer)
    }

    /// The expected peers that have not voted.
    pub fn missing(&self, expected: impl IntoIterator<Item = PeerId>) -> Vec<PeerId> {
        expected.into_iter().filter(|p| !self.votes.contains_key(p)).collect()
    }

    /// Whether there are votes, and at least so many: a round with fewer than expected is not complete.
    pub fn has(&self, voters: usize) -> bool {
        self.votes.len() >= voters.max(1)
    }

    /// Whether there is a vote, and all expected peers have voted.
    pub fn is_complete(&self, expected: impl IntoIterator<Item = PeerId>) -> bool {
        !self.votes.is_empty() && expected.into_iter().all(|p| self.votes.contains_key(&p))
    }

    /// A peer's vote.
    pub fn vote_of(&self, peer: PeerId) -> Option<&V> {
        self.votes.get(&peer)
    }

    /// All votes, by peer.
    pub fn votes(&self) -> &BTreeMap<PeerId, V> {
        &self.votes
    }

    /// All votes, when the round is over.
    pub fn into_votes(self) -> BTreeMap<PeerId, V> {
        self.votes
    }

    /// When the next warning about missing peers is due: after `wait`, then twice that, and so on.
    pub fn warn_at(&self, wait: Duration) -> Time {
        self.opened + wait.saturating_mul(1 << self.warnings.min(20))
    }

    /// Whether a warning is due; if so, counts it.
    pub fn take_warning(&mut self, now: Time, wait: Duration) -> bool {
        let due = self.warn_at(wait) <= now;
        self.warnings += u32::from(due);
        due
    }

    /// Whether there are no votes.
    pub fn is_empty(&self) -> bool {
        self.votes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_departed_member_does_not_block_and_a_second_vote_does_not_count_twice() {
        let [a, b, c] = [PeerId(1), PeerId(2), PeerId(3)];
        let mut round = Round::new(Time::ZERO);
        assert!(!round.is_complete([]));
        round.vote(a, ());
        round.vote(a, ());
        assert_eq!(round.missing([a, b, c]), [b, c]);
        round.vote(b, ());
        assert!(!round.is_complete([a, b, c]));
        assert!(round.is_complete([a, b]));
        round.withdraw(a);
        assert_eq!(round.missing([a, b]), [a]);
    }
}
