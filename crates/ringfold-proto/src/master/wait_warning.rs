//! Calls that wait for live peers: the status shows them, and the logs of the master and of the waiting peers warn about them.
//!
//! Peers in collectives of different tags wait for each other until a deadline. Another thread may still make the
//! missing call, so this is not a contradiction (R10).

use super::phase::PhaseRound;
use super::reduce::OpRound;
use super::{Master, MasterAction};
use crate::cause::{JointCall, MissingPeer, Wait};
use crate::event::Event;
use crate::id::{GroupId, PeerId, Tag};
use crate::limits;
use crate::message::{Phase, ToPeer};
use crate::time::Time;

/// A call that some members have made, and others not, or are not done with.
pub(super) struct OpenCall {
    pub group: Option<GroupId>,
    pub call: JointCall,
    pub since: Time,
    /// Those that wait.
    pub waiting: Vec<PeerId>,
    /// Those that they wait for; never empty.
    pub missing: Vec<PeerId>,
    /// Whether those have made the call, too.
    pub begun: bool,
}

impl Master {
    /// Sends the warnings that are due (R9).
    pub(super) fn send_wait_warnings(&mut self, now: Time) {
        let due = self.take_due_warnings(now);
        if due.is_empty() {
            return;
        }
        // If all members have called, the operation takes its time.
        for open in
            self.open_calls().iter().filter(|open| due.contains(&(open.group, open.call)) && !open.begun)
        {
            let wait = self.wait_of(now, open);
            for peer in &open.waiting {
                let Some(record) = self.roster.get(*peer) else { continue };
                let Some(conn) = record.conn else { continue };
                let message = Box::new(record.session.unnumbered(ToPeer::StillWaiting(wait.clone())));
                self.actions.push_back(MasterAction::Send { conn, message });
            }
            self.notify(Event::StillWaiting(open.group, wait));
        }
    }

    /// When the next warning is due.
    pub(super) fn wait_warning_timeout(&self) -> Option<Time> {
        let wait = self.config.timing.warn_after;
        let phases = self.votes.values().filter(|r| !r.acting).map(|r| r.round.warn_at(wait));
        let ops = self.groups.values().flat_map(|g| g.ops.values()).map(|op| op.round.warn_at(wait));
        let syncs = self.groups.values().filter_map(|g| g.sync.as_ref()?.warn_at(wait));
        phases.chain(ops).chain(syncs).min()
    }

    /// Counts the warnings that are due, and returns their calls.
    fn take_due_warnings(&mut self, now: Time) -> Vec<(Option<GroupId>, JointCall)> {
        let wait = self.config.timing.warn_after;
        let mut due = Vec::new();
        for (phase, PhaseRound { round, .. }) in self.votes.iter_mut().filter(|(_, votes)| !votes.acting) {
            if round.take_warning(now, wait) {
                due.push((None, JointCall::Vote(*phase)));
            }
        }
        for (id, group) in &mut self.groups {
            for ((tag, _), op) in &mut group.ops {
                if op.round.take_warning(now, wait) {
                    due.push((Some(*id), op.call(*tag)));
                }
            }
            if group.sync.as_mut().is_some_and(|sync| sync.take_warning(now, wait)) {
                due.push((Some(*id), JointCall::Vote(Phase::Sync)));
            }
        }
        due
    }

    /// All calls in which members wait for other members.
    pub(super) fn open_calls(&self) -> Vec<OpenCall> {
        let mut open = Vec::new();
        for (phase, PhaseRound { round, .. }) in self.votes.iter().filter(|(_, votes)| !votes.acting) {
            open.push(OpenCall {
                group: None,
                call: JointCall::Vote(*phase),
                since: round.opened,
                waiting: round.votes().keys().copied().collect(),
                missing: round.missing(self.roster.accepted()),
                begun: false,
            });
        }
        for (id, group) in &self.groups {
            let members = self.roster.members(*id);
            for ((tag, _), op) in &group.ops {
                let missing = op.missing_peers(members.iter().copied());
                open.push(OpenCall {
                    group: Some(*id),
                    call: op.call(*tag),
                    since: op.round.opened,
                    waiting: op.started.keys().copied().filter(|peer| !missing.contains(peer)).collect(),
                    begun: missing.iter().all(|peer| op.started.contains_key(peer)),
                    missing,
                });
            }
            if let Some((since, waiting, missing)) = group.sync.as_ref().and_then(|s| s.offered(&members)) {
                let call = JointCall::Vote(Phase::Sync);
                open.push(OpenCall { group: Some(*id), call, since, waiting, missing, begun: false });
            }
        }
        open.retain(|open| !open.missing.is_empty());
        open
    }

    /// What is known of a call that waits.
    pub(super) fn wait_of(&self, now: Time, open: &OpenCall) -> Wait {
        let OpenCall { call, since, missing, begun, .. } = open;
        self.wait_for(now, Some((*call, *since)), missing, *begun)
    }

    /// What is known of a wait for these peers, in a call that began at some time.
    pub(super) fn wait_for(
        &self,
        now: Time,
        call: Option<(JointCall, Time)>,
        missing: &[PeerId],
        begun: bool,
    ) -> Wait {
        let known = |peer: &PeerId| MissingPeer {
            who: self.peer_name(*peer),
            waits_in: self.waits_in(*peer).filter(|in_call| call.is_none_or(|(call, _)| call != *in_call)),
            heard_ms: self.roster.get(*peer).map(|record| millis(now, record.heard_at)),
        };
        Wait {
            call: call.map(|(call, _)| call),
            waited_ms: call.map_or(0, |(_, since)| millis(now, since)),
            missing: missing.iter().take(limits::NAMES_IN_ERROR_MAX).map(known).collect(),
            begun,
        }
    }

    /// The call that a peer waits in, as far as is known.
    pub(super) fn waits_in(&self, peer: PeerId) -> Option<JointCall> {
        let group = self.roster.group_of(peer).and_then(|id| self.groups.get(&id))?;
        let op = group.ops.iter().find(|(_, op)| op.started.contains_key(&peer));
        let sync = group.sync.as_ref().filter(|s| s.is_offering(peer));
        let voted = self.votes.iter().find(|(_, votes)| votes.round.vote_of(peer).is_some());
        op.map(|((tag, _), op)| op.call(*tag))
            .or(sync.map(|_| JointCall::Vote(Phase::Sync)))
            .or(voted.map(|(phase, _)| JointCall::Vote(*phase)))
    }
}

impl OpRound {
    /// The call that it is of.
    pub fn call(&self, tag: Tag) -> JointCall {
        let collective = self.started.values().next().map(|descriptor| descriptor.collective);
        // An operation is known by the first peer that has started it.
        JointCall::Collective(collective.unwrap_or(crate::descriptor::Collective::AllReduce), tag)
    }
}

fn millis(now: Time, since: Time) -> u32 {
    u32::try_from(now.since(since).as_millis()).unwrap_or(u32::MAX)
}
