//! How patient a run is.

use ringfold::Timing;
use std::time::Duration;

/// Which deadlines a master and its peers have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Those that users get.
    Default,
    /// Seconds become tenths, so that faults are noticed soon; still ten times what a loaded machine takes.
    Short,
}

impl Pace {
    /// By its name on the command line: `default` or `short`.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "default" => Ok(Self::Default),
            "short" => Ok(Self::Short),
            _ => Err(format!("there is no pace {name:?}, but default and short")),
        }
    }

    /// The deadlines.
    pub fn timing(self) -> Timing {
        match self {
            Self::Default => Timing::default(),
            Self::Short => Timing {
                heartbeat: Duration::from_millis(100),
                silence_max: Duration::from_secs(1),
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
                wait_note: Duration::from_secs(1),
                ..Timing::default()
            },
        }
    }
}
