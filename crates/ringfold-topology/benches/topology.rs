//! Benchmarks: `cargo bench -p ringfold-topology`.

#[path = "../tests/matrices/mod.rs"]
mod matrices;
#[path = "../../ringfold-kernels/benches/stopwatch/mod.rs"]
mod stopwatch;

use matrices::Shape;
use ringfold_topology::{Effort, Objective, Seed, Solver, exact_tour, solve};
use std::hint::black_box;
use stopwatch::measure;

fn main() {
    let matrix = Shape::Random.matrix(12, 1);
    for objective in [Objective::SlowestThenSum, Objective::Sum] {
        measure(&format!("exact/12/{objective:?}"), None, || exact_tour(black_box(&matrix), objective));
    }
    for nodes in [64, 256] {
        let matrix = Shape::Clustered.matrix(nodes, 1);
        measure(&format!("heuristic/prepare/{nodes}"), None, || {
            Solver::new(black_box(&matrix), Objective::SlowestThenSum, Seed(1))
        });
        measure(&format!("heuristic/million-units/{nodes}"), None, || {
            solve(black_box(&matrix), Objective::SlowestThenSum, Effort(1_000_000), Seed(1))
        });
    }
}
