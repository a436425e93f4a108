//! The network of a group as plans see it: what a transfer between two ranks occupies, how long that takes, and the trees
//! that use all paths together.
//!
//! All numbers are integers, so that all ranks compute the same ones.

mod packing;
mod ring;

pub(crate) use ring::improve_ring;

use ringfold_proto::epoch::MissingPair;
use ringfold_proto::id::Rank;
use ringfold_proto::network::{Network, Path};
use std::collections::{BTreeMap, BTreeSet};

/// The bandwidth that is assumed for a path with a round trip of 1 ms, in KiB/s, if it was not measured: 4 Gbit/s. Longer
/// paths have less, in proportion.
const ASSUMED_KIB_PER_S_AT_1_MS: u64 = 488_281;
/// The least and the greatest bandwidth that are assumed: 20 Mbit/s and 10 Gbit/s.
const ASSUMED_KIB_PER_S: core::ops::RangeInclusive<u64> = 2_441..=1_220_703;
/// The round trip that is assumed if it was not measured.
const ASSUMED_ROUND_TRIP_US: u64 = 100_000;
/// Measured paths correct assumptions by no more than this factor.
const CORRECTION_MAX: u64 = 16;
/// Nanoseconds for 1024 bytes between ranks of one host.
const HOST_NS_PER_KIB: u64 = 100;
/// One way between ranks of one host.
const HOST_DELAY_NS: u64 = 2_000;

/// The network of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkView {
    world: usize,
    /// The content that it was made from.
    digest: u64,
    /// For each rank, a number for its host, and one for its site if it has one.
    host: Vec<usize>,
    site: Vec<Option<usize>>,
    hosts: usize,
    sites: usize,
    /// Nanoseconds for 1024 bytes on each resource.
    prices: Vec<u64>,
    /// Nanoseconds one way, for each ordered pair of ranks.
    delays: Vec<u64>,
    /// Pairs without a link.
    missing: BTreeSet<MissingPair>,
    trees: Vec<Tree>,
}

/// A tree through all ranks: data is reduced towards the root, and the result is sent back on the same edges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// The rank that settles the data of this tree.
    pub root: Rank,
    /// The parent of each rank but the root.
    pub parents: Vec<Option<Rank>>,
    /// Its share of the data, relative to the other trees.
    pub weight: u64,
}

impl Tree {
    /// The children of a rank, in rank order.
    pub fn children(&self, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        let is_child = move |(_, parent): &(usize, &Option<Rank>)| **parent == Some(rank);
        self.parents.iter().enumerate().filter(is_child).map(|(index, _)| Rank::from_index(index))
    }

    /// The lowest rank below and including one.
    pub fn lowest_below(&self, rank: Rank) -> Rank {
        self.children(rank).map(|child| self.lowest_below(child)).min().map_or(rank, |low| low.min(rank))
    }
}

/// A host, or a site, with a number for each.
fn numbered<T: Ord + Copy>(values: &[T]) -> (Vec<usize>, usize) {
    let distinct: BTreeSet<_> = values.iter().copied().collect();
    let numbers: BTreeMap<_, _> = distinct.into_iter().zip(0..).collect();
    (values.iter().map(|value| numbers[value]).collect(), numbers.len())
}

impl NetworkView {
    /// The network between ranks on these hosts and sites; site 0 is none.
    pub fn new(network: &Network, hosts: &[u64], sites: &[u32], missing: &BTreeSet<MissingPair>) -> Self {
        let world = network.world();
        let (host, host_count) = numbered(hosts);
        let (site, site_count) = numbered(sites);
        let mut view = Self {
            world,
            digest: network.digest(),
            host,
            site: site.into_iter().zip(sites).map(|(number, site)| (*site != 0).then_some(number)).collect(),
            hosts: host_count,
            sites: site_count,
            prices: Vec::new(),
            delays: Vec::new(),
            missing: missing.clone(),
            trees: Vec::new(),
        };
        view.set_delays(network);
        view.set_prices(network);
        view.trees = packing::pack(&view);
        view
    }

    /// A number for what was measured.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Trees that together use the paths as much as possible; none if missing links divide the group.
    pub fn trees(&self) -> &[Tree] {
        &self.trees
    }

    /// Nanoseconds one way.
    pub fn delay_ns(&self, from: Rank, to: Rank) -> u64 {
        self.delays[from.index() * self.world + to.index()]
    }

    /// Whether two ranks are linked.
    pub fn is_linked(&self, a: Rank, b: Rank) -> bool {
        a != b && !self.missing.contains(&MissingPair(a.min(b), a.max(b)))
    }

    /// The number of resources.
    pub fn resource_count(&self) -> usize {
        self.prices.len()
    }

    /// Nanoseconds for 1024 bytes on a resource.
    pub fn price(&self, resource: usize) -> u64 {
        self.prices[resource]
    }

