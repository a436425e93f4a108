//! Entry point of the fuzz target in `fuzz/`: recorders that become scenarios, and files of scenarios.

use crate::recorded::RecordedScenario;

/// The name of a target, and its function: passes bytes to decoders, encodes and decodes again what they accept, and
/// returns whether any accepted them.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// The targets.
pub const DECODERS: &[Decoder] = &[("recorded_scenario", check_recorded_scenario)];

fn check_recorded_scenario(bytes: &[u8]) -> bool {
    let is_same = |scenario: &RecordedScenario| {
        assert_eq!(RecordedScenario::parse(scenario.format().as_bytes()).as_ref(), Ok(scenario));
    };
    let (recorded, written) = (RecordedScenario::from_bytes(bytes), RecordedScenario::parse(bytes));
    recorded.iter().chain(&written).for_each(is_same);
    recorded.is_ok() || written.is_ok()
}
