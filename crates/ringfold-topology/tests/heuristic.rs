//! Tests of the anytime search.

use crate::matrices::Shape;
use ringfold_topology::{
    BandwidthMatrix, Edge, Effort, Link, NoTour, NodeCount, NodeIndex, Objective, Progress, Seed, Solver,
    Tour, exact_tour, solve,
};

const OBJECTIVES: [Objective; 2] = [Objective::SlowestThenSum, Objective::Sum];

fn within(found: &Tour, reference: &Tour, objective: Objective, ratio: f64) -> bool {
    let (found, reference) = (found.cost(objective).keys(), reference.cost(objective).keys());
    found.into_iter().zip(reference).all(|(found, reference)| found <= reference * ratio)
}

/// Whether a tour is better by more than rounding errors.
fn improves(new: &Tour, old: &Tour, objective: Objective) -> bool {
    let keys = new.cost(objective).keys().into_iter().zip(old.cost(objective).keys());
    { keys }.find(|(new, old)| new != old).is_some_and(|(new, old)| new < old * (1.0 - 1e-9))
}

#[test]
fn heuristic_tours_of_twelve_nodes_are_within_two_percent_of_exact() {
    for shape in [Shape::Random, Shape::Clustered] {
        for seed in 0..100 {
            for objective in OBJECTIVES {
                let matrix = shape.matrix(12, seed);
                let exact = exact_tour(&matrix, objective).unwrap();
                let mut solver = Solver::heuristic(&matrix, objective, Seed(seed));
                solver.improve(Effort(300_000));
                let found = solver.best().unwrap();
                assert!(within(found, &exact, objective, 1.02), "{shape:?} #{seed} {objective:?}");
                assert!(!improves(found, &exact, objective), "the exact tour is not optimal");
            }
        }
    }
}

#[test]
fn heuristic_tours_of_twelve_nodes_are_within_two_percent_of_exact_with_ties_and_cut_links() {
    for shape in [Shape::Uplinks, Shape::Cut] {
        for seed in 0..50 {
            for objective in OBJECTIVES {
                let matrix = shape.matrix(12, seed);
                let mut solver = Solver::heuristic(&matrix, objective, Seed(seed));
                solver.improve(Effort(600_000));
                match exact_tour(&matrix, objective) {
                    Ok(exact) => {
                        let found = solver.best().unwrap();
                        assert!(within(found, &exact, objective, 1.02), "{shape:?} #{seed} {objective:?}");
                    }
                    Err(_) => assert!(solver.best().is_none()),
                }
            }
        }
    }
}

#[test]
fn a_short_search_at_64_nodes_is_within_five_percent_of_a_long_one() {
    for shape in Shape::ALL {
        let objective = Objective::SlowestThenSum;
        let matrix = shape.matrix(64, 1);
        let short = solve(&matrix, objective, Effort(20_000_000), Seed(1)).unwrap();
        let long = solve(&matrix, objective, Effort(100_000_000), Seed(2)).unwrap();
        assert!(within(&short, &long, objective, 1.05), "{shape:?}");
    }
}

#[test]
fn a_one_way_ring_is_found() {
    // A byte costs the way clockwise. Whatever the ring, it goes round a whole number of times, so the
    // best tour of this large matrix is known without a search: once, in the order of the circle.
    for nodes in [64, 200] {
        let circle: Vec<usize> = (0..nodes).map(|place| place * 77 % nodes).collect();
        let mut angle = vec![0.0; nodes];
        for (place, &node) in circle.iter().enumerate() {
            angle[node] = place as f64 + 0.4 * (place as f64).sin();
        }
        let matrix = BandwidthMatrix::from_fn(NodeCount::new(nodes).unwrap(), |Edge { from, to }| {
            let way = (angle[to.index()] - angle[from.index()]).rem_euclid(nodes as f64);
            Link::measured(1e9 / way).unwrap()
        });
        for objective in OBJECTIVES {
            let tour = solve(&matrix, objective, Effort(3_000_000), Seed(1)).unwrap();
            let order: Vec<usize> = tour.order().iter().map(|node| node.index()).collect();
            assert_eq!(order, circle, "{nodes} {objective:?}");
        }
    }
}

#[test]
fn the_first_call_at_256_nodes_gives_a_valid_tour() {
    for shape in Shape::ALL {
        for objective in OBJECTIVES {
            let matrix = shape.matrix(256, 1);
            let mut solver = Solver::new(&matrix, objective, Seed(1));
            assert_eq!(solver.improve(Effort(1_000_000)), Progress::Better, "{shape:?}");
            assert!(solver.best().unwrap().is_valid_for(&matrix), "{shape:?}");
        }
    }
}

