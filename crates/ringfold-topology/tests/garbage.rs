//! Invalid and extreme input.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use ringfold_topology::limits::{BANDWIDTH_BYTES_PER_SECOND_MAX, NODES_MAX};
use ringfold_topology::{
    Bandwidth, BandwidthMatrix, Edge, Effort, Link, MatrixError, NodeCount, NodeIndex, Objective, Seed,
    Solver, Tour, UnknownLinks, exclude_fewest, solve,
};

#[test]
fn invalid_bandwidths_are_rejected() {
    for garbage in [0.0, -0.0, -1.0, 0.5, 1e19, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE]
    {
        let error = Bandwidth::new(garbage).unwrap_err();
        assert!(error.to_string().contains("invalid bandwidth"));
        assert!(Link::measured(garbage).is_err());
    }
    let rows = [vec![0.0, -5.0], vec![1e9, 0.0]];
    let error = BandwidthMatrix::from_rows(&rows).unwrap_err();
    assert!(matches!(
        error,
        MatrixError::Bandwidth { edge: Edge { from: NodeIndex(0), to: NodeIndex(1) }, .. }
    ));
    // What the diagonal holds does not matter.
    assert!(BandwidthMatrix::from_rows(&[vec![f64::NAN, 1e9], vec![1e9, -3.0]]).is_ok());
}

#[test]
fn sizes_and_nodes_out_of_bounds_are_rejected() {
    assert_eq!(NodeCount::new(0), Err(MatrixError::NodeCount { nodes: 0 }));
    assert_eq!(NodeCount::new(NODES_MAX + 1), Err(MatrixError::NodeCount { nodes: NODES_MAX + 1 }));
    assert!(BandwidthMatrix::from_rows(&[]).is_err());
    let mut matrix = BandwidthMatrix::new(NodeCount::new(2).unwrap());
    let outside = Edge { from: NodeIndex(0), to: NodeIndex(2) };
    assert_eq!(matrix.cut(outside), Err(MatrixError::NoSuchNode { node: NodeIndex(2), nodes: 2 }));
    let own = Edge { from: NodeIndex(1), to: NodeIndex(1) };
    assert_eq!(matrix.cut_pair(own), Err(MatrixError::SelfLink { node: NodeIndex(1) }));
    assert!(matrix.restricted_to(&[]).is_err());
    assert!(matrix.restricted_to(&[NodeIndex(1), NodeIndex(1)]).is_err());
    assert!(matrix.restricted_to(&[NodeIndex(5)]).is_err());
    assert!(Tour::new(&matrix, &[]).is_err());
}

#[test]
fn the_fastest_and_slowest_bandwidths_mix_without_losing_a_bit() {
    let fast = BANDWIDTH_BYTES_PER_SECOND_MAX;
    let rows: Vec<Vec<f64>> = (0..20)
        .map(|from| (0..20).map(|to| if (to + 20 - from) % 20 == 7 { fast } else { 1.0 }).collect())
        .collect();
    let matrix = BandwidthMatrix::from_rows(&rows).unwrap();
    let tour = solve(&matrix, Objective::SlowestThenSum, Effort(500_000), Seed(1)).unwrap();
    assert_eq!(tour.slowest().unwrap().bandwidth.bytes_per_second(), fast);
}

#[test]
fn estimates_are_the_slowest_the_median_or_what_was_assumed() {
    let mut matrix = BandwidthMatrix::new(NodeCount::new(3).unwrap());
    assert_eq!(matrix.estimate(), Bandwidth::MIN);
    let edges: Vec<_> = matrix.unknown_edges().collect();
    for (&edge, speed) in edges.iter().zip([1e6, 5e6, 7e6]) {
        matrix.set(edge, Link::measured(speed).unwrap()).unwrap();
    }
    matrix.cut(edges[3]).unwrap();
    let estimate = |unknown| matrix.clone().with_unknown(unknown).estimate().bytes_per_second();
    assert_eq!(estimate(UnknownLinks::Median), 5e6);
    assert_eq!(estimate(UnknownLinks::Slowest), 1e6);
    assert_eq!(estimate(UnknownLinks::Assume(Bandwidth::new(9.0).unwrap())), 9.0);
}

#[test]
fn no_matrix_makes_a_solver_panic_or_return_an_invalid_tour() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for round in 0..400 {
        let nodes = 1 + rng.next_u32() as usize % 40;
        let cut_percent = rng.next_u32() % 101;
        let unknown_percent = rng.next_u32() % 101;
        let speeds = 1 + rng.next_u32() % 5;
        let matrix = BandwidthMatrix::from_fn(NodeCount::new(nodes).unwrap(), |_| {
            if rng.next_u32() % 100 < cut_percent {
                Link::Unreachable
            } else if rng.next_u32() % 100 < unknown_percent {
                Link::Unknown
            } else {
                Link::measured(10f64.powi((rng.next_u32() % speeds * 4) as i32)).unwrap()
            }
        });
        for objective in [Objective::SlowestThenSum, Objective::Sum] {
            let mut solver = Solver::heuristic(&matrix, objective, Seed(round));
            solver.improve(Effort(20_000));
            match solver.outcome() {
                Ok(tour) => assert!(tour.is_valid_for(&matrix)),
                Err(refusal) => assert!(!refusal.nodes().is_empty()),
            }
        }
        let everyone: Vec<_> = matrix.nodes().nodes().collect();
        let found = exclude_fewest(&matrix, &everyone, Effort(20_000), Seed(round)).unwrap();
        let kept = matrix.restricted_to(&found.ring).unwrap();
        assert!(Tour::new(&kept, &kept.nodes().nodes().collect::<Vec<_>>()).is_ok());
    }
}
