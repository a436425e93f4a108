//! Tests of exact tours.

use crate::brute_force::best_keys;
use crate::matrices::Shape;
use ringfold_topology::{
    BandwidthMatrix, Edge, Effort, ExactError, Link, NoTour, NoTourProof, NodeCount, NodeIndex, Objective,
    Progress, Seed, Solver, Tour, exact_tour, solve,
};

const OBJECTIVES: [Objective; 2] = [Objective::SlowestThenSum, Objective::Sum];

fn agrees_with_brute_force(matrix: &BandwidthMatrix, context: &str) {
    for objective in OBJECTIVES {
        let expected = best_keys(matrix, objective);
        match (exact_tour(matrix, objective), expected) {
            (Ok(tour), Some(expected)) => {
                assert!(tour.is_valid_for(matrix), "{context}");
                for (key, expected) in tour.cost(objective).keys().into_iter().zip(expected) {
                    // Sums differ in the last bits with the order of the additions.
                    let difference = (key - expected).abs();
                    assert!(difference <= expected * 1e-12, "{context}, {objective:?}: {key} for {expected}");
                }
            }
            (Err(ExactError::NoTour(NoTour::Proved { nodes, .. })), None) => {
                assert!(!nodes.is_empty(), "{context}")
            }
            (answer, expected) => panic!("{context}, {objective:?}: {answer:?} for {expected:?}"),
        }
    }
}

#[test]
fn exact_tours_agree_with_brute_force_up_to_eight_nodes() {
    for shape in Shape::ALL {
        for nodes in 1..=8 {
            for seed in 0..40 {
                agrees_with_brute_force(&shape.matrix(nodes, seed), &format!("{shape:?} {nodes} #{seed}"));
            }
        }
    }
}

#[test]
fn exact_tours_agree_with_brute_force_at_nine_nodes() {
    for shape in Shape::ALL {
        for seed in 0..20 {
            agrees_with_brute_force(&shape.matrix(9, seed), &format!("{shape:?} 9 #{seed}"));
        }
    }
}

#[test]
fn exact_tours_agree_with_brute_force_where_most_links_are_cut() {
    for nodes in 2..=7 {
        for seed in 0..60 {
            let mut matrix = Shape::Cut.matrix(nodes, seed);
            let cut = Shape::Cut.matrix(nodes, seed + 1000);
            for edge in all_edges(&matrix) {
                if cut.link(edge) == Ok(Link::Unreachable) {
                    matrix.cut(edge).unwrap();
                }
            }
            agrees_with_brute_force(&matrix, &format!("sparse {nodes} #{seed}"));
            matrix.require_return_paths();
            agrees_with_brute_force(&matrix, &format!("sparse both ways {nodes} #{seed}"));
        }
    }
}

#[test]
fn a_world_of_one_is_a_ring_without_edges_and_a_world_of_two_uses_both_directions() {
    let alone = solve(&matrix_of(1), Objective::SlowestThenSum, Effort(0), Seed(0)).unwrap();
    assert_eq!((alone.order(), alone.slowest(), alone.edges().count()), (&[NodeIndex(0)][..], None, 0));
    assert_eq!(alone.successor(NodeIndex(0)), Some(NodeIndex(0)));

    let pair = BandwidthMatrix::from_rows(&[vec![0.0, 3e9], vec![2e9, 0.0]]).unwrap();
    let tour = solve(&pair, Objective::SlowestThenSum, Effort(0), Seed(0)).unwrap();
    assert_eq!(tour.order(), [NodeIndex(0), NodeIndex(1)]);
    assert_eq!(tour.slowest().unwrap().bandwidth.bytes_per_second(), 2e9);

    let one_way = BandwidthMatrix::from_rows(&[vec![0.0, 3e9], vec![0.0, 0.0]]).unwrap();
    let refusal = solve(&one_way, Objective::SlowestThenSum, Effort(0), Seed(0)).unwrap_err();
    assert!(matches!(refusal, NoTour::Proved { proof: NoTourProof::NotConnected, .. }), "{refusal:?}");
}

#[test]
fn a_ring_ruled_out_only_by_exhaustive_search_is_rejected_with_proof() {
    // Two squares share a node: everyone reaches everyone and has neighbours, but the shared node would
    // have to be passed twice.
    let mut matrix = matrix_of(7);
    for edge in all_edges(&matrix) {
        let in_one_square =
            |low: u16, high: u16| (low..=high).contains(&edge.from.0) && (low..=high).contains(&edge.to.0);
        if !in_one_square(0, 3) && !in_one_square(3, 6) {
            matrix.cut(edge).unwrap();
        }
    }
    let mut solver = Solver::new(&matrix, Objective::SlowestThenSum, Seed(0));
    assert_eq!(solver.improve(Effort(1)), Progress::Impossible);
    let NoTour::Proved { proof, nodes } = solver.outcome().unwrap_err() else { panic!("proved") };
    assert_eq!(nodes, [4, 5, 6].map(NodeIndex));
    assert_eq!(proof, NoTourProof::Exhausted);
}

#[test]
fn nodes_that_share_too_few_neighbours_are_named() {
    // Nodes 2, 3 and 4 can only talk to nodes 0 and 1.
    let mut matrix = matrix_of(5);
    for edge in all_edges(&matrix).into_iter().filter(|edge| edge.from.0 >= 2 && edge.to.0 >= 2) {
        matrix.cut(edge).unwrap();
    }
    let refusal = solve(&matrix, Objective::Sum, Effort(1), Seed(0)).unwrap_err();
    let NoTour::Proved { proof: NoTourProof::TooFewNeighbours, nodes } = &refusal else {
        panic!("{refusal:?}")
    };
    assert_eq!(nodes.len(), 1);
    assert!(refusal.is_proved() && refusal.nodes() == nodes);
}

#[test]
fn an_old_tour_is_compared_by_new_measurements() {
    let before = BandwidthMatrix::from_rows(&[vec![0.0, 4e9], vec![4e9, 0.0]]).unwrap();
    let after = BandwidthMatrix::from_rows(&[vec![0.0, 1e9], vec![4e9, 0.0]]).unwrap();
    let tour = Tour::new(&before, &[NodeIndex(1), NodeIndex(0)]).unwrap();
    let again = tour.remeasured(&after).unwrap();
    assert_eq!(again.slowest().unwrap().edge, Edge { from: NodeIndex(0), to: NodeIndex(1) });
    assert!(again.cost(Objective::Sum) > tour.cost(Objective::Sum));
}

fn matrix_of(nodes: usize) -> BandwidthMatrix {
    BandwidthMatrix::new(NodeCount::new(nodes).unwrap())
}

fn all_edges(matrix: &BandwidthMatrix) -> Vec<Edge> {
    let nodes = matrix.nodes();
    nodes
        .nodes()
        .flat_map(|from| nodes.nodes().map(move |to| Edge { from, to }))
        .filter(|e| e.from != e.to)
        .collect()
}