#[test]
fn the_largest_world_gets_a_valid_tour() {
    let matrix = Shape::Clustered.matrix(1024, 1);
    let tour = solve(&matrix, Objective::Sum, Effort(1_000_000), Seed(1)).unwrap();
    assert!(tour.is_valid_for(&matrix));
}

#[test]
fn the_same_seed_and_total_effort_give_the_same_tour() {
    for shape in Shape::ALL {
        let matrix = shape.matrix(40, 3);
        let whole = solve(&matrix, Objective::SlowestThenSum, Effort(1_000_000), Seed(5)).unwrap();
        let again = solve(&matrix, Objective::SlowestThenSum, Effort(1_000_000), Seed(5)).unwrap();
        assert_eq!(whole, again, "{shape:?}");
        let mut solver = Solver::new(&matrix, Objective::SlowestThenSum, Seed(5));
        for _ in 0..1000 {
            solver.improve(Effort(1000));
        }
        assert_eq!(solver.best(), Some(&whole), "{shape:?}");
    }
}

#[test]
fn a_tour_never_gets_worse_than_the_best_or_the_offered_one() {
    let matrix = Shape::Random.matrix(50, 4);
    let good = solve(&matrix, Objective::SlowestThenSum, Effort(3_000_000), Seed(1)).unwrap();
    let mut solver = Solver::new(&matrix, Objective::SlowestThenSum, Seed(2));
    solver.offer(good.order()).unwrap();
    let mut last = good;
    for _ in 0..50 {
        let progress = solver.improve(Effort(10_000));
        let best = solver.best().unwrap();
        let better = best.cost(Objective::SlowestThenSum) < last.cost(Objective::SlowestThenSum);
        assert!(better || best.order() == last.order());
        assert_eq!(progress == Progress::Better, better);
        last = best.clone();
    }
    let twice = [NodeIndex(0); 50];
    assert!(solver.offer(&twice).is_err());
}

#[test]
fn a_ring_hidden_among_cut_links_is_found() {
    // A ring in a shuffled order, and for every node three more links that lead astray.
    let nodes = 60u16;
    let at = |place: u16| NodeIndex(place * 23 % nodes);
    let mut matrix = BandwidthMatrix::new(NodeCount::new(60).unwrap());
    for from in 0..nodes {
        for to in (0..nodes).filter(|&to| to != from) {
            let steps = (to + nodes - from) % nodes;
            if ![1, 7, 19, 34].contains(&steps) {
                matrix.cut(Edge { from: at(from), to: at(to) }).unwrap();
            }
        }
    }
    let tour = solve(&matrix, Objective::SlowestThenSum, Effort(5_000_000), Seed(1)).unwrap();
    assert!(tour.is_valid_for(&matrix));
}

#[test]
fn a_failed_search_names_the_nodes_with_missing_links() {
    // Two worlds of twenty that share one node: no quick proof, and too many nodes to try all orders.
    let mut matrix = BandwidthMatrix::new(NodeCount::new(39).unwrap());
    for from in 0..19 {
        for to in 20..39 {
            matrix.cut_pair(Edge { from: NodeIndex(from), to: NodeIndex(to) }).unwrap();
        }
    }
    let mut solver = Solver::new(&matrix, Objective::SlowestThenSum, Seed(1));
    assert_eq!(solver.improve(Effort(300_000)), Progress::Same);
    let refusal = solver.outcome().unwrap_err();
    assert!(matches!(&refusal, NoTour::NotFound { nodes } if nodes.len() == 2), "{refusal:?}");
    assert!(!refusal.is_proved());
}

#[test]
fn unmeasured_links_are_used_where_measured_ones_are_cut() {
    let mut matrix = Shape::Random.matrix(20, 1);
    for to in 0..19 {
        matrix.cut(Edge { from: NodeIndex(19), to: NodeIndex(to) }).unwrap();
    }
    let only = Edge { from: NodeIndex(19), to: NodeIndex(4) };
    matrix.set(only, Link::Unknown).unwrap();
    let tour = solve(&matrix, Objective::SlowestThenSum, Effort(500_000), Seed(1)).unwrap();
    assert_eq!(tour.successor(NodeIndex(19)), Some(NodeIndex(4)));
}
