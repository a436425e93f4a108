//! Finds the best tour of a small matrix by dynamic programming over sets of nodes.

use crate::exclusion::largest_ring;
use crate::graph::Graph;
use crate::limits::EXACT_NODES_MAX;
use crate::matrix::BandwidthMatrix;
use crate::no_tour::{NoTour, NoTourProof, quick_proof};
use crate::node::NodeIndex;
use crate::objective::Objective;
use crate::price::Prices;
use crate::tour::Tour;

/// The optimal tour, for up to [`EXACT_NODES_MAX`] nodes.
///
/// ```
/// use ringfold_topology::{BandwidthMatrix, NodeCount, Objective, exact_tour};
///
/// let matrix = BandwidthMatrix::new(NodeCount::new(5)?);
/// assert_eq!(exact_tour(&matrix, Objective::Sum)?.order().len(), 5);
/// let large = BandwidthMatrix::new(NodeCount::new(500)?);
/// assert!(exact_tour(&large, Objective::Sum).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn exact_tour(matrix: &BandwidthMatrix, objective: Objective) -> Result<Tour, ExactError> {
    let nodes = matrix.nodes().get();
    if nodes > EXACT_NODES_MAX {
        return Err(ExactError::TooManyNodes { nodes });
    }
    best_tour(&Prices::of(matrix), objective).map_err(ExactError::NoTour)
}

/// Why there is no exact tour.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExactError {
    /// The tables would be too large.
    #[error("too many nodes for an exact tour: {nodes}, must be at most {EXACT_NODES_MAX}")]
    TooManyNodes { nodes: usize },
    /// No ring exists.
    #[error(transparent)]
    NoTour(NoTour),
}

/// The optimal tour. There must be at most [`EXACT_NODES_MAX`] nodes.
pub(crate) fn best_tour(prices: &Prices, objective: Objective) -> Result<Tour, NoTour> {
    let reachable = Graph::reachable(prices);
    if let Some(no_tour) = quick_proof(&reachable) {
        return Err(no_tour);
    }
    if !has_ring(&reachable) {
        return Err(exhausted(&reachable));
    }
    let cap = if objective.slowest_comes_first() { least_cap(prices) } else { f64::INFINITY };
    let order = least_sum_order(prices, cap);
    // The order consists of edges that `has_ring` has found, so this does not fail.
    Tour::priced(prices, &order).map_err(|_| exhausted(&reachable))
}

fn exhausted(reachable: &Graph) -> NoTour {
    let kept = largest_ring(reachable);
    let nodes = (0..reachable.nodes()).filter(|node| !kept.contains(node)).map(NodeIndex::of).collect();
    NoTour::Proved { proof: NoTourProof::Exhausted, nodes }
}

/// The least price of the slowest edge of a ring, by bisection. A ring must exist.
fn least_cap(prices: &Prices) -> f64 {
    let levels = prices.levels();
    let enough = levels.partition_point(|&cap| !has_ring(&Graph::capped(prices, cap)));
    levels.get(enough).copied().unwrap_or(f64::INFINITY)
}

/// Whether the graph has a ring through all nodes. For each set of nodes without the last one, the table has the possible
/// ends of a path from the last node through exactly that set.
fn has_ring(graph: &Graph) -> bool {
    let inner = graph.nodes() - 1;
    let predecessors: Vec<usize> = (0..=inner)
        .map(|to| (0..=inner).filter(|&from| graph.has(from, to)).fold(0, |set, from| set | 1 << from))
        .collect();
    let mut ends = vec![0usize; 1 << inner];
    for set in 1..ends.len() {
        for end in bits(set) {
            let before = set & !(1 << end);
            let from = if before == 0 { 1 << inner } else { ends[before] };
            if predecessors[end] & from != 0 {
                ends[set] |= 1 << end;
            }
        }
    }
    inner == 0 || ends[ends.len() - 1] & predecessors[inner] != 0
}

/// The order with the least sum, with edges up to the cap (Held and Karp).
fn least_sum_order(prices: &Prices, cap: f64) -> Vec<NodeIndex> {
    let inner = prices.nodes() - 1;
    let price = |from: usize, to: usize| {
        let price = prices.at(from, to);
        if price <= cap { price } else { f64::INFINITY }
    };
    let table: Vec<Vec<f64>> =
        (0..=inner).map(|to| (0..=inner).map(|from| price(from, to)).collect()).collect();
    // `sums[set * inner + end]`: the least sum of a path from the last node through the set to `end`.
    let mut sums = vec![f64::INFINITY; inner << inner];
    for set in 1..1usize << inner {
        for end in bits(set) {
            let before = set & !(1 << end);
            sums[set * inner + end] = if before == 0 {
                table[end][inner]
            } else {
                let through = |from: usize| sums[before * inner + from] + table[end][from];
                bits(before).map(through).fold(f64::INFINITY, f64::min)
            };
        }
    }
    // Backtracking recomputes the choices, which is cheaper than a table of them.
    let mut order = vec![NodeIndex::of(inner)];
    let (mut set, mut next) = ((1usize << inner) - 1, inner);
    while set != 0 {
        let through = |from: usize| sums[set * inner + from] + table[next][from];
        let Some(from) = bits(set).min_by(|&a, &b| through(a).total_cmp(&through(b))) else { break };
        order.push(NodeIndex::of(from));
        set &= !(1 << from);
        next = from;
    }
    order.reverse();
    order
}

pub(crate) fn bits(set: usize) -> impl Iterator<Item = usize> {
    let mut left = set;
    std::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(bit)
    })
}
