//! The peers that the master knows, and their connections.

use super::rejected_state::RejectedState;
use crate::cause::PeerName;
use crate::id::{ConnId, GroupId, PeerId, Revision};
use crate::message::{Join, ToPeer};
use crate::session::Session;
use crate::time::Time;
use std::collections::BTreeMap;

/// The status of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerStatus {
    /// Registered, not accepted.
    Pending,
    /// A member.
    Accepted,
    /// A member of an earlier incarnation of the master, waiting for the run to continue.
    Returned,
}

/// What the master knows about a peer.
#[derive(Debug)]
pub(super) struct PeerRecord {
    pub peer: PeerId,
    pub conn: Option<ConnId>,
    pub session: Session<ToPeer>,
    pub join: Join,
    pub status: PeerStatus,
    /// Counts all peers that ever joined; lower is older.
    pub seniority: u64,
    pub heard_at: Time,
    /// Messages of the peer that do not acknowledge this number belong to an ended membership.
    pub outdated_before: u64,
    /// The revision of the last sync that the peer completed.
    pub synced: Option<Revision>,
    /// Whether it was a member of an open epoch.
    pub had_epoch: bool,
    /// Its links, as far as it reported them.
    pub links: BTreeMap<PeerId, LinkReport>,
    /// Set if its shared state was rejected, until its next call.
    pub rejected: Option<RejectedState>,
}

/// What a peer reported of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkReport {
    Up,
    /// It ended, as was first reported at this time, and is not up again.
    Ended(Time),
}

#[derive(Debug, Default)]
pub(super) struct Roster {
    pub peers: BTreeMap<PeerId, PeerRecord>,
    pub conns: BTreeMap<ConnId, PeerId>,
    /// The seniority of the next peer.
    pub next_seniority: u64,
}

impl Roster {
    pub fn peer_on(&self, conn: ConnId) -> Option<PeerId> {
        self.conns.get(&conn).copied()
    }

    /// The peer's record, if this is its current connection.
    pub fn current_mut(&mut self, conn: ConnId, peer: PeerId) -> Option<&mut PeerRecord> {
        self.peers.get_mut(&peer).filter(|r| r.conn == Some(conn))
    }

    /// Drops a connection. Returns the peer if it was the peer's current connection.
    pub fn disconnect(&mut self, conn: ConnId) -> Option<PeerId> {
        let peer = self.conns.remove(&conn)?;
        let record = self.peers.get_mut(&peer).filter(|r| r.conn == Some(conn))?;
        record.conn = None;
        Some(peer)
    }

    pub fn insert(&mut self, record: PeerRecord) {
        self.next_seniority = self.next_seniority.max(record.seniority + 1);
        self.peers.insert(record.peer, record);
    }

    pub fn get(&self, peer: PeerId) -> Option<&PeerRecord> {
        self.peers.get(&peer)
    }

    pub fn get_mut(&mut self, peer: PeerId) -> Option<&mut PeerRecord> {
        self.peers.get_mut(&peer)
    }

    pub fn iter(&self) -> impl Iterator<Item = &PeerRecord> {
        self.peers.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut PeerRecord> {
        self.peers.values_mut()
    }

    pub fn is_accepted(&self, peer: PeerId) -> bool {
        self.get(peer).is_some_and(|r| r.status == PeerStatus::Accepted)
    }

    pub fn group_of(&self, peer: PeerId) -> Option<GroupId> {
        self.get(peer).map(|r| r.join.group)
    }

    /// The peers with this status, oldest first.
    pub fn with_status(&self, status: PeerStatus) -> impl Iterator<Item = PeerId> + use<> {
        let mut found: Vec<_> =
            self.peers.values().filter(|r| r.status == status).map(|r| (r.seniority, r.peer)).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, peer)| peer)
    }

    pub fn accepted(&self) -> impl Iterator<Item = PeerId> + use<> {
        self.with_status(PeerStatus::Accepted)
    }

    pub fn pending(&self) -> impl Iterator<Item = PeerId> + use<> {
        self.with_status(PeerStatus::Pending)
    }

    /// The members of a group, oldest first.
    pub fn members(&self, group: GroupId) -> Vec<PeerId> {
        self.accepted().filter(|p| self.group_of(*p) == Some(group)).collect()
    }

    pub fn peer_name(&self, peer: PeerId) -> PeerName {
        let name = self.get(peer).map_or_else(|| peer.short(), |r| r.join.name.clone());
        PeerName { peer, name }
    }
}
