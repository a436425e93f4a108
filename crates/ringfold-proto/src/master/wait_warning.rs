//! Warnings about calls that wait for live peers, in the logs of the master and of the waiting peers.
//!
//! Peers in collectives of different tags wait for each other until a deadline. Another thread may still make the
//! missing call, so this is not a contradiction (R10).

use super::phase::PhaseRound;
use super::{Master, MasterAction};
use crate::cause::{JointCall, MissingPeer, WaitWarning};
use crate::event::Event;
use crate::id::{GroupId, PeerId};
use crate::limits;
use crate::message::{Phase, ToPeer};
use crate::time::Time;

/// A call that has waited for a while, with the peers that have and have not made it.
struct OverdueCall {
    group: Option<GroupId>,
    call: JointCall,
    waiting: Vec<PeerId>,
    missing: Vec<PeerId>,
}

impl Master {
    /// Sends the warnings that are due (R9).
    pub(super) fn send_wait_warnings(&mut self, now: Time) {
        for OverdueCall { group, call, waiting, missing } in self.overdue_calls(now) {
            let named = missing.iter().take(limits::NAMES_IN_ERROR_MAX);
            let missing =
                named.map(|peer| MissingPeer { who: self.peer_name(*peer), waits_in: self.waits_in(*peer) });
            let warning = WaitWarning { call, missing: missing.collect() };
            for peer in waiting {
                let Some(record) = self.roster.get(peer) else { continue };
                let Some(conn) = record.conn else { continue };
                let message = Box::new(record.session.unnumbered(ToPeer::StillWaiting(warning.clone())));
                self.actions.push_back(MasterAction::Send { conn, message });
            }
            self.notify(Event::StillWaiting(group, warning));
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

    fn overdue_calls(&mut self, now: Time) -> Vec<OverdueCall> {
        let wait = self.config.timing.warn_after;
        let mut waits = Vec::new();
        let accepted: Vec<_> = self.roster.accepted().collect();
        for (phase, PhaseRound { round, .. }) in self.votes.iter_mut().filter(|(_, votes)| !votes.acting) {
            if round.take_warning(now, wait) {
                let waiting = round.votes().keys().copied().collect();
                let missing = round.missing(accepted.iter().copied());
                waits.push(OverdueCall { group: None, call: JointCall::Vote(*phase), waiting, missing });
            }
        }
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            let members = self.roster.members(id);
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let sync = group.sync.as_mut().and_then(|s| s.take_warning(now, wait, members.clone()));
            let sync = sync.map(|(waiting, missing)| (JointCall::Vote(Phase::Sync), waiting, missing));
            // No warning if all members have called.
            let ops = group.ops.iter_mut().filter_map(|((tag, _), op)| {
                let waiting = op.started.keys().copied().collect();
                let missing = members.iter().copied().filter(|peer| !op.started.contains_key(peer)).collect();
                op.round.take_warning(now, wait).then_some((JointCall::Collective(*tag), waiting, missing))
            });
            let found: Vec<(_, Vec<_>, Vec<_>)> =
                ops.chain(sync).filter(|(.., missing)| !missing.is_empty()).collect();
            let wait = |(call, waiting, missing)| OverdueCall { group: Some(id), call, waiting, missing };
            waits.extend(found.into_iter().map(wait));
        }
        waits
    }

    /// The call that a peer waits in, as far as is known.
    fn waits_in(&self, peer: PeerId) -> Option<JointCall> {
        let group = self.roster.group_of(peer).and_then(|id| self.groups.get(&id))?;
        let op = group.ops.iter().find(|(_, op)| op.started.contains_key(&peer));
        let sync = group.sync.as_ref().filter(|s| s.is_offering(peer));
        let voted = self.votes.iter().find(|(_, votes)| votes.round.vote_of(peer).is_some());
        op.map(|((tag, _), _)| JointCall::Collective(*tag))
            .or(sync.map(|_| JointCall::Vote(Phase::Sync)))
            .or(voted.map(|(phase, _)| JointCall::Vote(*phase)))
    }
}