    /// What a transfer occupies: the path between two hosts, the way out of a host or site, the way into one. Between
    /// ranks of one host, its memory.
    pub fn resources(&self, from: Rank, to: Rank) -> impl Iterator<Item = usize> + use<> {
        let (a, b) = (self.host[from.index()], self.host[to.index()]);
        let (pairs, hosts, sites) = (self.hosts * self.hosts, self.hosts, self.sites);
        let is_far = a != b;
        let (from_site, to_site) = (self.site[from.index()], self.site[to.index()]);
        let crosses = is_far && from_site != to_site;
        let of_host = [Some(a * hosts + b), is_far.then_some(pairs + a), is_far.then_some(pairs + hosts + b)];
        let of_site = [
            from_site.filter(|_| crosses).map(|site| pairs + 2 * hosts + site),
            to_site.filter(|_| crosses).map(|site| pairs + 2 * hosts + sites + site),
        ];
        of_host.into_iter().chain(of_site).flatten()
    }

    /// Nanoseconds for 1024 bytes from one rank to another, if nothing else is sent.
    pub fn path_price(&self, from: Rank, to: Rank) -> u64 {
        self.resources(from, to).map(|resource| self.prices[resource]).max().unwrap_or(1)
    }

    fn pairs(world: usize) -> impl Iterator<Item = (Rank, Rank)> {
        let ranks = move || (0..world).map(Rank::from_index);
        ranks().flat_map(move |from| ranks().filter(move |to| *to != from).map(move |to| (from, to)))
    }

    fn set_delays(&mut self, network: &Network) {
        self.delays = vec![0; self.world * self.world];
        for (from, to) in Self::pairs(self.world) {
            let is_near = self.host[from.index()] == self.host[to.index()];
            let one_way = if is_near { HOST_DELAY_NS } else { round_trip_us(network, from, to) * 500 };
            self.delays[from.index() * self.world + to.index()] = one_way;
        }
    }

    fn set_prices(&mut self, network: &Network) {
        let between_hosts = || {
            let is_far = |(from, to): &(Rank, Rank)| self.host[from.index()] != self.host[to.index()];
            Self::pairs(self.world).filter(is_far)
        };
        // How much better or worse the measured paths are than would have been assumed.
        let (mut measured, mut assumed) = (0, 0);
        for (from, to) in between_hosts() {
            let Path { kib_per_s, .. } = network.path(from, to);
            if kib_per_s > 0 {
                measured += u64::from(kib_per_s);
                assumed += assumed_kib_per_s(network, from, to);
            }
        }
        let limits =
            |value: u64, of: u64| value.clamp((of / CORRECTION_MAX).max(1), of.max(1) * CORRECTION_MAX);
        let correction = if measured == 0 { (1, 1) } else { (limits(measured, assumed), assumed.max(1)) };
        // What was seen is the least that a resource can carry.
        let count = self.hosts * self.hosts + 2 * self.hosts + 2 * self.sites;
        let mut kib_per_s = vec![0_u64; count];
        for (from, to) in between_hosts() {
            let rate = match network.path(from, to).kib_per_s {
                0 => {
                    let assumed = u128::from(assumed_kib_per_s(network, from, to));
                    (assumed * u128::from(correction.0) / u128::from(correction.1)) as u64
                }
                measured => u64::from(measured),
            };
            let (up, down) = (network.throughput[from.index()], network.throughput[to.index()]);
            for (place, resource) in self.resources(from, to).enumerate() {
                let is_out =
                    place == 1 || resource >= count - 2 * self.sites && resource < count - self.sites;
                let together = match place {
                    0 => 0,
                    _ if is_out => u64::from(up.up_kib_per_s),
                    _ => u64::from(down.down_kib_per_s),
                };
                kib_per_s[resource] = kib_per_s[resource].max(rate).max(together);
            }
        }
        let price =
            |rate: u64| 1_000_000_000_u64.checked_div(rate).map_or(HOST_NS_PER_KIB, |price| price.max(1));
        self.prices = kib_per_s.into_iter().map(price).collect();
    }
}

fn round_trip_us(network: &Network, from: Rank, to: Rank) -> u64 {
    let there = network.path(from, to).round_trip_us;
    let back = network.path(to, from).round_trip_us;
    match if there > 0 { there } else { back } {
        0 => ASSUMED_ROUND_TRIP_US,
        known => u64::from(known),
    }
}

fn assumed_kib_per_s(network: &Network, from: Rank, to: Rank) -> u64 {
    let rate = ASSUMED_KIB_PER_S_AT_1_MS * 1000 / round_trip_us(network, from, to);
    rate.clamp(*ASSUMED_KIB_PER_S.start(), *ASSUMED_KIB_PER_S.end())
}

#[cfg(test)]
pub(crate) mod tests;
