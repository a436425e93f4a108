//! The directed bandwidths between all pairs of nodes.

use crate::bandwidth::{Bandwidth, BandwidthError, Link};
use crate::limits::NODES_MAX;
use crate::node::{Edge, NodeCount, NodeIndex};

/// The state of every directed link between the nodes of a ring.
///
/// The two directions of a pair are separate entries. In a new matrix every link is [`Link::Unknown`].
///
/// ```
/// use ringfold_topology::{BandwidthMatrix, Edge, Link, NodeCount, NodeIndex};
///
/// let mut matrix = BandwidthMatrix::new(NodeCount::new(3)?);
/// let edge = Edge { from: NodeIndex(0), to: NodeIndex(1) };
/// matrix.set(edge, Link::measured(1e9)?)?;
/// matrix.cut(edge.reversed())?;
/// assert_eq!(matrix.link(edge)?, Link::measured(1e9)?);
/// assert_eq!(matrix.link(edge.reversed())?, Link::Unreachable);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BandwidthMatrix {
    nodes: NodeCount,
    unknown: UnknownLinks,
    /// Row by row, encoded by [`encode`]. A [`Link`] would take twice the memory.
    cells: Vec<f64>,
}

impl BandwidthMatrix {
    /// A matrix in which every link is unknown.
    pub fn new(nodes: NodeCount) -> Self {
        let cells = vec![encode(Link::Unknown); nodes.get() * nodes.get()];
        Self { nodes, unknown: UnknownLinks::default(), cells }
    }

