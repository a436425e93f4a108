//! Real processes under real faults: development only.
//!
//! [`Network`] is a switch and some hosts, made of network namespaces, whose cables can be pulled and whose ways
//! to each other can be cut. [`Process`] is a program that is watched line by line, killed, stopped and
//! measured ([`Usage`]). What a machine can't do is said by name ([`skip::unless`]), never passed over.
//!
//! A run is played by the programs `lab-master` and `lab-peer` ([`cast`]). A peer takes its commands line by line, so
//! a test can put it into any phase; and it checks its results by itself ([`tally`]).
#![forbid(unsafe_code)]

pub mod answer;
pub mod cast;
pub mod churn;
pub mod log;
pub mod network;
pub mod pace;
pub mod process;
pub mod skip;
pub mod socket;
pub mod tally;
pub mod usage;

pub use answer::Answer;
pub use network::{Host, Network};
pub use pace::Pace;
pub use process::Process;
pub use tally::Parts;
pub use usage::Usage;
