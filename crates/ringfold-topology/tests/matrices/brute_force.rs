//! The optimal tour by brute force.

use ringfold_topology::{BandwidthMatrix, Edge, Link, NodeIndex, Objective};

/// The keys of the least cost over all rings; nothing where there is no ring. Unknown links are not
/// expected.
pub fn best_keys(matrix: &BandwidthMatrix, objective: Objective) -> Option<[f64; 2]> {
    let nodes = matrix.nodes().get();
    let price = |from: usize, to: usize| {
        let edge = Edge { from: NodeIndex(from as u16), to: NodeIndex(to as u16) };
        match matrix.link(edge) {
            Ok(Link::Measured(bandwidth)) => 1.0 / bandwidth.bytes_per_second(),
            _ => f64::INFINITY,
        }
    };
    let prices = (0..nodes).map(|from| (0..nodes).map(|to| price(from, to)).collect()).collect();
    let mut oracle = Oracle { prices, objective, best: None };
    let mut path: Vec<usize> = (0..nodes).collect();
    oracle.extend(&mut path, 1, 0.0, 0.0);
    oracle.best
}

struct Oracle {
    prices: Vec<Vec<f64>>,
    objective: Objective,
    best: Option<[f64; 2]>,
}

impl Oracle {
    /// Tries every order of what follows the first `fixed` nodes of the path.
    fn extend(&mut self, path: &mut Vec<usize>, fixed: usize, slowest: f64, sum: f64) {
        let last = path[fixed - 1];
        if fixed == path.len() {
            let closing = if path.len() > 1 { self.prices[last][path[0]] } else { 0.0 };
            let (slowest, sum) = (slowest.max(closing), sum + closing);
            let keys = match self.objective {
                Objective::SlowestThenSum => [slowest, sum],
                Objective::Sum => [sum, 0.0],
            };
            if sum.is_finite() && self.best.is_none_or(|best| keys < best) {
                self.best = Some(keys);
            }
            return;
        }
        for choice in fixed..path.len() {
            path.swap(fixed, choice);
            let price = self.prices[last][path[fixed]];
            if price.is_finite() {
                self.extend(path, fixed + 1, slowest.max(price), sum + price);
            }
            path.swap(fixed, choice);
        }
    }
}
