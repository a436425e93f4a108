//! A ring through all nodes, and what it costs.

use crate::bandwidth::Bandwidth;
use crate::matrix::BandwidthMatrix;
use crate::node::{Edge, NodeIndex};
use crate::objective::{Cost, Margin, Objective, Tally};
use crate::price::Prices;

/// A ring through all nodes of a matrix, each once, over links that exist.
///
/// The order always starts with node 0, so equal rings are equal tours. A world of one is a ring
/// without edges, and a world of two uses the link in both directions.
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
    tally: Tally,
}

impl Tour {
    /// Checks that an order is a ring of this matrix, and finds what it costs.
    pub fn new(matrix: &BandwidthMatrix, order: &[NodeIndex]) -> Result<Self, TourError> {
        Self::priced(&Prices::of(matrix), order)
    }

    pub(crate) fn priced(prices: &Prices, order: &[NodeIndex]) -> Result<Self, TourError> {
        let order = canonical(prices.nodes(), order)?;
        let mut tour = Self { order, slowest: None, tally: Tally::default() };
        let (mut tally, mut slowest) = (Tally::default(), None);
        for edge in tour.edges() {
            let Some(bandwidth) = prices.bandwidth(edge) else { return Err(TourError::Unreachable { edge }) };
            let price = bandwidth.seconds_per_byte();
            tally.sum += price;
            if price > tally.slowest {
                tally.slowest = price;
                slowest = Some(SlowestEdge { edge, bandwidth });
            }
        }
        (tour.tally, tour.slowest) = (tally, slowest);
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

    /// What the tour costs: less is better.
    pub fn cost(&self, objective: Objective) -> Cost {
        objective.cost(self.tally)
    }

    /// The same ring at the prices of another matrix, or why it is no ring there: how an old tour is
    /// compared with a new one after new measurements.
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

    /// Whether this is a ring of the matrix, whatever it costs there.
    pub fn is_valid_for(&self, matrix: &BandwidthMatrix) -> bool {
        self.remeasured(matrix).is_ok()
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }
}

/// The edge that a ring waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowestEdge {
    /// Which edge.
    pub edge: Edge,
    /// How fast it is.
    pub bandwidth: Bandwidth,
}

/// Whether a tour is better than another by a margin. Both must have been priced by the same matrix;
/// see [`Tour::remeasured`].
///
/// ```
/// use ringfold_topology::{BandwidthMatrix, Margin, NodeIndex, Objective, Tour, improves};
///
/// let matrix = BandwidthMatrix::from_rows(&[
///     vec![0.0, 10.0, 9.0],
///     vec![9.0, 0.0, 10.0],
///     vec![10.0, 9.0, 0.0],
/// ])?;
/// let [a, b, c] = [NodeIndex(0), NodeIndex(1), NodeIndex(2)];
/// let (fast, slow) = (Tour::new(&matrix, &[a, b, c])?, Tour::new(&matrix, &[a, c, b])?);
/// let objective = Objective::SlowestThenSum;
/// assert!(improves(&fast, &slow, objective, Margin::new(0.05)?));
/// assert!(!improves(&fast, &slow, objective, Margin::new(0.5)?));
/// assert!(!improves(&fast, &fast, objective, Margin::NONE));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn improves(new: &Tour, old: &Tour, objective: Objective, margin: Margin) -> bool {
    new.cost(objective).improves_on(old.cost(objective), margin)
}

/// Why an order is no ring of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum TourError {
    /// Too few or too many nodes.
    #[error("a ring names {nodes} nodes, not {named}")]
    Length {
        /// How many it should name.
        nodes: usize,
        /// How many it names.
        named: usize,
    },
    /// A node that is not in the matrix.
    #[error("node {node} is not in the matrix")]
    NoSuchNode {
        /// Which node.
        node: NodeIndex,
    },
    /// A node that comes twice, so that another is missing.
    #[error("node {node} comes twice")]
    NodeTwice {
        /// Which node.
        node: NodeIndex,
    },
    /// An edge over which nothing gets through.
    #[error("nothing gets through {edge}")]
    Unreachable {
        /// Which edge.
        edge: Edge,
    },
}

/// Checks that all nodes are there once, and turns the ring so that it starts with node 0.
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
