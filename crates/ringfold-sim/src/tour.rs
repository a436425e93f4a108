//! The solver that the master asks for rings.

use ringfold_proto::master::{TourRequest, TourSolution};
use ringfold_topology::{
    BandwidthMatrix, Edge, Effort, Link, NodeCount, NodeIndex, Objective, Seed, fewest_left_out, solve,
};

/// The best ring for a question, or the ring that leaves out the fewest.
pub fn answer(question: &TourRequest, seed: u64) -> TourSolution {
    let nodes = question.nodes.len();
    let keep = |indices: &[NodeIndex]| {
        indices.iter().filter_map(|n| question.nodes.get(n.index()).copied()).collect()
    };
    let Ok(count) = NodeCount::new(nodes) else {
        return TourSolution { order: question.nodes.clone(), left_out: Vec::new() };
    };
    let mut matrix = BandwidthMatrix::new(count);
    let edge = |from: usize, to: usize| Edge { from: NodeIndex(from as u16), to: NodeIndex(to as u16) };
    for (from, to, speed) in &question.bandwidth {
        if let Ok(link) = Link::measured(*speed as f64) {
            matrix.set(edge(*from, *to), link).ok();
        }
    }
    for (from, to) in &question.unreachable {
        matrix.cut(edge(*from, *to)).ok();
    }
    match solve(&matrix, Objective::SlowestThenSum, Effort(20_000), Seed(seed)) {
        Ok(tour) => TourSolution { order: keep(tour.order()), left_out: Vec::new() },
        Err(_) => {
            let oldest_first: Vec<_> = (0..nodes).map(|i| NodeIndex(i as u16)).collect();
            match fewest_left_out(&matrix, &oldest_first, Effort(20_000), Seed(seed)) {
                Ok(left) => TourSolution { order: keep(&left.ring), left_out: keep(&left.nodes) },
                Err(_) => TourSolution { order: question.nodes.clone(), left_out: Vec::new() },
            }
        }
    }
}
