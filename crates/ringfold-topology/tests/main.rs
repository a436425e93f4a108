//! All integration tests of this crate, as one program: it is linked once. A new file needs a line here.

#[path = "matrices/brute_force.rs"]
mod brute_force;
mod exact;
mod garbage;
mod heuristic;
mod left_out;
mod matrices;