    /// A matrix whose links are computed by a function.
    ///
    /// ```
    /// # use ringfold_topology::{BandwidthMatrix, Link, NodeCount};
    /// let matrix = BandwidthMatrix::from_fn(NodeCount::new(4)?, |edge| {
    ///     if edge.from > edge.to { Link::Unknown } else { Link::Unreachable }
    /// });
    /// assert_eq!(matrix.unknown_edges().count(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_fn(nodes: NodeCount, mut link_of: impl FnMut(Edge) -> Link) -> Self {
        let mut matrix = Self::new(nodes);
        for from in nodes.nodes() {
            for to in nodes.nodes().filter(|&to| to != from) {
                matrix.cells[from.index() * nodes.get() + to.index()] = encode(link_of(Edge { from, to }));
            }
        }
        matrix
    }

    /// A matrix from rows of bytes per second; zero means unreachable. The diagonal is ignored.
    ///
    /// ```
    /// # use ringfold_topology::{BandwidthMatrix, MatrixError};
    /// assert!(BandwidthMatrix::from_rows(&[vec![0.0, 1e9], vec![1e9, 0.0]]).is_ok());
    /// let garbage = BandwidthMatrix::from_rows(&[vec![0.0, f64::NAN], vec![1e9, 0.0]]);
    /// assert!(matches!(garbage, Err(MatrixError::Bandwidth { .. })));
    /// let ragged = BandwidthMatrix::from_rows(&[vec![0.0, 1e9], vec![1e9]]);
    /// assert!(matches!(ragged, Err(MatrixError::RowLength { .. })));
    /// ```
    pub fn from_rows(rows: &[Vec<f64>]) -> Result<Self, MatrixError> {
        let mut matrix = Self::new(NodeCount::new(rows.len())?);
        for (from, row) in matrix.nodes.nodes().zip(rows) {
            if row.len() != rows.len() {
                return Err(MatrixError::RowLength { row: from, entries: row.len(), nodes: rows.len() });
            }
            for (to, &number) in matrix.nodes.nodes().zip(row) {
                let edge = Edge { from, to };
                if from == to {
                    continue;
                }
                let link = match number {
                    0.0 => Link::Unreachable,
                    _ => Link::measured(number).map_err(|cause| MatrixError::Bandwidth { edge, cause })?,
                };
                matrix.set(edge, link)?;
            }
        }
        Ok(matrix)
    }

    /// Sets the estimate for unknown links.
    pub fn with_unknown(mut self, unknown: UnknownLinks) -> Self {
        self.unknown = unknown;
        self
    }

    /// The number of nodes.
    pub fn nodes(&self) -> NodeCount {
        self.nodes
    }

    /// The state of a link.
    pub fn link(&self, edge: Edge) -> Result<Link, MatrixError> {
        Ok(decode(self.cells[self.cell(edge)?]))
    }

    /// Sets the state of a link in this direction only.
    pub fn set(&mut self, edge: Edge, link: Link) -> Result<(), MatrixError> {
        let cell = self.cell(edge)?;
        self.cells[cell] = encode(link);
        Ok(())
    }

    /// Makes a link unreachable in this direction.
    pub fn cut(&mut self, edge: Edge) -> Result<(), MatrixError> {
        self.set(edge, Link::Unreachable)
    }

    /// Makes a link unreachable in both directions.
    ///
    /// ```
    /// # use ringfold_topology::{BandwidthMatrix, Edge, Link, NodeCount, NodeIndex};
    /// let mut matrix = BandwidthMatrix::new(NodeCount::new(2)?);
    /// let edge = Edge { from: NodeIndex(0), to: NodeIndex(1) };
    /// matrix.cut_pair(edge)?;
    /// assert_eq!(matrix.link(edge)?, Link::Unreachable);
    /// assert_eq!(matrix.link(edge.reversed())?, Link::Unreachable);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cut_pair(&mut self, edge: Edge) -> Result<(), MatrixError> {
        self.cut(edge)?;
        self.cut(edge.reversed())
    }

    /// Makes every link unreachable whose opposite direction is: data flows one way around a ring, but credit and
    /// acknowledgements flow back.
    ///
    /// ```
    /// # use ringfold_topology::{BandwidthMatrix, Edge, Link, NodeCount, NodeIndex};
    /// let mut matrix = BandwidthMatrix::new(NodeCount::new(3)?);
    /// let edge = Edge { from: NodeIndex(0), to: NodeIndex(1) };
    /// matrix.cut(edge.reversed())?;
    /// matrix.require_return_paths();
    /// assert_eq!(matrix.link(edge)?, Link::Unreachable);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn require_return_paths(&mut self) {
        let nodes = self.nodes.get();
        let unreachable = encode(Link::Unreachable);
        for low in 0..nodes {
            for high in low + 1..nodes {
                let (there, back) = (low * nodes + high, high * nodes + low);
                if self.cells[there] == unreachable || self.cells[back] == unreachable {
                    self.cells[there] = unreachable;
                    self.cells[back] = unreachable;
                }
            }
        }
    }

    /// The links that are not measured.
    ///
    /// ```
    /// # use ringfold_topology::{BandwidthMatrix, NodeCount};
    /// assert_eq!(BandwidthMatrix::new(NodeCount::new(5)?).unknown_edges().count(), 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unknown_edges(&self) -> impl Iterator<Item = Edge> + '_ {
        self.edges().filter(|&(_, link)| link == Link::Unknown).map(|(edge, _)| edge)
    }

    /// The estimated bandwidth of unknown links. If no link is measured, it is the least bandwidth.
    ///
    /// ```
    /// # use ringfold_topology::{Bandwidth, BandwidthMatrix, Edge, Link, NodeCount, NodeIndex, UnknownLinks};
    /// let mut matrix = BandwidthMatrix::new(NodeCount::new(3)?);
    /// let edge = Edge { from: NodeIndex(0), to: NodeIndex(1) };
    /// matrix.set(edge, Link::measured(1e9)?)?;
    /// assert_eq!(matrix.estimate(), Bandwidth::new(1e9)?);
    /// let guess = Bandwidth::new(5e6)?;
    /// assert_eq!(matrix.with_unknown(UnknownLinks::Assume(guess)).estimate(), guess);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn estimate(&self) -> Bandwidth {
        let mut measured: Vec<Bandwidth> = match self.unknown {
            UnknownLinks::Assume(bandwidth) => return bandwidth,
            UnknownLinks::Slowest | UnknownLinks::Median => self
                .edges()
                .filter_map(|(_, link)| match link {
                    Link::Measured(bandwidth) => Some(bandwidth),
                    Link::Unreachable | Link::Unknown => None,
                })
                .collect(),
        };
        if measured.is_empty() {
            return Bandwidth::MIN;
        }
        let rank = match self.unknown {
            UnknownLinks::Median => (measured.len() - 1) / 2,
            UnknownLinks::Slowest | UnknownLinks::Assume(_) => 0,
        };
        *measured.select_nth_unstable_by(rank, |a, b| a.bytes_per_second().total_cmp(&b.bytes_per_second())).1
    }

    /// The matrix of some nodes, in the given order.
    ///
    /// ```
    /// # use ringfold_topology::{BandwidthMatrix, Edge, Link, NodeCount, NodeIndex};
    /// let mut matrix = BandwidthMatrix::new(NodeCount::new(3)?);
    /// matrix.cut(Edge { from: NodeIndex(2), to: NodeIndex(0) })?;
    /// let pair = matrix.restricted_to(&[NodeIndex(2), NodeIndex(0)])?;
    /// assert_eq!(pair.link(Edge { from: NodeIndex(0), to: NodeIndex(1) })?, Link::Unreachable);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restricted_to(&self, kept: &[NodeIndex]) -> Result<Self, MatrixError> {
        let nodes = NodeCount::new(kept.len())?;
        let mut seen = vec![false; self.nodes.get()];
        for &node in kept {
            match seen.get_mut(node.index()) {
                None => return Err(MatrixError::NoSuchNode { node, nodes: self.nodes.get() }),
                Some(true) => return Err(MatrixError::NodeTwice { node }),
                Some(first) => *first = true,
            }
        }
        let row_of = |node: NodeIndex| node.index() * self.nodes.get();
        let cells = kept
            .iter()
            .flat_map(|&from| kept.iter().map(move |&to| self.cells[row_of(from) + to.index()]))
            .collect();
        Ok(Self { nodes, unknown: self.unknown, cells })
    }

    fn edges(&self) -> impl Iterator<Item = (Edge, Link)> + '_ {
        let nodes = self.nodes.get();
        self.cells.iter().enumerate().filter_map(move |(cell, &number)| {
            let edge = Edge { from: NodeIndex::of(cell / nodes), to: NodeIndex::of(cell % nodes) };
            (edge.from != edge.to).then(|| (edge, decode(number)))
        })
    }

    fn cell(&self, edge: Edge) -> Result<usize, MatrixError> {
        let nodes = self.nodes.get();
        for node in [edge.from, edge.to] {
            if node.index() >= nodes {
                return Err(MatrixError::NoSuchNode { node, nodes });
            }
        }
        if edge.from == edge.to {
            return Err(MatrixError::SelfLink { node: edge.from });
        }
        Ok(edge.from.index() * nodes + edge.to.index())
    }
}

