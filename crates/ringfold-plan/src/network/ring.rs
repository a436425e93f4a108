//! A better ring for a network: its slowest edge as fast as possible, then its delays as short as possible.

use super::NetworkView;
use ringfold_proto::id::Rank;

/// Passes over all reversals.
const PASSES_MAX: usize = 8;

/// Improves a ring by reversing parts of it, as long as that helps. Only edges with a link are used.
pub(crate) fn improve_ring(view: &NetworkView, ring: &[Rank]) -> Vec<Rank> {
    let mut best = ring.to_vec();
    let mut cost = cost_of(view, &best);
    for _ in 0..PASSES_MAX {
        let before = cost;
        for from in 0..best.len() {
            for to in from + 1..best.len() {
                let mut other = best.clone();
                other[from..=to].reverse();
                let other_cost = cost_of(view, &other);
                if other_cost < cost {
                    (best, cost) = (other, other_cost);
                }
            }
        }
        if cost == before {
            break;
        }
    }
    best
}

/// Edges without a link, the price of the slowest edge, the sum of prices, the sum of delays.
fn cost_of(view: &NetworkView, ring: &[Rank]) -> (usize, u64, u64, u64) {
    let edges = || (0..ring.len()).map(|i| (ring[i], ring[(i + 1) % ring.len()]));
    let missing = edges().filter(|(a, b)| !view.is_linked(*a, *b)).count();
    let prices = || edges().map(|(a, b)| view.path_price(a, b));
    let delays = edges().map(|(a, b)| view.delay_ns(a, b)).sum();
    (missing, prices().max().unwrap_or(0), prices().sum(), delays)
}
