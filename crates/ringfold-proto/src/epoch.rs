//! Epochs: the membership of a group between two changes of it.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::cause::PeerName;
use crate::cores::CoreShare;
use crate::id::{EpochId, OpId, PeerId, Rank};
use crate::network::Network;
use crate::tuning::Tuning;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;

/// A member, as the other members need to know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub peer: PeerId,
    pub name: String,
    /// The id of its host. Members with the same id try shared memory.
    pub host: u64,
    pub site: u32,
    /// The cores of its host that it may use.
    pub cores: CoreShare,
    pub addresses: Vec<SocketAddr>,
}

impl Member {
    pub fn peer_name(&self) -> PeerName {
        PeerName { peer: self.peer, name: self.name.clone() }
    }
}

/// A relay, for two members that cannot reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RelayAddress {
    /// The member that volunteers; zero for a relay that is no peer.
    pub peer: PeerId,
    pub address: SocketAddr,
}

/// Two members without a link, the lower rank first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct MissingPair(pub Rank, pub Rank);

/// An operation of an earlier epoch that all members resume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResumedOp {
    /// Its id before. It is the first operation of its tag in the new epoch.
    pub op: OpId,
    /// For each member as an owner, and then for each member as a contributor: how many of the owner's chunks it holds of the
    /// contributor.
    pub held: Vec<u32>,
}

/// Everything that a member needs to know of an epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpochDescription {
    pub id: EpochId,
    /// The members, oldest first; a member's position is its rank. Shared, because every member gets all of them.
    pub members: Arc<[Member]>,
    pub ring: Vec<Rank>,
    /// Whether all pairs get a link, not only those of the ring.
    pub mesh: bool,
    /// Pairs without a link; known once the epoch is open.
    pub missing: Vec<MissingPair>,
    /// The network that plans are chosen for; known once the epoch is open, and none if it makes no difference.
    pub network: Option<Box<Network>>,
    /// Operations of earlier epochs that all members resume; known once the epoch is open.
    pub resumed: Vec<ResumedOp>,
    /// The tuning of plans, the same for all members.
    pub tuning: Tuning,
    /// The key that authenticates connections between members.
    pub key: [u8; 32],
    /// Where pairs meet that cannot reach each other, in the order of preference.
    pub relays: Vec<RelayAddress>,
}

impl EpochDescription {
    /// The rank of a peer, if it is a member.
    pub fn rank_of(&self, peer: PeerId) -> Option<Rank> {
        self.members.iter().position(|m| m.peer == peer).map(Rank::from_index)
    }

    /// The members that `rank` needs a link with.
    pub fn neighbours(&self, rank: Rank) -> Vec<&Member> {
        if self.mesh {
            let others = self.members.iter().enumerate().filter(|(i, _)| *i != rank.index());
            return others.map(|(_, member)| member).collect();
        }
        let world = self.ring.len();
        let Some(at) = self.ring.iter().position(|r| *r == rank) else { return Vec::new() };
        let mut found: Vec<_> = [(at + world - 1) % world, (at + 1) % world].map(|i| self.ring[i]).into();
        found.sort_unstable();
        found.dedup();
        found.into_iter().filter(|r| *r != rank).filter_map(|r| self.members.get(r.index())).collect()
    }

    /// Whether all pairs are linked.
    pub fn is_full_mesh(&self) -> bool {
        self.mesh && self.missing.is_empty()
    }

    /// Whether the ring has an edge between the two, in either direction.
    pub fn are_ring_neighbours(&self, a: Rank, b: Rank) -> bool {
        let next = |r: Rank| {
            let at = self.ring.iter().position(|x| *x == r)?;
            self.ring.get((at + 1) % self.ring.len()).copied()
        };
        next(a) == Some(b) || next(b) == Some(a)
    }

    /// Whether what became known of a valid description when it was opened is valid, too.
    pub fn are_links_valid(&self) -> bool {
        let world = self.members.len();
        let pairs_ok = self.missing.iter().all(|p| p.0.index() < world && p.1.index() < world);
        let resumed_ok = self.resumed.iter().all(|resumed| resumed.held.len() == world * world);
        pairs_ok && resumed_ok && self.network.as_ref().is_none_or(|network| network.is_valid_for(world))
    }

    /// Whether a received description is valid: ranks in range, no duplicates, the ring a permutation, `me` a member.
    pub fn is_valid_for(&self, me: PeerId) -> bool {
        let world = self.members.len();
        let mut seen = vec![false; world];
        let ring_ok = self.ring.len() == world
            && self
                .ring
                .iter()
                .all(|r| seen.get_mut(r.index()).is_some_and(|s| !core::mem::replace(s, true)));
        let mut peers: Vec<_> = self.members.iter().map(|m| m.peer).collect();
        peers.sort_unstable();
        let are_distinct = peers.windows(2).all(|pair| pair[0] != pair[1]);
        let world_ok = (1..=crate::limits::WORLD_MAX).contains(&world) && are_distinct;
        world_ok && ring_ok && self.are_links_valid() && peers.binary_search(&me).is_ok()
    }
}

/// World sizes for users. They count accepted peers only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attributes {
    /// Accepted peers of the run.
    pub global_world: u32,
    /// Accepted peers of this group.
    pub group_world: u32,
    /// Groups that have an accepted peer.
    pub groups: u32,
    /// Accepted peers of the largest group.
    pub largest_group_world: u32,
}

impl Attributes {
    /// The sizes with `world` members in this group: members that departed since still count.
    pub fn with_group_world(self, world: u32) -> Self {
        Self {
            global_world: self.global_world.saturating_sub(self.group_world).saturating_add(world),
            group_world: world,
            groups: self.groups.max(1),
            largest_group_world: self.largest_group_world.max(world),
        }
    }
}
