//! Complete Ringfold runs in virtual time from one seed.
//!
//! The real machines and the real executor run over a simulated network that carries symbols instead of numbers, under
//! programs like those of users, while peers join and leave, processes die and stop, links are cut, and masters
//! restart. The oracle checks what users saw against the guarantees.
#![forbid(unsafe_code)]

mod buffer;
mod clock;
pub mod fuzzing;
mod medium;
mod network;
mod oracle;
mod planted_bug;
mod program;
mod random_stream;
pub mod recorded;
mod scenario;
mod simulation;
mod symbol;
mod tour;

pub use oracle::{Guarantee, Violation};
pub use planted_bug::PlantedBug;
pub use simulation::RunReport;

use recorded::RecordedScenario;
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

/// Runs a recorded scenario, perhaps with a planted bug or with a log. The seed determines the timing of messages.
pub fn run_recorded(
    recorded: &RecordedScenario,
    seed: u64,
    planted_bug: Option<PlantedBug>,
    logs: bool,
) -> RunReport {
    Simulation::new(Scenario::recorded(seed, recorded), planted_bug, logs).run()
}
