//! Tours: rings through all nodes, with their cost.

use crate::bandwidth::Bandwidth;
use crate::matrix::BandwidthMatrix;
use crate::node::{Edge, NodeIndex};
use crate::objective::{Objective, TourCost, TourTotals};
use crate::price::Prices;

/// A ring through all nodes of a matrix over reachable links.
///
/// The order starts with node 0, so equal rings are equal tours. A world of one is a ring without edges; a world of two
/// uses the link in both directions.
///
/// ```
/// use ringfold_topology::{BandwidthMatrix, NodeCount, NodeIndex, Tour, TourError};
///
/// let matrix = BandwidthMatrix::new(NodeCount::new(3)?);
/// let [a, b, c] = [NodeIndex(0), NodeIndex(1), NodeIndex(2)];
/// let tour = Tour::new(&matrix, &[c, a, b])?;
/// assert_eq!(tour.order(), [a, b, c]);
/// assert_eq!(tour.successor(c), Some(a));
/// assert_eq!(tour, Tour::new(&matrix, &[b, c, a])?);
/// assert_eq!(Tour::new(&matrix, &[a, b, b]), Err(TourError::NodeTwice { node: b }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tour {
    order: Vec<NodeIndex>,
    slowest: Option<SlowestEdge>,
    totals: TourTotals,
}

impl Tour {
    /// Checks that an order is a ring of this matrix, and computes its cost.
    pub fn new(matrix: &BandwidthMatrix, order: &[NodeIndex]) -> Result<Self, TourError> {
        Self::priced(&Prices::of(matrix), order)
    }

    pub(crate) fn priced(prices: &Prices, order: &[NodeIndex]) -> Result<Self, TourError> {
        let order = canonical(prices.nodes(), order)?;
        let mut tour = Self { order, slowest: None, totals: TourTotals::default() };
        let (mut totals, mut slowest) = (TourTotals::default(), None);
        for edge in tour.edges() {
            let Some(bandwidth) = prices.bandwidth(edge) else { return Err(TourError::Unreachable { edge }) };
            let price = bandwidth.seconds_per_byte();
            totals.sum += price;
            if price > totals.slowest {
                totals.slowest = price;
                slowest = Some(SlowestEdge { edge, bandwidth });
            }
        }
        (tour.totals, tour.slowest) = (totals, slowest);
        Ok(tour)
    }

    /// The nodes in the order of the ring, node 0 first.
    pub fn order(&self) -> &[NodeIndex] {
        &self.order
    }

    /// The edges of the ring, from node 0 on; none in a world of one.
    ///
    /// ```
    /// # use ringfold_topology::{BandwidthMatrix, NodeCount, NodeIndex, Tour};
    /// let matrix = BandwidthMatrix::new(NodeCount::new(2)?);
    /// let tour = Tour::new(&matrix, &[NodeIndex(0), NodeIndex(1)])?;
    /// let edges: Vec<_> = tour.edges().map(|edge| edge.to_string()).collect();
    /// assert_eq!(edges, ["#0→#1", "#1→#0"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn edges(&self) -> impl Iterator<Item = Edge> + '_ {
        let nodes = self.order.len();
        let edges = if nodes > 1 { nodes } else { 0 };
        (0..edges).map(move |at| Edge { from: self.order[at], to: self.order[(at + 1) % nodes] })
    }

    /// The node that a node sends to. In a world of one that is the node itself.
    pub fn successor(&self, node: NodeIndex) -> Option<NodeIndex> {
        let at = self.order.iter().position(|&other| other == node)?;
        Some(self.order[(at + 1) % self.order.len()])
    }

    /// The slowest edge, the first from node 0 on if there are several; none in a world of one.
    pub fn slowest(&self) -> Option<SlowestEdge> {
        self.slowest
    }

    /// The cost of the tour; less is better.
    pub fn cost(&self, objective: Objective) -> TourCost {
        objective.cost(self.totals)
    }

    /// The same ring in another matrix, to compare an old tour with a new one after new measurements.
    ///
    /// ```
    /// # use ringfold_topology::{BandwidthMatrix, NodeIndex, Tour, TourError};
    /// let before = BandwidthMatrix::from_rows(&[vec![0.0, 2.0], vec![2.0, 0.0]])?;
    /// let after = BandwidthMatrix::from_rows(&[vec![0.0, 4.0], vec![0.0, 0.0]])?;
    /// let tour = Tour::new(&before, &[NodeIndex(0), NodeIndex(1)])?;
    /// assert!(matches!(tour.remeasured(&after), Err(TourError::Unreachable { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remeasured(&self, matrix: &BandwidthMatrix) -> Result<Self, TourError> {
        Self::new(matrix, &self.order)
    }

    /// Whether this is a ring of the matrix.
    pub fn is_valid_for(&self, matrix: &BandwidthMatrix) -> bool {
        self.remeasured(matrix).is_ok()
    }

    pub(crate) fn totals(&self) -> TourTotals {
        self.totals
    }
}

/// The slowest edge of a ring.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowestEdge {
    pub edge: Edge,
    pub bandwidth: Bandwidth,
}

/// Why an order is not a ring of a matrix.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum TourError {
    /// Too few or too many nodes.
    #[error("invalid ring of {named} nodes: must have {nodes}")]
    Length { nodes: usize, named: usize },
    /// A node that is not in the matrix.
    #[error("unknown node {node}")]
    NoSuchNode { node: NodeIndex },
    /// A duplicate node.
    #[error("duplicate node {node}")]
    NodeTwice { node: NodeIndex },
    /// An unreachable edge.
    #[error("unreachable link {edge}")]
    Unreachable { edge: Edge },
}

/// Checks that each node is in the order once, and rotates the ring to start with node 0.
pub(crate) fn canonical(nodes: usize, order: &[NodeIndex]) -> Result<Vec<NodeIndex>, TourError> {
    if order.len() != nodes {
        return Err(TourError::Length { nodes, named: order.len() });
    }
    let mut seen = vec![false; nodes];
    for &node in order {
        match seen.get_mut(node.index()) {
            None => return Err(TourError::NoSuchNode { node }),
            Some(true) => return Err(TourError::NodeTwice { node }),
            Some(first) => *first = true,
        }
    }
    let mut order = order.to_vec();
    let start = order.iter().position(|&node| node == NodeIndex(0)).unwrap_or(0);
    order.rotate_left(start);
    Ok(order)
}
