//! Why a solver has no tour, and which nodes prevent it.

use crate::graph::Graph;
use crate::node::NodeIndex;

/// Why a solver has no tour.
///
/// ```
/// use ringfold_topology::{BandwidthMatrix, Effort, NoTour, NodeIndex, Objective, NoTourProof, Seed, solve};
///
/// // Node 2 cannot send to any other node.
/// let matrix = BandwidthMatrix::from_rows(&[
///     vec![0.0, 1e9, 1e9],
///     vec![1e9, 0.0, 1e9],
///     vec![0.0, 0.0, 0.0],
/// ])?;
/// let refusal = solve(&matrix, Objective::SlowestThenSum, Effort(1000), Seed(1)).unwrap_err();
/// assert_eq!(refusal, NoTour::Proved { proof: NoTourProof::NotConnected, nodes: vec![NodeIndex(2)] });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTour {
    /// There is no ring through all nodes.
    #[error("no ring through all nodes: {proof} (there may be one without {nodes:?})")]
    Proved {
        /// How that is known.
        proof: NoTourProof,
        /// Nodes that cannot be in a ring with the rest. The choice is not unique; use
        /// [`exclude_fewest`](crate::exclude_fewest) to exclude nodes.
        nodes: Vec<NodeIndex>,
    },
    /// The search has not found a ring yet.
    #[error("no ring found yet; the best attempt lacks links at {nodes:?}")]
    NotFound {
        /// The ends of the missing edges in the best attempt.
        nodes: Vec<NodeIndex>,
    },
}

impl NoTour {
    /// Whether it is proved that there is no ring.
    pub fn is_proved(&self) -> bool {
        matches!(self, Self::Proved { .. })
    }

    /// The nodes that prevent a ring, as far as known.
    pub fn nodes(&self) -> &[NodeIndex] {
        match self {
            Self::Proved { nodes, .. } | Self::NotFound { nodes } => nodes,
        }
    }
}

/// How it is known that there is no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTourProof {
    /// Some nodes are not reachable from the others, or cannot reach them.
    #[error("some nodes are unreachable in at least one direction")]
    NotConnected,
    /// Several nodes share fewer neighbours than there are nodes.
    #[error("some nodes share too few neighbours")]
    TooFewNeighbours,
    /// Every order was tried.
    #[error("every order was tried")]
    Exhausted,
}

/// Looks for a quick proof that there is no ring.
pub(crate) fn quick_proof(graph: &Graph) -> Option<NoTour> {
    if graph.may_have_ring() {
        return None;
    }
    let components = graph.components();
    if components.len() == 1 {
        return Some(NoTour::Proved { proof: NoTourProof::TooFewNeighbours, nodes: graph.unmatched() });
    }
    let nodes = (0..graph.nodes()).filter(|&node| !components[0].contains(node)).map(NodeIndex::of).collect();
    Some(NoTour::Proved { proof: NoTourProof::NotConnected, nodes })
}
