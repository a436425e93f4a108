//! Every bound of this crate in one place.

/// Nodes of one matrix. The same number as the world of one run.
pub const NODES_MAX: usize = 1024;

/// Nodes up to which a tour is found by dynamic programming, and is therefore proved best.
pub const EXACT_NODES_MAX: usize = 13;

/// Nodes up to which the fewest to leave out are found by looking at every subset.
pub const LEFT_OUT_EXACT_NODES_MAX: usize = 18;

/// Least bandwidth that counts as a link. What is slower than this can't carry a collective.
pub const BANDWIDTH_BYTES_PER_SECOND_MIN: f64 = 1.0;

/// Greatest bandwidth that is believed. The bounds keep every sum of prices far from overflow.
pub const BANDWIDTH_BYTES_PER_SECOND_MAX: f64 = 1e18;

/// Successors (and as many predecessors) of a node that the local search looks at.
pub(crate) const NEAR_NODES_MAX: usize = 8;

/// Starts from which the heuristic builds a first tour before it goes on with the best of them.
pub(crate) const CONSTRUCTION_STARTS_MAX: usize = 8;
