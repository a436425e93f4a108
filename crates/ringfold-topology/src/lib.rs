//! The ring through a bandwidth matrix whose slowest edge is fastest.
//!
//! A ring collective moves at the speed of its slowest edge, so a good ring is one whose slowest edge is
//! as fast as can be and, among those, the one with the least sum of 1/bandwidth. That is an asymmetric
//! travelling-salesman problem: [`solve`] answers it exactly for small worlds and by an anytime search
//! for large ones; a driver with a clock uses a [`Solver`]. Links may be unreachable, in one direction or
//! both, and where no ring is left [`fewest_left_out`] says whom to do without.
//!
//! Everything here is pure: no clock, no threads, no randomness but what a [`Seed`] decides.
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
mod chance;
mod construct;
mod exact;
mod graph;
mod heuristic;
mod left_out;
pub mod limits;
mod local_search;
mod matrix;
mod near;
mod no_tour;
mod node;
mod objective;
mod price;
mod ring;
mod solver;
mod tour;

pub use bandwidth::{Bandwidth, BandwidthError, Link};
pub use chance::Seed;
pub use exact::{ExactError, exact_tour};
pub use left_out::{LeftOut, fewest_left_out};
pub use matrix::{BandwidthMatrix, MatrixError, UnknownLinks};
pub use no_tour::{NoTour, Proof};
pub use node::{Edge, NodeCount, NodeIndex};
pub use objective::{Cost, Margin, MarginError, Objective};
pub use solver::{Effort, Progress, Solver, solve};
pub use tour::{SlowestEdge, Tour, TourError, improves};
