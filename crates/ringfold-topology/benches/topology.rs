//! How long the parts take: `cargo bench -p ringfold-topology`.
// The macros below make functions that can't be documented.
#![allow(missing_docs)]

#[path = "../tests/matrices/mod.rs"]
mod matrices;

use criterion::{Criterion, criterion_group, criterion_main};
use matrices::Shape;
use ringfold_topology::{Effort, Objective, Seed, Solver, exact_tour, solve};
use std::hint::black_box;

fn exact(c: &mut Criterion) {
    let matrix = Shape::Random.matrix(12, 1);
    for objective in [Objective::SlowestThenSum, Objective::Sum] {
        c.bench_function(&format!("exact/12/{objective:?}"), |b| {
            b.iter(|| exact_tour(black_box(&matrix), objective));
        });
    }
}

fn heuristic(c: &mut Criterion) {
    let mut group = c.benchmark_group("heuristic");
    group.sample_size(10);
    for nodes in [64, 256] {
        let matrix = Shape::Clustered.matrix(nodes, 1);
        group.bench_function(format!("prepare/{nodes}"), |b| {
            b.iter(|| Solver::new(black_box(&matrix), Objective::SlowestThenSum, Seed(1)));
        });
        group.bench_function(format!("million-units/{nodes}"), |b| {
            b.iter(|| solve(black_box(&matrix), Objective::SlowestThenSum, Effort(1_000_000), Seed(1)));
        });
    }
    group.finish();
}

criterion_group!(benches, exact, heuristic);
criterion_main!(benches);
