//! Recorded runs: a scenario that is read from flight recorders, or from a file that was written from them.

mod comparison;
mod decision;
mod reader;
mod scenario_file;

pub use comparison::{Comparison, Line};
pub use decision::{Decision, DecisionReader, Loss};
pub use reader::read_files;

use serde::{Deserialize, Serialize};

/// The most peers of a recorded run, over its whole time.
pub const PEERS_MAX: usize = 256;

/// The most members of a group at a time: recorders do not have more names.
pub const WORLD_MAX: usize = 64;

/// The most steps and decisions of a scenario.
pub const ITEMS_MAX: usize = 20_000;

/// A call that is repeated is simulated at most so often.
pub const REPEATS_MAX: u64 = 8;

/// The bytes of a name.
const LABEL_BYTES_MAX: usize = 64;

/// A recorded run: what peers and masters did, and what the masters decided, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedScenario {
    /// The version of the format: 1.
    pub scenario: u32,
    /// How many masters there are.
    pub masters: usize,
    /// What could not be taken over from the recorders.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Steps and decisions.
    pub timeline: Vec<Item>,
}

/// A step or a decision.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Item {
    /// When it happened, in microseconds since the first one.
    pub at_us: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What an item is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Peers or masters do something.
    Step(Step),
    /// A master decides.
    Decision(Decision),
}

/// A call in which all members of the run vote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // Named for the calls.
pub enum RunCall {
    UpdateTopology,
    ArePeersPending,
    OptimizeTopology,
}

/// What peers or masters do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub enum Step {
    /// A peer starts and registers.
    Join {
        peer: String,
        group: u32,
    },
    /// Peers make a call so many times.
    Call {
        peers: Vec<String>,
        call: RunCall,
        times: u64,
    },
    /// Peers sync their shared state. All but `fetchers` hold this revision.
    Sync {
        peers: Vec<String>,
        revision: u64,
        fetchers: Vec<String>,
    },
    /// Peers start an operation on so many bytes, so many times. `fails`: its result is not complete when the next step comes.
    Reduce {
        peers: Vec<String>,
        tag: u64,
        bytes: u64,
        times: u64,
        #[serde(default)]
        fails: bool,
    },
    Leave {
        peer: String,
    },
    /// SIGKILL.
    Kill {
        peer: String,
    },
    /// SIGSTOP.
    Stop {
        peer: String,
    },
    /// By an operator.
    Evict {
        peer: String,
    },
    /// The connection to the master is reset, and made again.
    Reset {
        peer: String,
    },
    /// No other peer can reach this one for a while.
    Isolate {
        peer: String,
    },
    /// Two peers cannot reach each other for a while.
    Cut {
        from: String,
        to: String,
    },
    /// The active master is killed, and perhaps restarted.
    KillMaster {
        restarts: bool,
    },
}

impl Step {
    /// Whether it is a fault, a departure or an eviction.
    pub(crate) fn is_fault(&self) -> bool {
        !matches!(self, Self::Join { .. } | Self::Call { .. } | Self::Sync { .. } | Self::Reduce { .. })
    }
}
