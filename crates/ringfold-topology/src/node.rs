//! Nodes and directed edges.

use crate::limits::NODES_MAX;
use crate::matrix::MatrixError;
use std::fmt;

/// The row and column of a peer in a [`BandwidthMatrix`](crate::BandwidthMatrix).
///
/// ```
/// # use ringfold_topology::NodeIndex;
/// assert_eq!(NodeIndex(3).index(), 3);
/// assert_eq!(NodeIndex(3).to_string(), "#3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u16);

impl NodeIndex {
    /// The index in slices.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The node at a position, which is below [`NODES_MAX`].
    pub(crate) fn of(position: usize) -> Self {
        debug_assert!(position < NODES_MAX, "invalid node {position}");
        Self(position as u16)
    }
}

impl fmt::Display for NodeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The number of nodes of a matrix: 1 to [`NODES_MAX`].
///
/// ```
/// # use ringfold_topology::NodeCount;
/// assert_eq!(NodeCount::new(4).unwrap().get(), 4);
/// assert!(NodeCount::new(0).is_err());
/// assert!(NodeCount::new(100_000).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeCount(u16);

impl NodeCount {
    /// Checks the bounds.
    pub fn new(nodes: usize) -> Result<Self, MatrixError> {
        if nodes == 0 || nodes > NODES_MAX {
            return Err(MatrixError::NodeCount { nodes });
        }
        Ok(Self(nodes as u16))
    }

    /// The number itself.
    pub fn get(self) -> usize {
        usize::from(self.0)
    }

    /// All nodes, in order.
    ///
    /// ```
    /// # use ringfold_topology::{NodeCount, NodeIndex};
    /// let nodes: Vec<_> = NodeCount::new(2).unwrap().nodes().collect();
    /// assert_eq!(nodes, [NodeIndex(0), NodeIndex(1)]);
    /// ```
    pub fn nodes(self) -> impl Iterator<Item = NodeIndex> + Clone {
        (0..self.0).map(NodeIndex)
    }
}

/// A directed edge.
///
/// ```
/// # use ringfold_topology::{Edge, NodeIndex};
/// let edge = Edge { from: NodeIndex(0), to: NodeIndex(1) };
/// assert_eq!(edge.reversed().to_string(), "#1→#0");
/// ```
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edge {
    pub from: NodeIndex,
    pub to: NodeIndex,
}

impl Edge {
    /// The edge in the other direction.
    pub fn reversed(self) -> Self {
        Self { from: self.to, to: self.from }
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}→{}", self.from, self.to)
    }
}
