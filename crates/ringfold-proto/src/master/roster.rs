//! The peers that the master knows, and their connections.

use crate::cause::PeerName;
use crate::epoch::EpochDescription;
use crate::id::{ConnId, EpochId, GroupId, PeerId, Revision};
use crate::message::{Join, Replica, ToPeer};
use crate::session::Session;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

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
    /// The replica that it is a rank of, if any; without ranks that left.
    pub replica: Option<Replica>,
    pub status: PeerStatus,
    /// Counts all peers that ever joined; lower is older.
    pub seniority: u64,
    pub heard_at: Time,
    /// Messages of the peer that do not acknowledge this number belong to an ended membership.
    pub outdated_before: u64,
    /// The revision of the last sync that the peer completed.
    pub synced: Option<Revision>,
    /// The bytes of shared state that it has fetched, and of those that it fetches, as it last reported.
    pub fetched: Option<(u64, u64)>,
    /// Whether it was a member of an open epoch.
    pub had_epoch: bool,
    /// Its place in the last epoch that it was described in.
    pub seat: Option<Seat>,
    /// The peers whose links with it have ended, as it reported.
    pub ended_links: BTreeSet<PeerId>,
}

impl PeerRecord {
    /// Whether it is a member of this epoch.
    pub fn is_in(&self, epoch: EpochId) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.epoch == epoch)
    }
}

/// The place of a peer in an epoch.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub epoch: EpochId,
    /// The members that it has links with.
    pub neighbours: Vec<PeerId>,
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
    peers: BTreeMap<PeerId, PeerRecord>,
    pub conns: BTreeMap<ConnId, PeerId>,
    /// The numbers of accepted peers, by group; groups without any are not here.
    worlds: BTreeMap<GroupId, u32>,
    /// What peers reported of their links: the peer that it is about, and the one that reported it.
    links: BTreeMap<(PeerId, PeerId), LinkReport>,
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

    /// Adds a peer, or replaces one that returns.
    pub fn insert(&mut self, record: PeerRecord) {
        self.remove(record.peer);
        self.next_seniority = self.next_seniority.max(record.seniority + 1);
        self.count(record.status, record.join.group, 1);
        self.peers.insert(record.peer, record);
    }

    /// Removes a peer, and what it and others reported of its links.
    pub fn remove(&mut self, peer: PeerId) -> Option<PeerRecord> {
        let record = self.peers.remove(&peer)?;
        self.count(record.status, record.join.group, -1);
        self.links.retain(|(about, from), _| *about != peer && *from != peer);
        Some(record)
    }

    pub fn set_status(&mut self, peer: PeerId, status: PeerStatus) {
        let Some(record) = self.peers.get_mut(&peer) else { return };
        let before = core::mem::replace(&mut record.status, status);
        let group = record.join.group;
        self.count(before, group, -1);
        self.count(status, group, 1);
    }

    fn count(&mut self, status: PeerStatus, group: GroupId, change: i32) {
        if status == PeerStatus::Accepted {
            let world = self.worlds.entry(group).or_default();
            *world = world.saturating_add_signed(change);
            if *world == 0 {
                self.worlds.remove(&group);
            }
        }
    }

    /// The number of peers.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// The number of accepted peers.
    pub fn world(&self) -> usize {
        self.worlds.values().map(|world| *world as usize).sum()
    }

    /// The number of members of a group.
    pub fn group_world(&self, group: GroupId) -> usize {
        self.worlds.get(&group).map_or(0, |world| *world as usize)
    }

    /// The numbers of accepted peers, by group.
    pub fn worlds(&self) -> &BTreeMap<GroupId, u32> {
        &self.worlds
    }

    /// Gives the members of an epoch their places.
    pub fn seat(&mut self, description: &EpochDescription) {
        let (epoch, ring) = (description.id, &description.ring);
        let peer_at = |at: usize| description.members.get(ring.get(at % ring.len())?.index()).map(|m| m.peer);
        for (at, rank) in ring.iter().enumerate() {
            let Some(record) = peer_at(at).and_then(|peer| self.peers.get_mut(&peer)) else { continue };
            let neighbours = match description.mesh {
                true => description.neighbours(*rank).into_iter().map(|member| member.peer).collect(),
                // As in `EpochDescription::neighbours`, without a search for the rank.
                false => [at + ring.len() - 1, at + 1].into_iter().filter_map(peer_at).collect(),
            };
            record.seat = Some(Seat { epoch, neighbours });
        }
    }

    /// A peer reports that its link with another one is up, unless it has reported that it ended.
    pub fn link_established(&mut self, from: PeerId, about: PeerId) {
        self.links.entry((about, from)).or_insert(LinkReport::Up);
    }

    /// A peer reports the links that it heard from, and all that have ended.
    pub fn report_links(&mut self, now: Time, from: PeerId, heard: Vec<PeerId>, ended: BTreeSet<PeerId>) {
        let Some(record) = self.peers.get_mut(&from) else { return };
        // A link that had ended is up again, or is not wanted any more.
        for about in core::mem::replace(&mut record.ended_links, ended.clone()) {
            if !ended.contains(&about) {
                self.links.remove(&(about, from));
            }
        }
        for about in heard {
            self.links.insert((about, from), LinkReport::Up);
        }
        for about in ended {
            let report = self.links.entry((about, from)).or_insert(LinkReport::Up);
            if *report == LinkReport::Up {
                *report = LinkReport::Ended(now);
            }
        }
    }

    /// The peers that reported a link with this one, and what.
    pub fn reports_about(&self, peer: PeerId) -> impl Iterator<Item = (PeerId, LinkReport)> + '_ {
        let of_peer = self.links.range((peer, PeerId(0))..=(peer, PeerId(u128::MAX)));
        of_peer.map(|((_, from), report)| (*from, *report))
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
