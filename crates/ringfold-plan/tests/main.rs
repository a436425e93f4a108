//! All integration tests of this crate, linked once. A new file needs a line here.

mod executor;
mod faults;
mod proofs;
mod structure;
