//! The peers of a test run, and the actions of their machines.

use ringfold_proto::cause::Wait;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::epoch::{EpochDescription, RelayAddress};
use ringfold_proto::id::{CallId, ConnId, EpochId, OpId, PeerId};
use ringfold_proto::peer::{Completion, Failure, Peer};
use ringfold_proto::shared_state::Assignment;
use std::collections::BTreeMap;

/// The index of a peer in the test run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PeerIndex(pub usize);

/// The state of an operation on one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpState {
    Running,
    Committed,
    Aborted,
    /// Decided without having been started here.
    Skipped,
}

/// A requested probe.
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
    /// Stopped: its connections stay open, and it does nothing.
    pub frozen: bool,
    /// Cut off from the master: no message arrives, and neither end notices.
    pub cut: bool,
    /// Whether messages of the master are held in transit.
    pub held_down: bool,
    /// Whether messages to the master are held in transit.
    pub held_up: bool,
    /// Whether the executor does not release the buffers of decided operations.
    pub keeps_buffers: bool,
    /// What it reports of suspended operations.
    pub held: Option<Vec<(PeerId, u32)>>,
    /// The operations that it has resumed, and what all members hold.
    pub resumed: Vec<(OpId, Vec<u32>)>,
    pub control: Option<ConnId>,
    pub connecting: Option<CallId>,
    pub results: BTreeMap<CallId, Result<Completion, Failure>>,
    pub ops: BTreeMap<OpId, OpState>,
    pub started: Vec<(OpId, Descriptor)>,
    pub opened: Vec<EpochDescription>,
    pub closed: Vec<EpochId>,
    pub relays: Vec<RelayAddress>,
    pub probes: Vec<ProbeRequest>,
    pub assignments: Vec<(CallId, u64, Assignment)>,
    /// Warnings in its log.
    pub warnings: Vec<Wait>,
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
            held: None,
            resumed: Vec::new(),
            control: None,
            connecting: None,
            results: BTreeMap::new(),
            ops: BTreeMap::new(),
            started: Vec::new(),
            opened: Vec::new(),
            relays: Vec::new(),
            closed: Vec::new(),
            probes: Vec::new(),
            assignments: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Whether its driver runs.
    pub fn is_running(&self) -> bool {
        self.alive && !self.frozen
    }
}
