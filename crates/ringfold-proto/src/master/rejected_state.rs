//! Peers whose shared state was rejected. A peer that makes no call within a grace time is evicted with the reason as
//! soon as others wait for it.
//!
//! Syncs cannot skip it instead: all members count rounds, and take part in every round.

use super::Master;
use super::phase::PhaseRound;
use crate::cause::{Departure, StateRejection};
use crate::id::PeerId;
use crate::time::Time;

/// The rejection of a peer's state.
#[derive(Debug)]
pub(super) struct RejectedState {
    why: StateRejection,
    grace_ends: Time,
    /// Whether the grace time is over.
    silent: bool,
    /// Whether other calls were in flight then. Their votes do not show that a call followed the rejection.
    is_beside: bool,
}

impl Master {
    /// Starts the grace time of a peer whose state was rejected, unless it may offer the same state again.
    pub(super) fn start_rejection_grace(
        &mut self,
        now: Time,
        peer: PeerId,
        why: StateRejection,
        is_beside: bool,
    ) {
        let grace_ends = now + self.config.timing.warn_after;
        if self.roster.get(peer).is_some() && !why.is_retryable() {
            self.rejected.insert(peer, RejectedState { why, grace_ends, silent: false, is_beside });
        }
    }

    /// Ends the grace time: the peer has made a call.
    pub(super) fn clear_rejected(&mut self, peer: PeerId) {
        self.rejected.remove(&peer);
    }

    /// The peer has made a call that may have been in flight when its state was rejected.
    pub(super) fn note_call_of_rejected(&mut self, now: Time, peer: PeerId) {
        let grace_ends = now + self.config.timing.warn_after;
        match self.rejected.get_mut(&peer) {
            Some(rejected) if rejected.is_beside => {
                (rejected.grace_ends, rejected.silent) = (grace_ends, false);
            }
            _ => self.clear_rejected(peer),
        }
    }

    pub(super) fn expire_rejected(&mut self, now: Time) {
        for rejected in self.rejected.values_mut() {
            rejected.silent |= rejected.grace_ends <= now;
        }
    }

    pub(super) fn rejected_timeout(&self) -> Option<Time> {
        self.rejected.values().filter(|r| !r.silent).map(|r| r.grace_ends).min()
    }

    /// Evicts a silent peer that others wait for.
    pub(super) fn advance_rejected(&mut self) -> bool {
        let silent = self.rejected.iter().filter(|(_, r)| r.silent).map(|(peer, _)| *peer);
        let Some(peer) = silent.into_iter().find(|p| self.is_waited_for(*p)) else { return false };
        if let Some(RejectedState { why, .. }) = self.rejected.remove(&peer) {
            self.remove(peer, Departure::StateRejected(why));
        }
        true
    }

    /// Whether a vote, or a sync or operation of its group, waits for this peer.
    fn is_waited_for(&self, peer: PeerId) -> bool {
        let lacks = |r: &PhaseRound| !r.acting && !r.round.is_empty() && r.round.vote_of(peer).is_none();
        let group = self.roster.group_of(peer).and_then(|id| self.groups.get(&id));
        let record = self.roster.get(peer);
        let in_epoch = |g: &&super::group::Group| {
            g.open_epoch().zip(record).is_some_and(|(epoch, record)| record.is_in(epoch.id))
        };
        let lacks_part = |op: &super::reduce::OpRound| op.failed.is_none() && !op.started.contains_key(&peer);
        let lacks_offer = |s: &super::sync::SyncRound| s.offering().next().is_some() && !s.is_offering(peer);
        self.votes.values().any(lacks)
            || group.and_then(|g| g.sync.as_ref()).is_some_and(lacks_offer)
            || group.filter(in_epoch).is_some_and(|g| g.ops.values().any(lacks_part))
    }
}
