//! That there is no ring, or that none was found, and which nodes stand in its way.

use crate::graph::Graph;
use crate::node::NodeIndex;

/// Why a solver has no tour.
///
/// ```
/// use ringfold_topology::{BandwidthMatrix, Effort, NoTour, NodeIndex, Objective, Proof, Seed, solve};
///
/// // Nothing that node 2 sends gets through.
/// let matrix = BandwidthMatrix::from_rows(&[
///     vec![0.0, 1e9, 1e9],
///     vec![1e9, 0.0, 1e9],
///     vec![0.0, 0.0, 0.0],
/// ])?;
/// let refusal = solve(&matrix, Objective::SlowestThenSum, Effort(1000), Seed(1)).unwrap_err();
/// assert_eq!(refusal, NoTour::Proved { proof: Proof::NotConnected, nodes: vec![NodeIndex(2)] });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTour {
    /// No ring through all nodes exists.
    #[error("there is no ring through all nodes: {proof} (without these there may be one: {nodes:?})")]
    Proved {
        /// How that is known.
        proof: Proof,
        /// Nodes that can't be in a ring with the rest. Others may be to blame just as well; see
        /// [`fewest_left_out`](crate::fewest_left_out) for a choice that can be acted upon.
        nodes: Vec<NodeIndex>,
    },
    /// The search has met no ring so far. More effort may find one.
    #[error("no ring was found so far; the nearest attempt breaks at {nodes:?}")]
    NotFound {
        /// The ends of the missing edges in the nearest attempt.
        nodes: Vec<NodeIndex>,
    },
}

impl NoTour {
    /// Whether more effort is in vain.
    pub fn is_proved(&self) -> bool {
        matches!(self, Self::Proved { .. })
    }

    /// The nodes that stand in the way, as far as known.
    pub fn nodes(&self) -> &[NodeIndex] {
        match self {
            Self::Proved { nodes, .. } | Self::NotFound { nodes } => nodes,
        }
    }
}

/// How it is known that no ring exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Proof {
    /// Some nodes can't be reached from the others, or can't reach them.
    #[error("some nodes are cut off in one direction at least")]
    NotConnected,
    /// Several nodes depend on the same few neighbours, so they can't all have one of their own.
    #[error("some nodes share too few neighbours")]
    TooFewNeighbours,
    /// Every order was looked at.
    #[error("every order was tried")]
    Exhausted,
}

/// The proofs that are quick to find; that none is found proves nothing.
pub(crate) fn quick_proof(graph: &Graph) -> Option<NoTour> {
    if graph.may_have_ring() {
        return None;
    }
    let components = graph.components();
    if components.len() == 1 {
        return Some(NoTour::Proved { proof: Proof::TooFewNeighbours, nodes: graph.unmatched() });
    }
    let nodes = (0..graph.nodes()).filter(|&node| !components[0].contains(node)).map(NodeIndex::of).collect();
    Some(NoTour::Proved { proof: Proof::NotConnected, nodes })
}
