//! The peers on the test run, and what their drivers were asked to do.

use ringfold_proto::cause::WaitWarning;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::id::{CallId, ConnId, EpochId, OpId, PeerId};
use ringfold_proto::peer::{Completion, Failure, Peer};
use ringfold_proto::shared_state::Assignment;
use std::collections::BTreeMap;

/// A peer by its number on the test run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PeerIndex(pub usize);

/// What became of an operation on one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpState {
    Running,
    Committed,
    Aborted,
    /// Decided without having been started here.
    Skipped,
}

/// A pair that a peer was asked to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeRequest {
    pub probe: u64,
    pub target: PeerId,
    pub key: [u8; 32],
}

pub struct TestPeer {
    pub peer: Peer,
    pub name: String,
    pub alive: bool,
    /// Stopped: its sockets stay, but nothing in it moves.
    pub frozen: bool,
    /// Its cable to the master is cut: nothing comes through, no end notices.
    pub cut: bool,
    /// What the master says is under way, and does not arrive.
    pub held_down: bool,
    /// What it says is under way, and does not arrive.
    pub held_up: bool,
    /// Whether the executor keeps the buffers of decided operations for now.
    pub keeps_buffers: bool,
    pub control: Option<ConnId>,
    pub connecting: Option<CallId>,
    pub results: BTreeMap<CallId, Result<Completion, Failure>>,
    pub ops: BTreeMap<OpId, OpState>,
    pub started: Vec<(OpId, Descriptor)>,
    pub opened: Vec<EpochDescription>,
    pub closed: Vec<EpochId>,
    pub probes: Vec<ProbeRequest>,
    pub assignments: Vec<(CallId, u64, Assignment)>,
    /// What its log says of calls that wait.
    pub warnings: Vec<WaitWarning>,
}

impl TestPeer {
    pub fn new(peer: Peer, name: &str) -> Self {
        Self {
            peer,
            name: name.to_owned(),
            alive: true,
            frozen: false,
            cut: false,
            held_down: false,
            held_up: false,
            keeps_buffers: false,
            control: None,
            connecting: None,
            results: BTreeMap::new(),
            ops: BTreeMap::new(),
            started: Vec::new(),
            opened: Vec::new(),
            closed: Vec::new(),
            probes: Vec::new(),
            assignments: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Whether its driver does anything.
    pub fn is_running(&self) -> bool {
        self.alive && !self.frozen
    }
}
