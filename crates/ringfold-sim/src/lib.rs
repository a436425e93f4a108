//! Whole Ringfold runs in virtual time from one seed.
//!
//! The real machines and the real executor run over a simulated network that carries symbols in place
//! of numbers, under users' programs that behave as real ones do, while peers come and go, processes die
//! and stop, ways are cut, and the master restarts. The [`oracle`] holds what users saw against what
//! they were promised.
#![forbid(unsafe_code)]

pub mod buffer;
pub mod chance;
pub mod medium;
pub mod network;
pub mod oracle;
pub mod program;
pub mod sabotage;
pub mod scenario;
pub mod symbol;
pub mod tour;
pub mod world;

use sabotage::Sabotage;
use scenario::Scenario;
use world::{Report, World};

/// Runs a seed.
pub fn run(seed: u64) -> Report {
    World::new(Scenario::new(seed), None, false).run()
}

/// Runs a seed with a log, and perhaps a planted bug.
pub fn replay(seed: u64, sabotage: Option<Sabotage>) -> Report {
    World::new(Scenario::new(seed), sabotage, true).run()
}

/// Runs a seed with a planted bug.
pub fn run_with(seed: u64, sabotage: Sabotage) -> Report {
    World::new(Scenario::new(seed), Some(sabotage), false).run()
}
