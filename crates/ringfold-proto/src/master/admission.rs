//! Admission: new peers are registered, and become members when all members vote for it.

use super::roster::{PeerRecord, PeerStatus};
use super::{Master, MasterAction};
use crate::cause::{Departure, JoinRejection, Removal, ReplicaRejection};
use crate::event::Event;
use crate::id::{ConnId, PeerId};
use crate::limits;
use crate::message::{Answer, Join, Numbered, Phase, Replica, ToPeer};
use crate::session::Session;
use crate::time::Time;
use std::collections::BTreeSet;

impl Master {
    pub(super) fn handle_join(
        &mut self,
        now: Time,
        conn: ConnId,
        peer: PeerId,
        join: Join,
        replica: Option<Replica>,
        returns: bool,
    ) {
        let mut lost_replica = None;
        if self.roster.get(peer).is_some_and(|r| r.conn != Some(conn)) {
            // Its connection broke, and the peer noticed it first. It joins as a new peer.
            if self.is_replica_admitted(peer) && !returns {
                lost_replica = Some(ReplicaRejection::Admitted);
                self.remove(peer, Departure::ConnectionLost);
            } else {
                // The other ranks of its replica stay.
                self.remove_all(vec![(peer, Departure::ConnectionLost)]);
            }
        }
        let invalid_replica = || lost_replica.or_else(|| self.check_replica(join.group, replica?, returns));
        let draining = (self.draining && !returns).then_some(JoinRejection::Draining);
        let invalid = || self.check_join(peer, &join);
        let rejected = draining.or_else(invalid).or_else(|| invalid_replica().map(JoinRejection::Replica));
        if let Some(why) = rejected {
            let name =
                crate::cause::PeerName { peer, name: truncate_text(&join.name, limits::NAME_BYTES_MAX) };
            self.notify(Event::JoinRejected(name, why.clone()));
            return self.reject_join(conn, why);
        }
        let record = PeerRecord {
            peer,
            conn: Some(conn),
            session: Session::default(),
            join: Join { name: truncate_text(&join.name, limits::NAME_BYTES_MAX), ..join },
            replica,
            status: PeerStatus::Pending,
            seniority: self.roster.next_seniority,
            heard_at: now,
            outdated_before: 0,
            synced: None,
            fetched: None,
            had_epoch: false,
            seat: None,
            ended_links: BTreeSet::new(),
        };
        let seniority = record.seniority;
        self.roster.insert(record);
        self.note_replica(now, peer);
        self.send(peer, ToPeer::Registered { incarnation: self.incarnation, seniority });
        self.notify(Event::Registered(self.peer_name(peer)));
    }

    /// Rejects a connection with a reason. If it is the connection of a member, that is evicted.
    pub(super) fn reject_join(&mut self, conn: ConnId, why: JoinRejection) {
        let message = ToPeer::Removed { reason: Removal::Rejected(why) };
        let message = Box::new(Numbered { number: 0, acknowledged: 0, message });
        self.actions.push_back(MasterAction::Send { conn, message });
        self.actions.push_back(MasterAction::Close { conn });
        if let Some(peer) = self.roster.disconnect(conn) {
            self.remove(peer, Departure::ConnectionLost);
        }
    }

    /// Admits pending peers if there are no members yet, or when all members have voted. Answers the votes when every
    /// group's epoch is open.
    pub(super) fn advance_admission(&mut self, now: Time) -> bool {
        if self.restoration.is_some() {
            return false;
        }
        if self.roster.world() == 0 {
            return self.admit(now);
        }
        if self.admitting.is_some() {
            if !self.all_epochs_open() {
                return false;
            }
            let Some(votes) = self.admitting.take() else { return false };
            self.complete_phase(Phase::Topology, votes, Answer::Topology);
            return true;
        }
        let Some(votes) = self.take_complete(Phase::Topology) else { return false };
        self.admitting = Some(votes);
        self.admit(now);
        true
    }

    fn admit(&mut self, now: Time) -> bool {
        let pending = self.admissible();
        for peer in &pending {
            self.roster.set_status(*peer, PeerStatus::Accepted);
            let Some(record) = self.roster.get_mut(*peer) else { continue };
            record.heard_at = now;
            let id = record.join.group;
            let group = self.groups.entry(id).or_default();
            group.ring.push(*peer);
            group.better_ring = None;
            group.improving = None;
            group.stage = super::group::EpochStage::Stale;
            self.notify(Event::Accepted(self.peer_name(*peer), id));
        }
        if !pending.is_empty() {
            self.announce_members(&[]);
        }
        !pending.is_empty()
    }

    fn check_join(&self, peer: PeerId, join: &Join) -> Option<JoinRejection> {
        if self.roster.get(peer).is_some() {
            return Some(JoinRejection::AlreadyMember);
        }
        if self.roster.len() >= self.config.peers_max.min(limits::WORLD_MAX) {
            return Some(JoinRejection::RunFull);
        }
        if self.groups.len() >= limits::GROUPS_MAX && !self.groups.contains_key(&join.group) {
            return Some(JoinRejection::TooManyGroups);
        }
        if join.addresses.len() > limits::ADDRESSES_MAX {
            return Some(JoinRejection::TooManyAddresses);
        }
        None
    }
}

/// Truncates a text to at most this many bytes.
pub(super) fn truncate_text(text: &str, bytes_max: usize) -> String {
    let end = (0..=text.len().min(bytes_max)).rev().find(|i| text.is_char_boundary(*i));
    text[..end.unwrap_or(0)].to_owned()
}
