//! Prints how good the tours are and how long they take: `cargo run --release --example quality`.
//! A number as the argument says how many matrices of 64 nodes to try of each shape and objective.

#[path = "../tests/matrices/mod.rs"]
mod matrices;

use matrices::Shape;
use ringfold_topology::{BandwidthMatrix, Effort, Objective, Seed, Solver, Tour, exact_tour};
use std::time::{Duration, Instant};

fn main() {
    let matrices = std::env::args().nth(1).and_then(|argument| argument.parse().ok()).unwrap_or(1);
    exact_times();
    twelve_nodes();
    for objective in OBJECTIVES {
        sixty_four_nodes(objective, matrices);
    }
    first_tours();
}

const OBJECTIVES: [Objective; 2] = [Objective::SlowestThenSum, Objective::Sum];

/// Looks at the clock about every half millisecond.
const SLICE: Effort = Effort(100_000);

fn exact_times() {
    println!("exact: seconds per matrix, mean of 20");
    for nodes in [9, 12, 13] {
        for objective in OBJECTIVES {
            let started = Instant::now();
            for seed in 0..20 {
                let matrix = Shape::Random.matrix(nodes, seed);
                exact_tour(&matrix, objective).expect("a full matrix has a ring");
            }
            let mean_s = started.elapsed().as_secs_f64() / 20.0;
            println!("  {nodes:4} nodes  {objective:14?}  {mean_s:.5} s");
        }
    }
}

fn twelve_nodes() {
    println!("heuristic against exact at 12 nodes, 200 matrices each, effort 300000");
    for shape in Shape::ALL {
        for objective in OBJECTIVES {
            let (mut slowest_worst, mut sum_worst, mut best_found, mut rings) = (1.0f64, 1.0f64, 0, 0);
            let mut elapsed = Duration::ZERO;
            for seed in 0..200 {
                let matrix = shape.matrix(12, seed);
                let Ok(exact) = exact_tour(&matrix, objective) else { continue };
                let started = Instant::now();
                let mut solver = Solver::heuristic(&matrix, objective, Seed(seed));
                solver.improve(Effort(300_000));
                elapsed += started.elapsed();
                let found = solver.best().expect("a ring exists");
                let (slowest, sum) = ratios(found, &exact, objective);
                slowest_worst = slowest_worst.max(slowest);
                sum_worst = sum_worst.max(sum);
                rings += 1;
                best_found +=
                    usize::from(found.order() == exact.order() || (slowest <= 1.0 && sum <= 1.0 + 1e-9));
            }
            let mean_s = elapsed.as_secs_f64() / f64::from(rings);
            println!(
                "  {shape:10?} {objective:14?}  best found {best_found}/{rings}  worst slowest ×{slowest_worst:.4}  worst sum ×{sum_worst:.4}  {mean_s:.5} s"
            );
        }
    }
}

fn sixty_four_nodes(objective: Objective, matrices: u64) {
    println!("64 nodes, {objective:?}: the first tour, 0.1 s and 1 s against the best of 3 seeds × 3 s");
    for shape in Shape::ALL {
        for seed in 0..matrices {
            let matrix = shape.matrix(64, seed);
            let times = [0.0, 0.1, 1.0].map(Duration::from_secs_f64);
            let tours = tours_at(&matrix, objective, Seed(1), &times);
            let best_known = (10..13)
                .filter_map(|seed| tours_at(&matrix, objective, Seed(seed), &[Duration::from_secs(3)]).pop())
                .min_by_key(|tour| tour.cost(objective))
                .expect("the matrix has a ring");
            let shown: Vec<String> = tours
                .iter()
                .map(|tour| ratios(tour, &best_known, objective))
                .map(|(slowest, sum)| format!("slowest ×{slowest:.4} sum ×{sum:.4}"))
                .collect();
            println!("  {shape:10?} #{seed}  {}", shown.join("  |  "));
        }
    }
}

fn first_tours() {
    println!("large worlds: seconds until the first tour, and what 1, 2 and 4 s make of it");
    for nodes in [128, 256, 512, 1024] {
        for shape in Shape::ALL {
            let objective = Objective::SlowestThenSum;
            let matrix = shape.matrix(nodes, 1);
            let started = Instant::now();
            let mut solver = Solver::new(&matrix, objective, Seed(1));
            let prepared_s = started.elapsed().as_secs_f64();
            while solver.best().is_none() && started.elapsed() < Duration::from_secs(10) {
                solver.improve(SLICE);
            }
            let first_s = started.elapsed().as_secs_f64();
            let times = [1.0, 2.0, 4.0].map(Duration::from_secs_f64);
            let tours = tours_at(&matrix, objective, Seed(1), &times);
            assert!(tours.iter().all(|tour| tour.is_valid_for(&matrix)), "a tour is no ring");
            let keys: Vec<String> =
                tours.iter().map(|tour| format!("{:.3e}", tour.cost(objective).keys()[1])).collect();
            let slowest: Vec<String> =
                tours.iter().map(|tour| format!("{:.3e}", tour.cost(objective).keys()[0])).collect();
            println!(
                "  {nodes:4} {shape:10?}  prepared {prepared_s:.3} s, first tour {first_s:.3} s, slowest {}, sums {}",
                slowest.join(" "),
                keys.join(" ")
            );
        }
    }
}

/// The best tours after each of the times, as far as there were any.
fn tours_at(matrix: &BandwidthMatrix, objective: Objective, seed: Seed, times: &[Duration]) -> Vec<Tour> {
    let started = Instant::now();
    let mut solver = Solver::new(matrix, objective, seed);
    let mut tours = Vec::new();
    for &time in times {
        loop {
            solver.improve(SLICE);
            if started.elapsed() >= time && (solver.best().is_some() || time > Duration::ZERO) {
                break;
            }
        }
        tours.extend(solver.best().cloned());
    }
    tours
}

/// How many times the price of the slowest edge (where the objective cares) and the sum are those of
/// the other tour. Where the slowest edges differ, the sums say little.
fn ratios(found: &Tour, reference: &Tour, objective: Objective) -> (f64, f64) {
    let (found, reference) = (found.cost(objective).keys(), reference.cost(objective).keys());
    match objective {
        Objective::SlowestThenSum => (found[0] / reference[0], found[1] / reference[1]),
        Objective::Sum => (1.0, found[0] / reference[0]),
    }
}
