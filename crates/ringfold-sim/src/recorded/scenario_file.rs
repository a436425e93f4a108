//! The file of a recorded scenario: JSON, with one step or decision per line.

use super::{Decision, ITEMS_MAX, LABEL_BYTES_MAX, PEERS_MAX, RecordedScenario, Step, WORLD_MAX, What};
use serde::Serialize;
use std::collections::BTreeSet;

/// The largest file.
const BYTES_MAX: usize = 32 << 20;

/// The most masters.
const MASTERS_MAX: usize = 9;

/// The largest group number that is simulated.
const GROUP_MAX: u32 = 1 << 20;

impl RecordedScenario {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is not a scenario, or exceeds a limit.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > BYTES_MAX {
            return Err(format!("it has more than {BYTES_MAX} bytes"));
        }
        let scenario: Self =
            serde_json::from_slice(bytes).map_err(|error| format!("it is not a scenario: {error}"))?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The file.
    pub fn format(&self) -> String {
        let list = |lines: Vec<String>| match lines.is_empty() {
            true => "[]".to_owned(),
            false => format!("[\n    {}\n  ]", lines.join(",\n    ")),
        };
        let notes = list(self.notes.iter().map(to_json).collect());
        let timeline = list(self.timeline.iter().map(to_json).collect());
        let Self { scenario, masters, .. } = self;
        format!(
            "{{\n  \"scenario\": {scenario},\n  \"masters\": {masters},\n  \"notes\": {notes},\n  \"timeline\": {timeline}\n}}\n"
        )
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// If one is exceeded.
    pub fn check(&self) -> Result<(), String> {
        if self.scenario != 1 {
            return Err(format!("unknown version {} of the scenario: must be 1", self.scenario));
        }
        if !(1..=MASTERS_MAX).contains(&self.masters) {
            return Err(format!("invalid number of masters {}: must be 1 to {MASTERS_MAX}", self.masters));
        }
        if self.timeline.len() > ITEMS_MAX {
            return Err(format!("too many steps: {} exceed the limit of {ITEMS_MAX}", self.timeline.len()));
        }
        let (mut joined, no_peers) = (BTreeSet::new(), Vec::new());
        for item in &self.timeline {
            let peers = match &item.what {
                What::Step(Step::Join { peer, group }) => {
                    if *group > GROUP_MAX || peer.is_empty() || peer.len() > 2 * LABEL_BYTES_MAX {
                        return Err(format!("invalid peer or group: {peer:.80} of {group}"));
                    }
                    if !joined.insert(peer.as_str()) {
                        return Err(format!("{peer} joins twice"));
                    }
                    &no_peers
                }
                What::Step(
                    Step::Call { peers, .. } | Step::Sync { peers, .. } | Step::Reduce { peers, .. },
                )
                | What::Decision(
                    Decision::EpochOpened { members: peers, .. } | Decision::EpochKept { members: peers, .. },
                ) => peers,
                _ => &no_peers,
            };
            let max = if matches!(item.what, What::Step(Step::Call { .. })) { PEERS_MAX } else { WORLD_MAX };
            if peers.len() > max {
                return Err(format!("too many members: {} exceed the limit of {max}", peers.len()));
            }
        }
        if joined.len() > PEERS_MAX {
            return Err(format!("too many peers: {} exceed the limit of {PEERS_MAX}", joined.len()));
        }
        Ok(())
    }
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
