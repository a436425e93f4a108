//! Finds the ring with the fastest slowest edge in a bandwidth matrix.
//!
//! A ring collective is as fast as its slowest edge. So the best ring has the fastest slowest edge and, among those, the
//! least sum of 1/bandwidth. This is an asymmetric travelling-salesman problem. [`solve`] solves it exactly for small
//! worlds and by an anytime search for large ones; a driver with a clock uses a [`Solver`]. Links may be unreachable in
//! one or both directions. If there is no ring, [`exclude_fewest`] finds the nodes to leave out.
//!
//! The crate is pure: no clock, no threads, and randomness only from a [`Seed`].
//!
//! ```
//! use ringfold_topology::{BandwidthMatrix, Edge, Effort, Link, NodeCount, Objective, Seed, solve};
//!
//! // Two sites of four: 10 GB/s inside, 1 GB/s between, half a GB/s over one bad uplink.
//! let matrix = BandwidthMatrix::from_fn(NodeCount::new(8)?, |Edge { from, to }| {
//!     let speed = if from.0 / 4 == to.0 / 4 { 10e9 } else if from.0 == 2 { 0.5e9 } else { 1e9 };
//!     Link::measured(speed).unwrap_or(Link::Unreachable)
//! });
//! let tour = solve(&matrix, Objective::SlowestThenSum, Effort(1_000_000), Seed(42))?;
//! assert_eq!(tour.slowest().unwrap().bandwidth.bytes_per_second(), 1e9);
//! assert_eq!(tour.edges().filter(|edge| edge.from.0 / 4 != edge.to.0 / 4).count(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod bandwidth;
mod construct;
mod exact;
mod exclusion;
mod graph;
mod heuristic;
pub mod limits;
mod local_search;
mod matrix;
mod near_neighbours;
mod no_tour;
mod node;
mod objective;
mod price;
mod ring;
mod seeded_rng;
mod solver;
mod tour;

pub use bandwidth::{Bandwidth, BandwidthError, Link};
pub use exact::{ExactError, exact_tour};
pub use exclusion::{ExcludedNodes, exclude_fewest};
pub use matrix::{BandwidthMatrix, MatrixError, UnknownLinks};
pub use no_tour::{NoTour, NoTourProof};
pub use node::{Edge, NodeCount, NodeIndex};
pub use objective::{Objective, TourCost};
pub use seeded_rng::Seed;
pub use solver::{Effort, Progress, Solver, solve};
pub use tour::{SlowestEdge, Tour, TourError};
