//! What plans may know of a group: its ring, and which pairs are linked how. Equal on all ranks.

use ringfold_proto::epoch::{EpochDescription, MissingPair};
use ringfold_proto::id::Rank;
use std::collections::BTreeSet;

/// The shape of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupShape {
    /// The ring, as ranks: a permutation of all of them.
    pub ring: Vec<Rank>,
    /// The host of each rank; equal numbers share memory.
    pub hosts: Vec<u64>,
    /// The site of each rank.
    pub sites: Vec<u32>,
    /// Whether pairs beside the ring's edges are linked at all.
    pub mesh: bool,
    /// Pairs that have no link.
    pub missing: BTreeSet<MissingPair>,
}

impl GroupShape {
    /// A group whose ring is its rank order, every pair linked, every rank on a host of its own.
    pub fn uniform(world: usize) -> Self {
        Self {
            ring: (0..world).map(Rank::from_index).collect(),
            hosts: (0..world as u64).collect(),
            sites: vec![0; world],
            mesh: true,
            missing: BTreeSet::new(),
        }
    }

    /// The shape that an epoch's description tells.
    pub fn of(epoch: &EpochDescription) -> Self {
        Self {
            ring: epoch.ring.clone(),
            hosts: epoch.members.iter().map(|m| m.host).collect(),
            sites: epoch.members.iter().map(|m| m.site).collect(),
            mesh: epoch.mesh,
            missing: epoch.missing.iter().copied().collect(),
        }
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.ring.len()
    }

    /// Whether every pair is linked, so that plans need not keep to the ring.
    pub fn is_full_mesh(&self) -> bool {
        self.mesh && self.missing.is_empty()
    }

    /// Whether all ranks are on one host.
    pub fn is_on_one_host(&self) -> bool {
        self.hosts.iter().all(|host| *host == self.hosts[0])
    }

    /// Whether two ranks are linked.
    pub fn is_linked(&self, a: Rank, b: Rank) -> bool {
        let on_ring = || self.ahead(a, 1) == b || self.ahead(b, 1) == a;
        let meshed = || self.mesh && !self.missing.contains(&MissingPair(a.min(b), a.max(b)));
        a != b && (meshed() || on_ring())
    }

    /// The position of a rank on the ring.
    pub fn position(&self, rank: Rank) -> usize {
        self.ring.iter().position(|r| *r == rank).unwrap_or(0)
    }

    /// The rank so many places further along the ring.
    pub fn ahead(&self, rank: Rank, places: usize) -> Rank {
        self.ring[(self.position(rank) + places) % self.world()]
    }
}
