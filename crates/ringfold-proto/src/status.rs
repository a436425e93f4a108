//! The state of a run, for people and programs that watch it. The names of the fields are stable: they are those of
//! `ringfold status --json` and `/api/status`.

use serde::{Deserialize, Serialize};

/// Whether somebody should look at the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It works.
    #[default]
    Healthy,
    /// It waits, or has lost something that may come back.
    Degraded,
}

/// The state of a run as its active master knows it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RunStatus {
    /// One sentence: `healthy`, or what is wrong.
    pub verdict: String,
    /// Whether the verdict is a good one.
    pub health: Health,
    /// The number of the newest open epoch; `None` if none is open.
    pub epoch: Option<u64>,
    /// The groups with members or peers that wait, by their number.
    pub groups: Vec<GroupStatus>,
    /// All peers, oldest first.
    pub peers: Vec<PeerStatus>,
    /// The edges of the rings of all groups, in the order of the rings.
    pub ring: Vec<EdgeStatus>,
    /// The calls in which peers wait for others, the longest wait first.
    pub waits: Vec<WaitStatus>,
    /// Whether new peers are refused.
    pub draining: bool,
    /// All masters of the run, in the order of the list.
    pub masters: Vec<MasterEntry>,
}

/// What a master does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MasterRole {
    /// It decides.
    Active,
    /// It can take over.
    Standby,
    /// It was restarted, and has no vote before the active one has confirmed it.
    Blank,
    /// The master that answered does not hear it.
    Lost,
    /// A lease decides who is active: masters do not hear each other.
    Unknown,
}

/// A master of the run, as the one that answered knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MasterEntry {
    /// Its position in the list, from 1.
    pub position: u16,
    /// The first address at which it can be dialled.
    pub address: Option<String>,
    /// What it does.
    pub role: MasterRole,
    /// The newest term that it has promised.
    pub term: Option<u64>,
    /// How long ago it was last heard, in seconds; 0 for the one that answered.
    pub heard_s: Option<f64>,
    /// How many changes of the voters it has yet to learn.
    pub behind: Option<u64>,
}

/// A peer group.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its number.
    pub group: u32,
    /// The number of its open epoch.
    pub epoch: Option<u64>,
    /// `open`, `connecting` (an epoch is proposed), `planning` (a ring is searched), or `changing`.
    pub stage: String,
    /// How many peers are members.
    pub members: usize,
    /// How many peers wait to become members.
    pub pending: usize,
    /// The revision of its last sync.
    pub revision: Option<u64>,
    /// How many operations are in flight, as far as the master has heard of them.
    pub operations: usize,
}

/// What a peer is in the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Membership {
    /// It takes part.
    Member,
    /// It waits to be admitted.
    Pending,
    /// It has returned to a restarted master, and waits for the others.
    Returned,
}

/// A peer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name, as the user chose it, or host:pid.
    pub name: String,
    /// Its id.
    pub id: String,
    /// The first address that it listens on.
    pub address: Option<String>,
    /// The number of its group.
    pub group: u32,
    /// The replica that it is a rank of.
    pub replica: Option<String>,
    /// Whether it takes part.
    pub membership: Membership,
    /// What it does, for people: `computing`, `in all-reduce tag 3`, `voting in update_topology`, `fetching 41 %`, and so on.
    pub state: String,
    /// The call that it is in.
    pub call: Option<String>,
    /// Since when that call waits, in seconds.
    pub call_s: Option<f64>,
    /// How much of the shared state it has fetched, while it does.
    pub fetched_percent: Option<u8>,
    /// How long ago it was last heard, by the master or a neighbour, in seconds.
    pub heard_s: f64,
    /// Whether it is connected to the master.
    pub connected: bool,
    /// The revision of the last sync that it completed.
    pub revision: Option<u64>,
}

/// An edge of a ring.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EdgeStatus {
    /// The number of the group.
    pub group: u32,
    /// The name of the peer that sends.
    pub from: String,
    /// The name of the peer that receives.
    pub to: String,
    /// The measured bandwidth.
    pub bytes_per_s: Option<u64>,
    /// The measured round-trip time.
    pub round_trip_s: Option<f64>,
}

/// A call in which peers wait for others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WaitStatus {
    /// One sentence.
    pub text: String,
    /// The number of the group; `None` for calls of the whole run.
    pub group: Option<u32>,
    /// The call.
    pub call: String,
    /// How long it has waited, in seconds.
    pub waited_s: f64,
    /// The peers that wait.
    pub waiting: Vec<String>,
    /// The first few peers that they wait for.
    pub missing: Vec<MissingStatus>,
}

/// A peer that others wait for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MissingStatus {
    /// Its name.
    pub name: String,
    /// How long ago it was last heard, in seconds.
    pub heard_s: Option<f64>,
    /// The call that it waits in.
    pub waits_in: Option<String>,
}
