//! The shape of a group, on which plans depend: its ring and its links. The same on all ranks.

use crate::network::NetworkView;
use ringfold_proto::epoch::{EpochDescription, MissingPair};
use ringfold_proto::id::Rank;
use ringfold_proto::network::Network;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The shape of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupShape {
    /// The ranks in ring order.
    pub ring: Vec<Rank>,
    /// The host of each rank; equal numbers share memory.
    pub hosts: Vec<u64>,
    /// The site of each rank.
    pub sites: Vec<u32>,
    /// Whether there are links besides the ring's edges.
    pub mesh: bool,
    /// Pairs that have no link.
    pub missing: BTreeSet<MissingPair>,
    /// The network between the ranks, if plans depend on it.
    pub network: Option<Arc<NetworkView>>,
}

impl GroupShape {
    /// A group with all links, in which the ring is the rank order and every rank has its own host.
    pub fn uniform(world: usize) -> Self {
        Self {
            ring: (0..world).map(Rank::from_index).collect(),
            hosts: (0..world as u64).collect(),
            sites: vec![0; world],
            mesh: true,
            missing: BTreeSet::new(),
            network: None,
        }
    }

    /// The shape of an epoch.
    pub fn of(epoch: &EpochDescription) -> Self {
        let shape = Self {
            ring: epoch.ring.clone(),
            hosts: epoch.members.iter().map(|m| m.host).collect(),
            sites: epoch.members.iter().map(|m| m.site).collect(),
            mesh: epoch.mesh,
            missing: epoch.missing.iter().copied().collect(),
            network: None,
        };
        shape.with_network(epoch.network.as_deref())
    }

    /// The shape with another network, or none. If there are links besides the ring's edges, the ring is adapted to it.
    pub fn with_network(self, network: Option<&Network>) -> Self {
        let usable = network.filter(|network| self.mesh && network.is_valid_for(self.world()));
        let Some(network) = usable else { return Self { network: None, ..self } };
        let view = NetworkView::new(network, &self.hosts, &self.sites, &self.missing);
        let ring = crate::network::improve_ring(&view, &self.ring);
        Self { ring, network: Some(Arc::new(view)), ..self }
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.ring.len()
    }

    /// Whether every pair is linked.
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

    /// The rank `distance` positions further along the ring.
    pub fn ahead(&self, rank: Rank, distance: usize) -> Rank {
        self.ring[(self.position(rank) + distance) % self.world()]
    }
}
