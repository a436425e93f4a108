//! The end of a membership, and its consequences for the others.

use super::{Master, MasterAction};
use crate::cause::{Cause, Departure, Removal};
use crate::event::Event;
use crate::id::{PeerId, Revision};
use crate::message::ToPeer;

use super::roster::PeerStatus;

impl Master {
    /// Removes a peer. If it was a member, operations that all living members have done are committed, all others of
    /// its group are aborted, and its group gets a new epoch (R6). The other ranks of its replica are lost with it, unless it
    /// left.
    pub(super) fn remove(&mut self, peer: PeerId, how: Departure) {
        let mut departing = self.departures_with(peer, &how);
        departing.insert(0, (peer, how));
        self.remove_all(departing);
    }

    /// Removes these peers at once.
    pub(super) fn remove_all(&mut self, departing: Vec<(PeerId, Departure)>) {
        let peers: Vec<_> = departing.iter().map(|(peer, _)| *peer).collect();
        if peers.iter().any(|peer| self.roster.is_accepted(*peer)) {
            self.announce_members(&peers);
        }
        for (peer, how) in departing {
            self.remove_one(peer, how);
        }
    }

    fn remove_one(&mut self, peer: PeerId, how: Departure) {
        let name = self.peer_name(peer);
        if let Some(conn) = self.roster.get(peer).and_then(|r| r.conn) {
            if how != Departure::Left {
                self.send(peer, ToPeer::Removed { reason: Removal::Departed(how.clone()) });
            }
            self.actions.push_back(MasterAction::Close { conn });
            self.roster.disconnect(conn);
        }
        self.suspects.remove(&peer);
        let Some(record) = self.roster.remove(peer) else { return };
        self.rejected.remove(&peer);
        let left = how == Departure::Left;
        self.notify(Event::Departed(name.clone(), how.clone()));
        self.forget_votes(peer);
        match record.status {
            PeerStatus::Pending => {}
            PeerStatus::Returned => self.forget_returned(peer),
            PeerStatus::Accepted => {
                // Commits what all living members have done, before the rest is aborted.
                self.advance_ops();
                let id = record.join.group;
                self.end_epoch(id, &Cause::PeerLost { who: name, how });
                self.forget_probes(peer);
                let is_last = self.roster.iter().all(|other| other.join.group != id);
                if let Some(group) = self.groups.get_mut(&id) {
                    group.forget(peer);
                    // If the last member held the state and left by itself, the run is over. If it died, new peers must
                    // not restart silently at another revision.
                    let next = record.synced.map(|synced| Revision(synced.0.saturating_add(1)));
                    if is_last
                        && left
                        && let Some(next) = next.filter(|_| group.next_revision == next)
                    {
                        group.next_revision = None;
                        (group.holders, group.lost) = (0, None);
                        group.ended_before = Some(next);
                        self.notify(Event::RunEnded(id, next));
                    }
                }
                self.note_loss(id, record.synced, left);
            }
        }
    }

    pub(super) fn forget_votes(&mut self, peer: PeerId) {
        for votes in self.votes.values_mut() {
            votes.round.withdraw(peer);
        }
        if let Some(admitting) = &mut self.admitting {
            admitting.withdraw(peer);
        }
        for group in self.groups.values_mut() {
            if let Some(sync) = &mut group.sync {
                sync.forget(peer);
            }
            for op in group.ops.values_mut() {
                op.round.withdraw(peer);
                op.started.remove(&peer);
            }
        }
        self.drop_empty_rounds();
    }
}
