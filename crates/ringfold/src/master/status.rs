//! The status of a master and its run, as `ringfold status --json` and `/api/status` show it.

use ringfold_proto::status::RunStatus;
use serde::{Deserialize, Serialize};

/// The state of a run, of the master that was asked, and what happened lately. It is an object of JSON with stable names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The run. On a master that is not active it has no peers.
    #[serde(flatten)]
    pub run: RunStatus,
    /// The master that answered.
    pub master: MasterInfo,
    /// How much is reduced.
    pub throughput: ThroughputStatus,
    /// The complete seconds of the last five minutes, the oldest first.
    pub history: Vec<HistorySecond>,
    /// The last events, the newest last.
    pub events: Vec<EventEntry>,
    /// When this was, as in RFC 3339.
    pub time: String,
}

/// A master.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MasterInfo {
    /// The addresses it listens on.
    pub addresses: Vec<String>,
    /// Its version.
    pub version: String,
    /// Whether it is the active one.
    pub active: bool,
    /// Its position in the list of masters, from 1.
    pub position: u16,
    /// The addresses of all masters of the run; empty if it is the only one.
    pub masters: Vec<String>,
    /// The position of the active master, as far as this one knows.
    pub active_position: Option<u16>,
    /// How long it has run, in seconds.
    pub uptime_s: f64,
    /// Its process.
    pub pid: u32,
}

/// How much is reduced, by operations that were committed.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ThroughputStatus {
    /// Operations per second, in the last 10 s.
    pub operations_per_s: f64,
    /// Bytes of one peer's buffers per second, in the last 10 s.
    pub bytes_per_s: f64,
    /// The time between two operations of one tag, in the last 10 s: that of a step of training.
    pub step_s: Option<f64>,
    /// Operations since the master was started.
    pub operations_total: u64,
    /// Operations that failed since then.
    pub aborted_total: u64,
    /// Bytes since then.
    pub bytes_total: u64,
}

/// One second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct HistorySecond {
    /// Operations that were committed.
    pub operations: u64,
    /// Operations that failed.
    pub aborted: u64,
    /// Bytes of one peer's buffers.
    pub bytes: u64,
    /// The time between two operations of one tag.
    pub step_s: Option<f64>,
}

/// An event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EventEntry {
    /// When it was, as in RFC 3339.
    pub time: String,
    /// `info`, `warn` or `error`.
    pub level: String,
    /// One sentence.
    pub text: String,
}
