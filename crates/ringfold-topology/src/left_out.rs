//! Whom to leave out when there is no ring through all.

use crate::chance::{Chance, Seed};
use crate::exact::bits;
use crate::graph::Graph;
use crate::limits::LEFT_OUT_EXACT_NODES_MAX;
use crate::local_search::LocalSearch;
use crate::matrix::BandwidthMatrix;
use crate::near::Near;
use crate::node::NodeIndex;
use crate::price::Prices;
use crate::solver::Effort;
use crate::tour::{TourError, canonical};
use std::cmp::Ordering;

/// The nodes to leave out so that the others have a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Whom to leave out, newest first; empty when there is a ring through all.
    pub nodes: Vec<NodeIndex>,
    /// A ring of the others, oldest first. Any ring: solve their own matrix for a good one.
    pub ring: Vec<NodeIndex>,
    /// Whether it is proved that no fewer would do.
    pub is_fewest: bool,
}

/// Finds the fewest nodes to leave out so that the others have a ring. Among equally many, the oldest
/// node that is left out is as new as can be, then the next oldest, and so on.
///
/// Each part of the nodes that could have a ring of its own is searched in full up to
/// [`LEFT_OUT_EXACT_NODES_MAX`] nodes; in larger parts the effort bounds the search. There is always an
/// answer, since a node alone is a ring of one.
///
/// ```
/// use ringfold_topology::{
///     BandwidthMatrix, Edge, Effort, NodeCount, NodeIndex, Seed, fewest_left_out,
/// };
///
/// // Nodes 1, 2 and 3 can talk to node 0, but not to each other.
/// let mut matrix = BandwidthMatrix::new(NodeCount::new(4)?);
/// let [a, b, c, d] = [NodeIndex(0), NodeIndex(1), NodeIndex(2), NodeIndex(3)];
/// for (from, to) in [(b, c), (b, d), (d, c)] {
///     matrix.cut_pair(Edge { from, to })?;
/// }
/// let found = fewest_left_out(&matrix, &[a, b, c, d], Effort(10_000), Seed(1))?;
/// assert_eq!((found.nodes, found.ring, found.is_fewest), (vec![d, c], vec![a, b], true));
/// let found = fewest_left_out(&matrix, &[d, c, b, a], Effort(10_000), Seed(1))?;
/// assert_eq!((found.nodes, found.ring), (vec![b, c], vec![d, a]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn fewest_left_out(
    matrix: &BandwidthMatrix,
    oldest_first: &[NodeIndex],
    effort: Effort,
    seed: Seed,
) -> Result<LeftOut, TourError> {
    canonical(matrix.nodes().get(), oldest_first)?;
    // From here on a node is called by its age, so that smaller numbers are older.
    let reachable = Graph::reachable(&Prices::of(matrix));
    let by_index: Vec<usize> = oldest_first.iter().map(|node| node.index()).collect();
    let graph = reachable.restricted_to(&by_index);
    let mut chance = Chance::of(seed);
    let (mut best, mut ring_nodes_max) = (Kept::of(vec![0]), 1);
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
        let (ring, spent) = large_ring(&part, bound, effort_left, &mut chance);
        effort_left = effort_left.saturating_sub(spent);
        let kept = Kept::of(ring.into_iter().map(|node| members[node]).collect());
        if kept.is_better_than(&best) {
            best = kept;
        }
    }
    let searched_in_full = components.iter().all(|part| part.len() <= LEFT_OUT_EXACT_NODES_MAX);
    let left_out = (0..graph.nodes()).rev().filter(|&age| best.ages.binary_search(&age).is_err());
    Ok(LeftOut {
        nodes: left_out.map(|age| oldest_first[age]).collect(),
        is_fewest: searched_in_full || best.ring.len() == ring_nodes_max,
        ring: best.ring.into_iter().map(|age| oldest_first[age]).collect(),
    })
}

/// A largest ring and, among those, the one of the most senior nodes. Looks at every set of nodes, so
/// the graph has at most [`LEFT_OUT_EXACT_NODES_MAX`] of them; smaller numbers are older.
pub(crate) fn largest_ring(graph: &Graph) -> Vec<usize> {
    let nodes = graph.nodes();
    // Older nodes are higher bits, so that of two sets the greater number holds the more senior nodes.
    let bit_of = |node: usize| nodes - 1 - node;
    let predecessors: Vec<usize> = (0..nodes)
        .map(|bit| {
            let linked = |from: &usize| graph.has(*from, bit_of(bit));
            (0..nodes).filter(linked).fold(0, |set, from| set | 1 << bit_of(from))
        })
        .collect();
    // For each set the nodes at which a path through all of it, from its oldest node on, can end.
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

/// A ring and its members by age, which decides between rings of equal size.
struct Kept {
    ring: Vec<usize>,
    ages: Vec<usize>,
}

impl Kept {
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

/// A ring of as many nodes of the graph as the effort can find, and what of it was spent.
fn large_ring(graph: &Graph, bound: usize, effort: u64, chance: &mut Chance) -> (Vec<usize>, u64) {
    if graph.nodes() <= LEFT_OUT_EXACT_NODES_MAX {
        return (largest_ring(graph), 0);
    }
    let prices = Prices::uniform(graph);
    let mut search = LocalSearch::new(&prices, Near::of(&prices));
    search.start_from((0..graph.nodes() as u16).collect());
    let mut best = Kept::of(mended(graph, search.order()));
    let (mut spent_mending, mut mended_at, mut trials) = (0, search.cost(), 0);
    while best.ring.len() < bound && search.spent() + spent_mending < effort {
        let ceiling = search.cost();
        search.trial(chance, ceiling);
        trials += 1;
        // Mending takes far longer than a trial, so it waits for one missing edge less, or for a ring
        // that has changed a good deal.
        if search.cost() >= mended_at && trials % graph.nodes() != 0 {
            continue;
        }
        mended_at = search.cost();
        let kept = Kept::of(mended(graph, search.order()));
        // Each edge is looked at, and each node left out is tried at every place.
        spent_mending += ((1 + graph.nodes() - kept.ring.len()) * graph.nodes()) as u64;
        if kept.is_better_than(&best) {
            best = kept;
        }
    }
    (best.ring, search.spent() + spent_mending)
}

/// Makes a ring of an order with missing edges by leaving nodes out, as few and as new as it can.
fn mended(graph: &Graph, order: &[u16]) -> Vec<usize> {
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

/// Puts a node in the place of the newest one whose neighbours it can talk to.
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
