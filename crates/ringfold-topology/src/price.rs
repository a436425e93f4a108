//! The prices of edges: seconds per byte.

use crate::bandwidth::{Bandwidth, Link};
use crate::graph::Graph;
use crate::matrix::BandwidthMatrix;
use crate::node::{Edge, NodeIndex};

/// Seconds per byte of every edge, with estimates for unknown links; infinite for unreachable ones.
///
/// With prices the slowest edge is a maximum, and all objectives are minimised.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    nodes: usize,
    /// Bandwidths instead of their inverses, so that measurements are reported exactly.
    bandwidths: Vec<Option<Bandwidth>>,
}

impl Prices {
    pub(crate) fn of(matrix: &BandwidthMatrix) -> Self {
        let nodes = matrix.nodes().get();
        let estimate = matrix.estimate();
        let bandwidth_at = |cell: usize| {
            let edge = Edge { from: NodeIndex::of(cell / nodes), to: NodeIndex::of(cell % nodes) };
            match matrix.link(edge) {
                Ok(Link::Measured(bandwidth)) => Some(bandwidth),
                Ok(Link::Unknown) => Some(estimate),
                // The error of an edge from a node to itself.
                Ok(Link::Unreachable) | Err(_) => None,
            }
        };
        Self { nodes, bandwidths: (0..nodes * nodes).map(bandwidth_at).collect() }
    }

    /// The same price for every edge of a graph.
    pub(crate) fn uniform(graph: &Graph) -> Self {
        let nodes = graph.nodes();
        let bandwidth_at = |cell: usize| graph.has(cell / nodes, cell % nodes).then_some(Bandwidth::MIN);
        Self { nodes, bandwidths: (0..nodes * nodes).map(bandwidth_at).collect() }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    pub(crate) fn bandwidth(&self, edge: Edge) -> Option<Bandwidth> {
        self.bandwidths[edge.from.index() * self.nodes + edge.to.index()]
    }

    pub(crate) fn at(&self, from: usize, to: usize) -> f64 {
        price_of(self.bandwidths[from * self.nodes + to])
    }

    /// All prices, row by row.
    pub(crate) fn cells(&self) -> impl Iterator<Item = f64> + '_ {
        self.bandwidths.iter().copied().map(price_of)
    }

    /// All distinct prices in ascending order.
    pub(crate) fn levels(&self) -> Vec<f64> {
        let mut levels: Vec<f64> = self.cells().filter(|price| price.is_finite()).collect();
        levels.sort_unstable_by(f64::total_cmp);
        levels.dedup();
        levels
    }
}

fn price_of(bandwidth: Option<Bandwidth>) -> f64 {
    bandwidth.map_or(f64::INFINITY, Bandwidth::seconds_per_byte)
}
