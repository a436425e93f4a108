//! Everyone whom the master knows, and the connections they speak on.

use super::rejected::Rejected;
use crate::cause::PeerName;
use crate::id::{ConnId, GroupId, PeerId, Revision};
use crate::message::{Join, ToPeer};
use crate::session::Session;
use crate::time::Time;
use std::collections::BTreeMap;

/// How far a peer has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Registered, not accepted.
    Pending,
    /// A member.
    Accepted,
    /// A member of an earlier life of the master, waiting for the run to go on.
    Returned,
}

/// What the master knows of a peer.
#[derive(Debug)]
pub(super) struct PeerRecord {
    pub peer: PeerId,
    pub conn: Option<ConnId>,
    pub session: Session<ToPeer>,
    pub join: Join,
    pub standing: Standing,
    /// The place among all who ever joined; lower is older.
    pub seniority: u64,
    pub heard_at: Time,
    /// What the peer says without having had this message of ours speaks of a membership that is no more.
    pub outdated_before: u64,
    /// The last revision that the peer completed a sync of.
    pub synced: Option<Revision>,
    /// Its shared state was rejected, and it made no call since.
    pub rejected: Option<Rejected>,
}

#[derive(Debug, Default)]
pub(super) struct Roster {
    peers: BTreeMap<PeerId, PeerRecord>,
    conns: BTreeMap<ConnId, PeerId>,
    joined: u64,
}

impl Roster {
    pub fn connect(&mut self, conn: ConnId, peer: PeerId) {
        self.conns.insert(conn, peer);
    }

    pub fn peer_on(&self, conn: ConnId) -> Option<PeerId> {
        self.conns.get(&conn).copied()
    }

    /// The peer's record, if the connection is the one that it speaks on now.
    pub fn current_mut(&mut self, conn: ConnId, peer: PeerId) -> Option<&mut PeerRecord> {
        self.peers.get_mut(&peer).filter(|r| r.conn == Some(conn))
    }

    /// Forgets a connection; says whose it was if that peer spoke on it.
    pub fn disconnect(&mut self, conn: ConnId) -> Option<PeerId> {
        let peer = self.conns.remove(&conn)?;
        let record = self.peers.get_mut(&peer).filter(|r| r.conn == Some(conn))?;
        record.conn = None;
        Some(peer)
    }

    pub fn insert(&mut self, record: PeerRecord) {
        self.joined = self.joined.max(record.seniority + 1);
        self.peers.insert(record.peer, record);
    }

    pub fn remove(&mut self, peer: PeerId) -> Option<PeerRecord> {
        self.peers.remove(&peer)
    }

    pub fn next_seniority(&self) -> u64 {
        self.joined
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

    pub fn len(&self) -> usize {
        self.peers.len()
    }

    pub fn is_accepted(&self, peer: PeerId) -> bool {
        self.get(peer).is_some_and(|r| r.standing == Standing::Accepted)
    }

    pub fn group_of(&self, peer: PeerId) -> Option<GroupId> {
        self.get(peer).map(|r| r.join.group)
    }

    /// Peers of a standing, oldest first.
    pub fn of_standing(&self, standing: Standing) -> impl Iterator<Item = PeerId> + use<> {
        let mut found: Vec<_> =
            self.peers.values().filter(|r| r.standing == standing).map(|r| (r.seniority, r.peer)).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, peer)| peer)
    }

    pub fn accepted(&self) -> impl Iterator<Item = PeerId> + use<> {
        self.of_standing(Standing::Accepted)
    }

    pub fn pending(&self) -> impl Iterator<Item = PeerId> + use<> {
        self.of_standing(Standing::Pending)
    }

    /// The members of a group, oldest first.
    pub fn members(&self, group: GroupId) -> Vec<PeerId> {
        self.accepted().filter(|p| self.group_of(*p) == Some(group)).collect()
    }

    pub fn named(&self, peer: PeerId) -> PeerName {
        let name = self.get(peer).map_or_else(|| peer.short(), |r| r.join.name.clone());
        PeerName { peer, name }
    }
}
