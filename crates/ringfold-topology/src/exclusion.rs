//! Finds the nodes to exclude if there is no ring through all.

use crate::exact::bits;
use crate::graph::Graph;
use crate::limits::EXCLUSION_EXACT_NODES_MAX;
use crate::local_search::LocalSearch;
use crate::matrix::BandwidthMatrix;
use crate::near_neighbours::NearNeighbours;
use crate::node::NodeIndex;
use crate::price::Prices;
use crate::seeded_rng::{Seed, SeededRng};
use crate::solver::Effort;
use crate::tour::{TourError, canonical};
use std::cmp::Ordering;

/// The nodes to exclude so that the others have a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcludedNodes {
    /// The excluded nodes, newest first; empty if there is a ring through all.
    pub nodes: Vec<NodeIndex>,
    /// A ring of the others, beginning with the oldest. It is not optimised.
    pub ring: Vec<NodeIndex>,
    /// Whether it is proved that fewer are not enough.
    pub is_fewest: bool,
}

/// Finds the fewest nodes to exclude so that the others have a ring. Among equally many, newer nodes are excluded.
///
/// Each strongly connected component of up to [`EXCLUSION_EXACT_NODES_MAX`] nodes is searched completely; in larger ones
/// the effort limits the search. There is always a result: a single node is a ring of one.
///
/// ```
/// use ringfold_topology::{
///     BandwidthMatrix, Edge, Effort, NodeCount, NodeIndex, Seed, exclude_fewest,
/// };
///
/// // Nodes 1, 2 and 3 can reach node 0, but not each other.
/// let mut matrix = BandwidthMatrix::new(NodeCount::new(4)?);
/// let [a, b, c, d] = [NodeIndex(0), NodeIndex(1), NodeIndex(2), NodeIndex(3)];
/// for (from, to) in [(b, c), (b, d), (d, c)] {
///     matrix.cut_pair(Edge { from, to })?;
/// }
/// let found = exclude_fewest(&matrix, &[a, b, c, d], Effort(10_000), Seed(1))?;
/// assert_eq!((found.nodes, found.ring, found.is_fewest), (vec![d, c], vec![a, b], true));
/// let found = exclude_fewest(&matrix, &[d, c, b, a], Effort(10_000), Seed(1))?;
/// assert_eq!((found.nodes, found.ring), (vec![b, c], vec![d, a]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn exclude_fewest(
    matrix: &BandwidthMatrix,
    oldest_first: &[NodeIndex],
    effort: Effort,
    seed: Seed,
) -> Result<ExcludedNodes, TourError> {
    canonical(matrix.nodes().get(), oldest_first)?;
    // From here on nodes are numbered by age, oldest first.
    let reachable = Graph::reachable(&Prices::of(matrix));
    let by_index: Vec<usize> = oldest_first.iter().map(|node| node.index()).collect();
    let graph = reachable.restricted_to(&by_index);
    let mut rng = SeededRng::of(seed);
    let (mut best, mut ring_nodes_max) = (RingCandidate::of(vec![0]), 1);
    let mut effort_left = effort.0;
    let components = graph.components();
    for component in &components {
        let bound = graph.ring_nodes_max(component);
        ring_nodes_max = ring_nodes_max.max(bound);
        if bound < best.ring.len() {
            continue;
        }
        let members: Vec<usize> = component.iter().collect();
        let part = graph.restricted_to(&members);
        let (ring, spent) = large_ring(&part, bound, effort_left, &mut rng);
        effort_left = effort_left.saturating_sub(spent);
        let kept = RingCandidate::of(ring.into_iter().map(|node| members[node]).collect());
        if kept.is_better_than(&best) {
            best = kept;
        }
    }
    let searched_in_full = components.iter().all(|part| part.len() <= EXCLUSION_EXACT_NODES_MAX);
    let left_out = (0..graph.nodes()).rev().filter(|&age| best.ages.binary_search(&age).is_err());
    Ok(ExcludedNodes {
        nodes: left_out.map(|age| oldest_first[age]).collect(),
        is_fewest: searched_in_full || best.ring.len() == ring_nodes_max,
        ring: best.ring.into_iter().map(|age| oldest_first[age]).collect(),
    })
}

/// A largest ring; among those, one of the oldest nodes. It checks every set of nodes, so the graph must have at most
/// [`EXCLUSION_EXACT_NODES_MAX`]. Smaller numbers are older.
pub(crate) fn largest_ring(graph: &Graph) -> Vec<usize> {
    let nodes = graph.nodes();
    // Older nodes are higher bits, so that the greater of two sets has the older nodes.
    let bit_of = |node: usize| nodes - 1 - node;
    let predecessors: Vec<usize> = (0..nodes)
        .map(|bit| {
            let linked = |from: &usize| graph.has(*from, bit_of(bit));
            (0..nodes).filter(linked).fold(0, |set, from| set | 1 << bit_of(from))
        })
        .collect();
    // For each set, the possible ends of a path through all of it from its oldest node.
    let mut ends = vec![0u32; 1 << nodes];
    let mut best = 1usize << (nodes - 1);
    for set in 1..ends.len() {
        let oldest = set.ilog2() as usize;
        let rest = set & !(1 << oldest);
        if rest == 0 {
            ends[set] = set as u32;
            continue;
        }
        for end in bits(rest) {
            if ends[set & !(1 << end)] as usize & predecessors[end] != 0 {
                ends[set] |= 1 << end;
            }
        }
        let closes = ends[set] as usize & predecessors[oldest] != 0;
        if closes && (set.count_ones(), set) > (best.count_ones(), best) {
            best = set;
        }
    }
    let mut ring = Vec::new();
    let (mut set, mut next) = (best, best.ilog2() as usize);
    while set.count_ones() > 1 {
        let Some(end) = bits(ends[set] as usize & predecessors[next]).next() else { break };
        ring.push(bit_of(end));
        set &= !(1 << end);
        next = end;
    }
    ring.push(bit_of(best.ilog2() as usize));
    ring.reverse();
    ring
}

