//! How a peer stops being part of the run, whatever the reason, and what follows for the others.

use super::{Master, MasterAction};
use crate::cause::{Cause, Departure, Removal};
use crate::event::Event;
use crate::id::{PeerId, Revision};
use crate::message::ToPeer;

use super::roster::PeerStatus;

impl Master {
    /// Removes a peer. If it was a member: operations that all living members have done are committed,
    /// all others of its group are aborted, and its group gets a new epoch (R6).
    pub(super) fn remove(&mut self, peer: PeerId, how: Departure) {
        let name = self.peer_name(peer);
        if let Some(conn) = self.roster.get(peer).and_then(|r| r.conn) {
            if how != Departure::Left {
                self.send(peer, ToPeer::Removed { reason: Removal::Departed(how.clone()) });
            }
            self.actions.push_back(MasterAction::Close { conn });
            self.roster.disconnect(conn);
        }
        let Some(record) = self.roster.remove(peer) else { return };
        let left = how == Departure::Left;
        self.notify(Event::Departed(name.clone(), how.clone()));
        self.forget_votes(peer);
        match record.status {
            PeerStatus::Pending => {}
            PeerStatus::Returned => self.forget_returned(peer),
            PeerStatus::Accepted => {
                // Whatever all living members have done is decided before the rest is aborted.
                self.advance_ops();
                let id = record.join.group;
                self.end_epoch(id, &Cause::PeerLost { who: name, how });
                self.forget_probes(peer);
                let is_last = self.roster.iter().all(|other| other.join.group != id);
                if let Some(group) = self.groups.get_mut(&id) {
                    group.forget(peer);
                    // Whoever holds the state, is the last and says goodbye has ended the run. Where the last one died,
                    // somebody may come back for what was lost, and must not begin anew without a word.
                    let next = record.synced.map(|synced| Revision(synced.0.saturating_add(1)));
                    if is_last
                        && left
                        && let Some(next) = next.filter(|_| group.next_revision == next)
                    {
                        group.next_revision = None;
                        group.ended_before = Some(next);
                        self.notify(Event::RunEnded(id, next));
                    }
                }
            }
        }
    }

    fn forget_votes(&mut self, peer: PeerId) {
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
