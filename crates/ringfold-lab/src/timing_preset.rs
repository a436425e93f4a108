//! The timeouts of a run.

use ringfold::Timing;
use std::time::Duration;

/// The timeouts of a master and its peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimingPreset {
    /// The defaults of the library.
    Default,
    /// About a tenth of the defaults, so that faults are detected soon.
    Short,
}

impl TimingPreset {
    /// The preset with this name: `default` or `short`.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "default" => Ok(Self::Default),
            "short" => Ok(Self::Short),
            _ => Err(format!("unknown timing {name:?}: must be default or short")),
        }
    }

    /// The timeouts.
    pub fn timing(self) -> Timing {
        match self {
            Self::Default => Timing::default(),
            Self::Short => Timing {
                heartbeat: Duration::from_millis(100),
                silence_max: Duration::from_secs(1),
                suspect_max: Duration::from_millis(500),
                master_silence_max: Duration::from_secs(2),
                master_return_max: Duration::from_secs(15),
                redial: Duration::from_millis(50),
                restore_grace: Duration::from_secs(2),
                restore_window: Duration::from_secs(30),
                establish_max: Duration::from_secs(5),
                wait_max: Duration::from_secs(60),
                answer_grace: Duration::from_secs(20),
                probe_max: Duration::from_millis(500),
                tour_max: Duration::from_millis(500),
                edge_distrust: Duration::from_secs(10),
                relink_max: Duration::from_secs(1),
                warn_after: Duration::from_secs(1),
                ..Timing::default()
            },
        }
    }
}