/// A ring and the ages of its members, which decide between rings of equal size.
struct RingCandidate {
    ring: Vec<usize>,
    ages: Vec<usize>,
}

impl RingCandidate {
    fn of(mut ring: Vec<usize>) -> Self {
        let mut ages = ring.clone();
        ages.sort_unstable();
        let oldest = ring.iter().position(|age| ages.first() == Some(age)).unwrap_or(0);
        ring.rotate_left(oldest);
        Self { ring, ages }
    }

    fn is_better_than(&self, other: &Self) -> bool {
        let by_size = self.ages.len().cmp(&other.ages.len());
        by_size.then_with(|| other.ages.cmp(&self.ages)) == Ordering::Greater
    }
}

/// A ring of as many nodes as the effort can find, and the effort spent.
fn large_ring(graph: &Graph, bound: usize, effort: u64, rng: &mut SeededRng) -> (Vec<usize>, u64) {
    if graph.nodes() <= EXCLUSION_EXACT_NODES_MAX {
        return (largest_ring(graph), 0);
    }
    let prices = Prices::uniform(graph);
    let mut search = LocalSearch::new(&prices, NearNeighbours::of(&prices));
    search.start_from((0..graph.nodes() as u16).collect());
    let mut best = RingCandidate::of(repaired(graph, search.order()));
    let (mut spent_repairing, mut repaired_at, mut trials) = (0, search.cost(), 0);
    while best.ring.len() < bound && search.spent() + spent_repairing < effort {
        let ceiling = search.cost();
        search.trial(rng, ceiling);
        trials += 1;
        // A repair takes far longer than a trial, so it waits for fewer missing edges or many trials.
        if search.cost() >= repaired_at && trials % graph.nodes() != 0 {
            continue;
        }
        repaired_at = search.cost();
        let kept = RingCandidate::of(repaired(graph, search.order()));
        // Each edge is checked, and each excluded node is tried at every position.
        spent_repairing += ((1 + graph.nodes() - kept.ring.len()) * graph.nodes()) as u64;
        if kept.is_better_than(&best) {
            best = kept;
        }
    }
    (best.ring, search.spent() + spent_repairing)
}

/// Repairs an order with missing edges by excluding nodes, few and new ones.
fn repaired(graph: &Graph, order: &[u16]) -> Vec<usize> {
    let mut ring: Vec<usize> = order.iter().map(|&node| usize::from(node)).collect();
    let mut out = Vec::new();
    while let Some(place) = missing_edge(graph, &ring) {
        ring.rotate_left(place + 1);
        // The missing edge now leads from the last node to the first.
        let after = (1..ring.len() - 1).find(|&dropped| graph.has(ring[ring.len() - 1], ring[dropped]));
        let before = (1..ring.len() - 1).find(|&dropped| graph.has(ring[ring.len() - 1 - dropped], ring[0]));
        match (after, before) {
            (Some(head), tail) if tail.is_none_or(|tail| head <= tail) => out.extend(ring.drain(..head)),
            (_, Some(tail)) => out.extend(ring.drain(ring.len() - tail..)),
            _ => {
                let newer = if ring[0] > ring[ring.len() - 1] { 0 } else { ring.len() - 1 };
                out.push(ring.remove(newer));
            }
        }
    }
    out.sort_unstable();
    out.retain(|&node| !inserted(graph, &mut ring, node));
    for node in out {
        exchange_for_newer(graph, &mut ring, node);
    }
    ring
}

fn missing_edge(graph: &Graph, ring: &[usize]) -> Option<usize> {
    let nodes = ring.len();
    (0..nodes).find(|&place| nodes > 1 && !graph.has(ring[place], ring[(place + 1) % nodes]))
}

fn inserted(graph: &Graph, ring: &mut Vec<usize>, node: usize) -> bool {
    let nodes = ring.len();
    let fits = |&place: &usize| graph.has(ring[place], node) && graph.has(node, ring[(place + 1) % nodes]);
    let place = (0..nodes).find(fits);
    if let Some(place) = place {
        ring.insert(place + 1, node);
    }
    place.is_some()
}

/// Replaces the newest possible node by an older one.
fn exchange_for_newer(graph: &Graph, ring: &mut [usize], node: usize) {
    let nodes = ring.len();
    let fits = |&place: &usize| {
        let (before, after) = (ring[(place + nodes - 1) % nodes], ring[(place + 1) % nodes]);
        ring[place] > node && (nodes == 1 || (graph.has(before, node) && graph.has(node, after)))
    };
    if let Some(place) = (0..nodes).filter(fits).max_by_key(|&place| ring[place]) {
        ring[place] = node;
    }
}
