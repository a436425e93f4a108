//! Complete Ringfold runs in virtual time from one seed.
//!
//! The real machines and the real executor run over a simulated network that carries symbols instead of numbers, under
//! programs like those of users, while peers join and leave, processes die and stop, links are cut, and masters
//! restart. The oracle checks what users saw against the guarantees.
#![forbid(unsafe_code)]

mod buffer;
mod clock;
mod medium;
mod network;
mod oracle;
mod planted_bug;
mod program;
mod random_stream;
mod scenario;
mod simulation;
mod symbol;
mod tour;

pub use oracle::{Guarantee, Violation};
pub use planted_bug::PlantedBug;
pub use simulation::RunReport;

use scenario::Scenario;
use simulation::Simulation;

/// Runs a seed, perhaps with a planted bug.
pub fn run(seed: u64, planted_bug: Option<PlantedBug>) -> RunReport {
    Simulation::new(Scenario::new(seed), planted_bug, false).run()
}

/// Runs a seed with a log, perhaps with a planted bug.
pub fn replay(seed: u64, planted_bug: Option<PlantedBug>) -> RunReport {
    Simulation::new(Scenario::new(seed), planted_bug, true).run()
}
