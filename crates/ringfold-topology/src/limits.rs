//! All limits of this crate.

/// Nodes of a matrix: the maximum world of a run.
pub const NODES_MAX: usize = 1024;

/// Nodes up to which tours are found by dynamic programming and are optimal.
pub const EXACT_NODES_MAX: usize = 13;

/// Nodes up to which the fewest excluded nodes are found by checking every subset.
pub const EXCLUSION_EXACT_NODES_MAX: usize = 18;

/// The least valid bandwidth.
pub const BANDWIDTH_BYTES_PER_SECOND_MIN: f64 = 1.0;

/// The greatest valid bandwidth. The limits prevent overflow of sums of prices.
pub const BANDWIDTH_BYTES_PER_SECOND_MAX: f64 = 1e18;

/// Successors, and predecessors, of a node that the local search tries.
pub(crate) const NEAR_NODES_MAX: usize = 8;

/// Constructed tours of which the heuristic uses the best.
pub(crate) const CONSTRUCTION_STARTS_MAX: usize = 8;
