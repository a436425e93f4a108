//! The one mechanism behind every phase: collect votes, decide when all who must vote have voted, tell.
//!
//! Who must vote is asked at each look rather than remembered, so that a member that departs neither
//! blocks a round nor needs to be removed from a list in every phase.

use crate::id::PeerId;
use crate::time::Time;
use core::time::Duration;
use std::collections::BTreeMap;

/// The votes of one round.
#[derive(Clone, Debug)]
pub struct Round<V> {
    votes: BTreeMap<PeerId, V>,
    first: Option<PeerId>,
    /// When the first vote came.
    pub opened: Time,
    /// How often the peers that it waits for were named in the logs.
    warnings: u32,
}

impl<V> Round<V> {
    /// A round without votes.
    pub fn new(now: Time) -> Self {
        Self { votes: BTreeMap::new(), first: None, opened: now, warnings: 0 }
    }

    /// Counts a peer's vote; a second one of the same peer replaces the first.
    pub fn vote(&mut self, peer: PeerId, vote: V) {
        self.first.get_or_insert(peer);
        self.votes.insert(peer, vote);
    }

    /// Takes a vote back: the peer departed, or its call ended.
    pub fn withdraw(&mut self, peer: PeerId) -> Option<V> {
        if self.first == Some(peer) {
            self.first = self.votes.keys().copied().find(|p| *p != peer);
        }
        self.votes.remove(&peer)
    }

    /// Whoever of those expected has not voted.
    pub fn missing(&self, expected: impl IntoIterator<Item = PeerId>) -> Vec<PeerId> {
        expected.into_iter().filter(|p| !self.votes.contains_key(p)).collect()
    }

    /// Whether all of those expected have voted, and there is a vote at all.
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

    /// Who voted first.
    pub fn first(&self) -> Option<PeerId> {
        self.first
    }

    /// When the peers that it waits for are to be named in the logs: after a while, then after twice as long, and so on.
    pub fn warn_at(&self, wait: Duration) -> Time {
        self.opened + wait.saturating_mul(1 << self.warnings.min(20))
    }

    /// Whether it is time to name them; counts as done.
    pub fn take_warning(&mut self, now: Time, wait: Duration) -> bool {
        let due = self.warn_at(wait) <= now;
        self.warnings += u32::from(due);
        due
    }

    /// Whether nobody has voted.
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
        assert_eq!(round.first(), Some(b));
    }
}
