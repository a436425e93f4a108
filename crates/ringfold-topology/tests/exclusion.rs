//! Tests of the exclusion of nodes.

use crate::matrices::Shape;
use ringfold_topology::{
    BandwidthMatrix, Edge, Effort, Link, NodeCount, NodeIndex, Objective, Seed, Tour, TourError, exact_tour,
    exclude_fewest,
};

const EFFORT: Effort = Effort(500_000);

fn indices(nodes: impl IntoIterator<Item = u16>) -> Vec<NodeIndex> {
    nodes.into_iter().map(NodeIndex).collect()
}

/// The rest has a ring, and each node is excluded or in the ring.
fn check(matrix: &BandwidthMatrix, oldest_first: &[NodeIndex]) -> Vec<NodeIndex> {
    let found = exclude_fewest(matrix, oldest_first, EFFORT, Seed(1)).unwrap();
    let rest = matrix.restricted_to(&found.ring).unwrap();
    let as_given: Vec<_> = rest.nodes().nodes().collect();
    assert!(Tour::new(&rest, &as_given).is_ok(), "the rest is not a ring");
    let mut all = [found.nodes.clone(), found.ring].concat();
    all.sort_unstable();
    assert_eq!(all, matrix.nodes().nodes().collect::<Vec<_>>());
    found.nodes
}

#[test]
fn no_node_is_excluded_if_there_is_a_ring() {
    for nodes in [1, 2, 3, 12, 18, 19, 100] {
        let matrix = Shape::Random.matrix(nodes, 1);
        assert_eq!(check(&matrix, &indices(0..nodes as u16)), []);
    }
}

#[test]
fn the_fewest_and_newest_nodes_are_excluded() {
    for nodes in 2..=7u16 {
        for seed in 0..40 {
            let mut matrix = Shape::Cut.matrix(usize::from(nodes), seed);
            let more = Shape::Cut.matrix(usize::from(nodes), seed + 500);
            for (from, to) in
                (0..nodes * nodes).map(|cell| (cell / nodes, cell % nodes)).filter(|(a, b)| a != b)
            {
                let edge = Edge { from: NodeIndex(from), to: NodeIndex(to) };
                if more.link(edge) == Ok(Link::Unreachable) {
                    matrix.cut(edge).unwrap();
                }
            }
            // Oldest first is the reverse of the numbering here, so that the two are not confused.
            let oldest_first = indices((0..nodes).rev());
            let kept_of = |set: u32| -> Vec<NodeIndex> {
                let kept = |age: &usize| set & (1 << (usize::from(nodes) - 1 - age)) != 0;
                (0..usize::from(nodes)).filter(kept).map(|age| oldest_first[age]).collect()
            };
            // The greater number has the more senior members, so the last of the largest is the one.
            let expected = (1..1u32 << nodes)
                .filter(|&set| {
                    exact_tour(&matrix.restricted_to(&kept_of(set)).unwrap(), Objective::Sum).is_ok()
                })
                .max_by_key(|set| (set.count_ones(), *set))
                .map(kept_of)
                .unwrap();
            let mut left_out = check(&matrix, &oldest_first);
            assert!(left_out.is_sorted(), "newest first, which is by number here");
            left_out.extend(expected);
            left_out.sort_unstable();
            assert_eq!(left_out, indices(0..nodes), "{nodes} #{seed}");
        }
    }
}

#[test]
fn a_large_world_excludes_only_unreachable_nodes() {
    let mut matrix = Shape::Random.matrix(80, 1);
    for other in (0..80).filter(|&other| other != 7) {
        matrix.cut(Edge { from: NodeIndex(7), to: NodeIndex(other) }).unwrap();
    }
    let found = exclude_fewest(&matrix, &indices(0..80), EFFORT, Seed(1)).unwrap();
    assert_eq!(found.nodes, [NodeIndex(7)]);
    assert!(found.is_fewest);
}

#[test]
fn of_two_nodes_with_one_common_neighbour_the_newer_is_excluded() {
    for [first, second] in [[5, 60], [60, 5], [30, 31]] {
        let mut matrix = Shape::Random.matrix(70, 2);
        for node in [first, second] {
            for other in (1..70).filter(|&other| other != node) {
                matrix.cut(Edge { from: NodeIndex(node), to: NodeIndex(other) }).unwrap();
            }
        }
        // Node 0 is all that either can send to.
        assert_eq!(check(&matrix, &indices(0..70)), [NodeIndex(first.max(second))]);
        assert_eq!(check(&matrix, &indices((0..70).rev())), [NodeIndex(first.min(second))]);
    }
}

#[test]
fn a_sparse_large_world_excludes_no_node_without_need() {
    // About one link in twenty is left, in no order that a ring could follow at once.
    let nodes = 300u16;
    let matrix = BandwidthMatrix::from_fn(NodeCount::new(300).unwrap(), |Edge { from, to }| {
        let steps = u32::from((to.0 + nodes - from.0) % nodes);
        if steps * (7 + u32::from(from.0)) % 211 < 11 { Link::Unknown } else { Link::Unreachable }
    });
    assert_eq!(check(&matrix, &indices(0..nodes)), []);
}

#[test]
fn of_two_halves_that_share_a_node_the_newer_is_excluded() {
    let mut matrix = BandwidthMatrix::new(NodeCount::new(39).unwrap());
    for from in 0..19 {
        for to in 20..39 {
            matrix.cut_pair(Edge { from: NodeIndex(from), to: NodeIndex(to) }).unwrap();
        }
    }
    assert_eq!(check(&matrix, &indices(0..39)), indices((20..39).rev()));
}

#[test]
fn without_links_only_the_oldest_node_remains() {
    for nodes in [3, 30] {
        let matrix = BandwidthMatrix::from_fn(NodeCount::new(nodes).unwrap(), |_| Link::Unreachable);
        let mut oldest_first = indices(0..nodes as u16);
        oldest_first.rotate_left(1);
        let found = exclude_fewest(&matrix, &oldest_first, EFFORT, Seed(1)).unwrap();
        assert_eq!((found.ring, found.is_fewest), (vec![NodeIndex(1)], true));
    }
}

#[test]
fn an_order_without_every_node_once_is_rejected() {
    let matrix = BandwidthMatrix::new(NodeCount::new(3).unwrap());
    let refused = |order: &[u16]| {
        exclude_fewest(&matrix, &indices(order.iter().copied()), EFFORT, Seed(1)).unwrap_err()
    };
    assert_eq!(refused(&[0, 1]), TourError::Length { nodes: 3, named: 2 });
    assert_eq!(refused(&[0, 1, 1]), TourError::NodeTwice { node: NodeIndex(1) });
    assert_eq!(refused(&[0, 1, 9]), TourError::NoSuchNode { node: NodeIndex(9) });
}
