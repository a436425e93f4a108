//! The solver of rings.

use ringfold_proto::master::{TourRequest, TourSolution};
use ringfold_topology::{
    BandwidthMatrix, Edge, Effort, Link, NodeCount, NodeIndex, Objective, Seed, exclude_fewest,
    solve as solve_ring,
};

/// The best ring, or the ring that leaves out the fewest peers.
pub fn solve(request: &TourRequest, seed: u64) -> TourSolution {
    let nodes = request.nodes.len();
    let keep = |indices: &[NodeIndex]| {
        indices.iter().filter_map(|n| request.nodes.get(n.index()).copied()).collect()
    };
    let Ok(count) = NodeCount::new(nodes) else {
        return TourSolution { order: request.nodes.clone(), left_out: Vec::new() };
    };
    let mut matrix = BandwidthMatrix::new(count);
    let edge = |from: usize, to: usize| Edge { from: NodeIndex(from as u16), to: NodeIndex(to as u16) };
    for (from, to, speed) in &request.bandwidth {
        if let Ok(link) = Link::measured(*speed as f64) {
            matrix.set(edge(*from, *to), link).ok();
        }
    }
    for (from, to) in &request.unreachable {
        matrix.cut(edge(*from, *to)).ok();
    }
    match solve_ring(&matrix, Objective::SlowestThenSum, Effort(20_000), Seed(seed)) {
        Ok(tour) => TourSolution { order: keep(tour.order()), left_out: Vec::new() },
        Err(_) => {
            let oldest_first: Vec<_> = (0..nodes).map(|i| NodeIndex(i as u16)).collect();
            match exclude_fewest(&matrix, &oldest_first, Effort(20_000), Seed(seed)) {
                Ok(left) => TourSolution { order: keep(&left.ring), left_out: keep(&left.nodes) },
                Err(_) => TourSolution { order: request.nodes.clone(), left_out: Vec::new() },
            }
        }
    }
}
