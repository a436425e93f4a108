//! Real processes under real faults: development only.
//!
//! [`Network`] is a switch and some hosts, made of network namespaces, whose cables can be pulled and whose ways
//! to each other can be cut. [`Process`] is a program that is watched line by line, killed, stopped and
//! measured ([`Usage`]). What a machine can't do is said by name ([`skip::unless`]), never passed over.
#![forbid(unsafe_code)]

pub mod network;
pub mod process;
pub mod skip;
pub mod usage;

pub use network::{Host, Network};
pub use process::Process;
pub use usage::Usage;
