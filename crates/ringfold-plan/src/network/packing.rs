//! Packs trees into a network: each step adds the tree whose resources are the least used so far.
//!
//! This is the multiplicative-weights method for fractional packings: the length of a resource grows with its load, and the
//! next tree is a minimum spanning tree by these lengths. A host that is on few paths, or has a slow way out, ends up as
//! a leaf of all trees: it sends its data once and forwards nothing.

use super::{NetworkView, Tree};
use ringfold_proto::id::Rank;
use std::collections::BTreeMap;

/// Trees that are added one by one.
const ROUNDS: usize = 64;
/// The lengths grow by this part, at the resource that limits the tree.
const GROWTH: u128 = 8;
/// The length of an unused resource.
const LENGTH: u128 = 1 << 20;
/// The trees that are kept.
const TREES_MAX: usize = 8;
/// Trees with less than this part of the data are dropped.
const SHARE_MIN: u64 = 24;

/// The length of an edge, and its round trip.
type Cost = (u128, u64);

/// The cost of the way into a tree, and the rank there.
type Entry = (Cost, Rank);

/// The edges of a tree: the lower rank first, sorted.
type Edges = Vec<(Rank, Rank)>;

pub(super) fn pack(view: &NetworkView) -> Vec<Tree> {
    let mut lengths = vec![LENGTH; view.resource_count()];
    let mut found: BTreeMap<Edges, u64> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let Some(edges) = spanning_tree(view, &lengths) else { return Vec::new() };
        let mut load = BTreeMap::<usize, u128>::new();
        for (a, b) in &edges {
            for resource in view.resources(*a, *b).chain(view.resources(*b, *a)) {
                *load.entry(resource).or_default() += u128::from(view.price(resource));
            }
        }
        let most = load.values().copied().max().unwrap_or(1).max(1);
        for (resource, load) in load {
            lengths[resource] += lengths[resource] * load / (most * GROWTH);
        }
        *found.entry(edges).or_default() += (1_u128 << 40).div_ceil(most) as u64;
    }
    let total: u64 = found.values().sum();
    let mut found: Vec<_> = found.into_iter().filter(|(_, weight)| weight * SHARE_MIN >= total).collect();
    // A stable sort: trees with the same weight stay in the order of their edges.
    found.sort_by_key(|(_, weight)| core::cmp::Reverse(*weight));
    found.truncate(TREES_MAX);
    found.into_iter().flat_map(|(edges, weight)| rooted(view, &edges, weight)).collect()
}

/// A tree with the least sum of lengths; of equal ones that with the shortest round trips.
fn spanning_tree(view: &NetworkView, lengths: &[u128]) -> Option<Edges> {
    let cost = |a: Rank, b: Rank| -> Cost {
        let both = view.resources(a, b).chain(view.resources(b, a));
        let length = both.map(|resource| lengths[resource] * u128::from(view.price(resource))).sum();
        (length, view.delay_ns(a, b) + view.delay_ns(b, a))
    };
    // The cheapest edge to each rank that is not in the tree.
    let mut outside: BTreeMap<Rank, Option<Entry>> =
        (1..view.world()).map(|index| (Rank::from_index(index), None)).collect();
    let (mut newest, mut edges) = (Rank(0), Edges::new());
    while !outside.is_empty() {
        for (rank, best) in &mut outside {
            if view.is_linked(newest, *rank) {
                let through = (cost(newest, *rank), newest);
                *best = Some(best.map_or(through, |best| best.min(through)));
            }
        }
        let (rank, inside) = outside
            .iter()
            .filter_map(|(rank, best)| best.map(|(cost, inside)| (cost, *rank, inside)))
            .min()
            .map(|(_, rank, inside)| (rank, inside))?;
        outside.remove(&rank);
        edges.push((rank.min(inside), rank.max(inside)));
        newest = rank;
    }
    edges.sort_unstable();
    Some(edges)
}

/// The tree twice, with the root at either end of its slowest edge. Then both directions of that edge are busy all the time:
/// with the data of one tree, then with the result of the other.
fn rooted(view: &NetworkView, edges: &Edges, weight: u64) -> [Tree; 2] {
    let price = |(a, b): &&(Rank, Rank)| view.path_price(*a, *b).max(view.path_price(*b, *a));
    let slowest = edges.iter().max_by_key(price).copied().unwrap_or_default();
    let tree = |root| Tree { root, parents: hang(edges, root, view.world()), weight };
    [tree(slowest.0), tree(slowest.1)]
}

/// The parents of all ranks if the tree has this root.
fn hang(edges: &Edges, root: Rank, world: usize) -> Vec<Option<Rank>> {
    let mut parents = vec![None; world];
    let (mut reached, mut next) = (vec![root], 0);
    while let Some(rank) = reached.get(next).copied() {
        next += 1;
        for (a, b) in edges {
            let other = match rank {
                rank if rank == *a => *b,
                rank if rank == *b => *a,
                _ => continue,
            };
            if parents[rank.index()] != Some(other) {
                parents[other.index()] = Some(rank);
                reached.push(other);
            }
        }
    }
    parents
}
