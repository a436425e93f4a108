//! The return of peers after all holders of a group's state were lost (P20).
//!
//! Peers that come back wait in connect until all are back, or a deadline has passed. They are admitted together, so that
//! their first sync has all offers. They cannot wait in that sync instead: nobody is admitted while members are in it.

use super::Master;
use super::group::{EpochStage, Group};
use crate::cause::Cause;
use crate::event::Event;
use crate::id::{GroupId, PeerId, Revision};
use crate::recovery::Recover;
use crate::time::Time;
use std::collections::BTreeSet;

/// A group whose state no member holds.
#[derive(Debug, Default)]
pub(super) struct LostState {
    /// Members that did not hold the state when it was lost. They wait too, but do not count as returned.
    stayed: BTreeSet<PeerId>,
    /// When the group continues at the latest; `None` until the first peer is back.
    deadline: Option<Time>,
    next_note: Time,
    /// Whether peers are admitted: all are back, or the deadline has passed.
    open: bool,
}

impl LostState {
    /// When it needs attention.
    pub fn timeout(&self) -> Option<Time> {
        self.deadline.filter(|_| !self.open).map(|deadline| deadline.min(self.next_note))
    }

    /// The time until which peers may come back, if the group continued earlier.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }
}

impl Master {
    fn recovers(&self) -> bool {
        self.config.recovery.policy != Recover::Manual
    }

    /// A member of a group departed: notes whether the state of the group is lost.
    pub(super) fn note_loss(&mut self, id: GroupId, synced: Option<Revision>, left: bool) {
        let members = self.roster.members(id);
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.is_new() {
            group.lost = None;
            return;
        }
        let last = group.last_revision();
        let was_holder = last.is_some() && synced == last;
        if was_holder && left {
            group.holders = group.holders.saturating_sub(1);
        }
        let holds = |peer: &PeerId| self.roster.get(*peer).and_then(|r| r.synced) == last;
        let is_lost = was_holder && !members.iter().any(holds);
        // Those who came back are lost again.
        if is_lost || (members.is_empty() && group.lost.is_some()) {
            group.lost = Some(LostState { stayed: members.into_iter().collect(), ..LostState::default() });
        }
    }

    /// Lets peers of groups without a state in when enough of them are back, or the deadline has passed.
    pub(super) fn advance_recovery(&mut self, now: Time) -> bool {
        if !self.recovers() || self.restoration.is_some() {
            return false;
        }
        let pending = self.roster.pending().filter_map(|p| self.roster.group_of(p));
        let new = pending.filter(|_| self.config.recovery.min.is_some_and(|min| min > 1));
        let ids: BTreeSet<_> = self.groups.keys().copied().chain(new).collect();
        ids.into_iter().any(|id| self.advance_group_recovery(now, id))
    }

    fn advance_group_recovery(&mut self, now: Time, id: GroupId) -> bool {
        let pending = self.roster.pending().filter(|p| self.roster.group_of(*p) == Some(id));
        let pending: Vec<_> =
            pending.filter(|p| !self.suspects.contains_key(p) && self.is_whole(*p)).collect();
        let is_empty = self.roster.members(id).is_empty();
        let (settings, note_every) = (self.config.recovery, self.config.timing.warn_after);
        if is_empty && !pending.is_empty() && settings.min.is_some() {
            let group = self.groups.entry(id).or_default();
            if group.is_new() {
                // A new master cannot know whether there was a run before.
                group.lost.get_or_insert_default();
            }
        }
        let Some(group) = self.groups.get_mut(&id) else { return false };
        let (is_new, needed) = (group.is_new(), needed_peers(group, settings.min));
        let Some(lost) = group.lost.as_mut().filter(|lost| is_empty && !lost.open) else { return false };
        if pending.is_empty() {
            lost.deadline = None;
            if is_new {
                (group.lost, group.stage) = (None, EpochStage::Stale);
            }
            return is_new;
        }
        let returned: Vec<_> = pending.iter().copied().filter(|p| !lost.stayed.contains(p)).collect();
        if lost.deadline.is_none() {
            (lost.deadline, lost.next_note) = (Some(now + settings.after), now);
        }
        let deadline = lost.deadline.unwrap_or(now);
        if returned.len() >= needed || deadline <= now {
            lost.open = true;
            return true;
        }
        if lost.next_note <= now {
            lost.next_note = now + note_every;
            let returned = returned.into_iter().map(|p| self.peer_name(p)).collect();
            self.notify(Event::AwaitsReturn { group: id, returned, needed, left: deadline.since(now) });
        }
        false
    }

    /// Whether pending peers of a group have to wait until others are back.
    pub(super) fn is_held_back(&self, peer: PeerId) -> bool {
        let Some(id) = self.roster.group_of(peer).filter(|_| self.recovers()) else { return false };
        let lost = self.groups.get(&id).and_then(|group| group.lost.as_ref());
        lost.is_some_and(|lost| !lost.open) && self.roster.members(id).is_empty()
    }

    /// If members that never held the lost state sync before enough peers are back, they wait with those that come back.
    pub(super) fn postpone_sync(&mut self, now: Time, id: GroupId) -> bool {
        let members = self.roster.members(id);
        let (settings, recovers) = (self.config.recovery, self.recovers());
        let Some(group) = self.groups.get_mut(&id).filter(|_| recovers) else { return false };
        let needed = needed_peers(group, settings.min);
        let Some(lost) = group.lost.as_mut().filter(|lost| !lost.open) else { return false };
        if members.iter().filter(|p| !lost.stayed.contains(p)).count() >= needed {
            lost.open = true;
            return false;
        }
        (lost.deadline, lost.next_note) = (Some(now + settings.after), now);
        group.sync = None;
        self.end_epoch(id, &Cause::EpochEnded);
        for peer in members {
            self.forget_votes(peer);
            self.forget_probes(peer);
            self.demote(peer);
            if let Some(group) = self.groups.get_mut(&id) {
                group.forget(peer);
            }
        }
        true
    }
}

/// How many peers must be back before the deadline.
fn needed_peers(group: &Group, min: Option<usize>) -> usize {
    match group.next_revision {
        Some(_) => min.unwrap_or(group.holders).min(group.holders),
        None => min.unwrap_or(0),
    }
}