/// The estimate for links that are not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum UnknownLinks {
    /// The slowest measured link, so that a ring prefers measured links.
    Slowest,
    /// The median of the measured links.
    #[default]
    Median,
    /// This bandwidth.
    Assume(Bandwidth),
}

/// Why a matrix, or an index into it, is invalid.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum MatrixError {
    /// No nodes at all, or more than the limit.
    #[error("invalid number of nodes {nodes}: must be 1 to {NODES_MAX}")]
    NodeCount { nodes: usize },
    /// A row of the wrong length.
    #[error("invalid row {row}: it has {entries} entries, must have {nodes}")]
    RowLength { row: NodeIndex, entries: usize, nodes: usize },
    /// An invalid bandwidth.
    #[error("link {edge}: {cause}")]
    Bandwidth { edge: Edge, cause: BandwidthError },
    /// A node outside the matrix.
    #[error("unknown node {node}: the matrix has {nodes} nodes")]
    NoSuchNode { node: NodeIndex, nodes: usize },
    /// A duplicate node.
    #[error("duplicate node {node}")]
    NodeTwice { node: NodeIndex },
    /// A link from a node to itself.
    #[error("invalid link from node {node} to itself")]
    SelfLink { node: NodeIndex },
}

/// The special states are outside the range of a [`Bandwidth`].
fn encode(link: Link) -> f64 {
    match link {
        Link::Unreachable => 0.0,
        Link::Unknown => -1.0,
        Link::Measured(bandwidth) => bandwidth.bytes_per_second(),
    }
}

fn decode(number: f64) -> Link {
    if number == 0.0 {
        return Link::Unreachable;
    }
    Bandwidth::new(number).map_or(Link::Unknown, Link::Measured)
}
