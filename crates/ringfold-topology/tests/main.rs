//! All integration tests of this crate, linked once. A new file needs a line here.

#[path = "matrices/brute_force.rs"]
mod brute_force;
mod exact;
mod exclusion;
mod garbage;
mod heuristic;
mod matrices;
