//! Constructs the first tours for the local search.

use crate::near_neighbours::NearNeighbours;
use crate::price::Prices;
use crate::seeded_rng::SeededRng;

/// Starts at a node and continues with the cheapest unvisited node. It takes a missing edge if there is no other; the
/// local search repairs that.
pub(crate) fn nearest_neighbour(prices: &Prices, start: usize) -> Vec<u16> {
    let nodes = prices.nodes();
    let mut unvisited: Vec<usize> = (0..nodes).filter(|&node| node != start).collect();
    let mut order = vec![start as u16];
    let mut last = start;
    while let Some(at) = cheapest(&unvisited, |&to| prices.at(last, to)) {
        last = unvisited.swap_remove(at);
        order.push(last as u16);
    }
    order
}

/// Adds near edges in order of price where they extend a path, then joins the paths.
pub(crate) fn greedy(prices: &Prices, near: &NearNeighbours, rng: &mut SeededRng) -> Vec<u16> {
    let nodes = prices.nodes();
    let mut edges: Vec<(f64, usize, usize)> = (0..nodes)
        .flat_map(|from| near.successors(from).iter().map(move |&to| (from, usize::from(to))))
        .map(|(from, to)| (prices.at(from, to), from, to))
        .collect();
    edges.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut next: Vec<Option<usize>> = vec![None; nodes];
    // For the first node of a path the last one, and vice versa; stale for inner nodes.
    let mut other_end: Vec<usize> = (0..nodes).collect();
    let mut entered = vec![false; nodes];
    for (_, from, to) in edges {
        // Joining the two ends of one path would close a ring too early.
        if next[from].is_some() || entered[to] || other_end[from] == to {
            continue;
        }
        next[from] = Some(to);
        entered[to] = true;
        let (head, tail) = (other_end[from], other_end[to]);
        other_end[head] = tail;
        other_end[tail] = head;
    }
    let mut heads: Vec<usize> = (0..nodes).filter(|&node| !entered[node]).collect();
    let mut order = Vec::with_capacity(nodes);
    let mut at = rng.below(heads.len().max(1));
    while !heads.is_empty() {
        let mut node = heads.swap_remove(at);
        order.push(node as u16);
        while let Some(after) = next[node] {
            node = after;
            order.push(node as u16);
        }
        at = cheapest(&heads, |&head| prices.at(node, head)).unwrap_or(0);
    }
    order
}

fn cheapest<T>(choices: &[T], price: impl Fn(&T) -> f64) -> Option<usize> {
    (0..choices.len()).min_by(|&a, &b| price(&choices[a]).total_cmp(&price(&choices[b])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::BandwidthMatrix;
    use crate::node::NodeCount;
    use crate::seeded_rng::Seed;

    #[test]
    fn constructed_tours_visit_every_node_once_even_if_all_prices_are_equal() {
        for nodes in 1..40 {
            let prices = Prices::of(&BandwidthMatrix::new(NodeCount::new(nodes).unwrap()));
            let near = NearNeighbours::of(&prices);
            let mut greedy = greedy(&prices, &near, &mut SeededRng::of(Seed(1)));
            let mut nearest = nearest_neighbour(&prices, nodes / 2);
            greedy.sort_unstable();
            nearest.sort_unstable();
            let all: Vec<u16> = (0..nodes as u16).collect();
            assert_eq!(greedy, all);
            assert_eq!(nearest, all);
        }
    }
}
