//! A complete run in virtual time: masters, peers with their users' programs, the network, and faults.
//!
//! The machines and the executor are the real ones.

mod bug_effects;
mod calls;
mod faults;
mod links;
mod master;
mod peer;
mod replica;
mod resumption;
mod signatures;
mod state_fetch;

use crate::network::{Network, NetworkEvent, Node, Packet};
use crate::oracle::{Guarantee, Oracle};
use crate::planted_bug::PlantedBug;
use crate::program::{Checkpoint, Reply};
use crate::random_stream::RandomStream;
use crate::scenario::{PEERS_MAX, Scenario};
use master::SimMaster;
use peer::SimPeer;
use replica::SimReplica;
use ringfold_proto::id::{CallId, ConnId, EpochId, OpId, PeerId};
use ringfold_proto::master::{TourRequest, TourSolution};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A scheduled event.
#[derive(Clone, Debug)]
pub(crate) enum SimEvent {
    Network(NetworkEvent),
    Fault(usize),
    /// Faults end.
    Calm,
    Timer(Node),
    /// A program's call could not be made, or its pause is over.
    Replied(usize, Reply),
    /// A peer that was stopped or slow continues.
    Wake(usize),
    /// A peer is no longer slow.
    Recover(usize),
    /// A peer sends what is queued for another peer.
    Transmit(usize, PeerId),
    DialMaster(usize),
    DialPeer {
        from: usize,
        to: PeerId,
        epoch: EpochId,
        give_up: Time,
    },
    Probed {
        peer: usize,
        probe: u64,
        forward: Option<u64>,
        backward: Option<u64>,
    },
    /// A fetch tries its next source.
    Fetch {
        peer: usize,
        call: CallId,
        tries: usize,
    },
    StartMaster(usize),
    /// A master that was stopped continues.
    WakeMaster(usize),
    /// A master notices that a connection is broken.
    MasterLost(usize, ConnId),
    DialOtherMaster {
        from: usize,
        to: usize,
    },
    Tour(usize, TourRequest, TourSolution),
    /// A peer of this group starts, with or without a checkpoint.
    Respawn(u32, Option<Checkpoint>),
    /// A replica starts, with or without a checkpoint for each rank.
    RespawnReplica(Vec<Option<Checkpoint>>),
    /// A rank of a replica starts.
    StartRank {
        replica: usize,
        rank: usize,
        checkpoint: Option<Checkpoint>,
    },
    /// A cut between two nodes may be over.
    Heal,
}

/// The result of a run.
#[derive(Debug)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// The violated guarantees.
    pub violations: Vec<crate::oracle::Violation>,
    /// Virtual time at the end.
    pub end: Time,
    /// The number of events.
    pub steps: u64,
    /// Committed reduces, counted on each peer.
    pub committed: u64,
    /// Aborted reduces, counted on each peer.
    pub aborted: u64,
    /// Completed syncs, counted on each peer.
    pub synced: u64,
    /// Calls of peers that were resumed after a loss.
    pub resumed: u64,
    /// The log, if it was requested.
    pub log: Vec<String>,
}

/// A run.
pub struct Simulation {
    scenario: Scenario,
    random: RandomStream,
    now: Time,
    /// The scheduled events, by time and order of scheduling. Boxed, because the map moves its values.
    queue: BTreeMap<(Time, u64), Box<SimEvent>>,
    scheduled: u64,
    network: Network,
    masters: Vec<SimMaster>,
    peers: Vec<SimPeer>,
    replicas: Vec<SimReplica>,
    by_id: BTreeMap<PeerId, usize>,
    conn_kinds: BTreeMap<ConnId, ConnKind>,
    oracle: Oracle,
    planted_bug: Option<PlantedBug>,
    contributions: u32,
    /// Votes that arrived, for planted bugs.
    votes: BTreeMap<OpId, BTreeSet<ConnId>>,
    /// The incarnation of the master that answered a sync, by the number of its machine.
    sync_incarnations: BTreeMap<(u64, usize, CallId), u64>,
    /// The number of the machine that answers syncs on a connection.
    answering: BTreeMap<ConnId, u64>,
    /// Which bits flip.
    flips: RandomStream,
    /// The results with flipped bits, and the payloads: of which peer to which one.
    flipped_results: BTreeSet<(OpId, PeerId)>,
    flipped_payloads: BTreeSet<(OpId, PeerId, PeerId)>,
    /// Until when a fault of links or processes may have effects.
    disturbed_until: Time,
    calm: bool,
    log_lines: Option<Vec<String>>,
    steps: u64,
}

/// The kind of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConnKind {
    Control,
    Link,
    /// Between two masters.
    Masters,
}

/// How long after the last fault all peers must work together again.
const RECOVERY: Duration = Duration::from_secs(60);

/// How long after the last fault calls may still fail because of it.
const SETTLING: Duration = Duration::from_secs(10);

/// The most events of a run; more means a livelock.
const STEPS_MAX: u64 = 5_000_000;

impl Simulation {
    /// A run that has not started.
    pub fn new(scenario: Scenario, planted_bug: Option<PlantedBug>, logs: bool) -> Self {
        let seed = scenario.seed;
        Self {
            random: RandomStream::new(seed, "world"),
            now: Time::ZERO,
            queue: BTreeMap::new(),
            scheduled: 0,
            network: Network::new(seed, scenario.latency_max, scenario.break_after),
            masters: Vec::new(),
            peers: Vec::new(),
            replicas: Vec::new(),
            by_id: BTreeMap::new(),
            conn_kinds: BTreeMap::new(),
            oracle: Oracle::default(),
            planted_bug,
            contributions: 0,
            votes: BTreeMap::new(),
            sync_incarnations: BTreeMap::new(),
            answering: BTreeMap::new(),
            flips: RandomStream::new(seed, "flips"),
            flipped_results: BTreeSet::new(),
            flipped_payloads: BTreeSet::new(),
            disturbed_until: Time::ZERO,
            calm: false,
            log_lines: logs.then(Vec::new),
            steps: 0,
            scenario,
        }
    }

    /// Runs to the end.
    pub fn run(mut self) -> RunReport {
        for index in 0..self.scenario.masters {
            let clock = self.random_clock(Node::Master(index));
            self.masters.push(SimMaster::new(self.scenario.seed, index, clock));
        }
        (0..self.scenario.masters).for_each(|index| self.start_master(index));
        for group in self.scenario.starters.clone() {
            self.spawn(group);
        }
        for (i, (at, _)) in self.scenario.faults.clone().into_iter().enumerate() {
            self.at(at, SimEvent::Fault(i));
        }
        self.at(self.scenario.calm_at, SimEvent::Calm);
        let limit = self.scenario.calm_at + RECOVERY;
        while self.oracle.violations.is_empty() {
            let Some(((at, _), event)) = self.queue.pop_first() else { break };
            self.now = at;
            self.oracle.check_deadlines(self.now);
            self.steps += 1;
            if self.now > limit || self.steps > STEPS_MAX {
                self.report_no_recovery();
                break;
            }
            self.handle(*event);
            if self.calm && self.has_recovered() {
                break;
            }
        }
        self.oracle.finish(self.now);
        RunReport {
            seed: self.scenario.seed,
            violations: std::mem::take(&mut self.oracle.violations),
            end: self.now,
            steps: self.steps,
            committed: self.oracle.committed,
            aborted: self.oracle.aborted,
            synced: self.oracle.synced,
            resumed: self.oracle.resumed,
            log: self.log_lines.unwrap_or_default(),
        }
    }

    fn handle(&mut self, event: SimEvent) {
        match event {
            SimEvent::Network(NetworkEvent::Deliver { conn, to, packet }) => self.deliver(conn, to, packet),
            SimEvent::Network(NetworkEvent::Timeout { conn, from }) => {
                if self.network.breaks(self.now, conn, from) {
                    self.break_connection(conn, from);
                }
            }
            SimEvent::Fault(_) if self.calm => {}
            SimEvent::Fault(i) => self.inject_fault(self.scenario.faults[i].1.clone()),
            SimEvent::Calm => self.calm_down(),
            SimEvent::Heal => {
                self.network.release(self.now);
                self.schedule_network();
            }
            SimEvent::Timer(Node::Master(index))
            | SimEvent::MasterLost(index, _)
            | SimEvent::DialOtherMaster { from: index, .. }
            | SimEvent::Tour(index, ..) => self.handle_for_master(index, event),
            SimEvent::WakeMaster(index) => self.wake_master(index),
            SimEvent::Timer(Node::Peer(peer))
            | SimEvent::Replied(peer, _)
            | SimEvent::Transmit(peer, _)
            | SimEvent::DialMaster(peer)
            | SimEvent::Probed { peer, .. }
            | SimEvent::Fetch { peer, .. }
            | SimEvent::DialPeer { from: peer, .. } => self.handle_for_peer(peer, event),
            SimEvent::Wake(peer) => self.wake(peer),
            SimEvent::Recover(peer) => self.peers[peer].slowness = Duration::ZERO,
            SimEvent::StartMaster(index) => self.start_master(index),
            SimEvent::Respawn(group, checkpoint) => {
                if self.living().count() < PEERS_MAX {
                    self.spawn_with(group, checkpoint, None);
                }
            }
            SimEvent::RespawnReplica(checkpoints) => self.spawn_replica(checkpoints),
            SimEvent::StartRank { replica, rank, checkpoint } => self.start_rank(replica, rank, checkpoint),
        }
    }

    /// Schedules an event.
    fn at(&mut self, at: Time, event: SimEvent) {
        self.scheduled += 1;
        self.queue.insert((at.max(self.now), self.scheduled), Box::new(event));
    }

    fn after(&mut self, delay: Duration, event: SimEvent) {
        self.at(self.now + delay, event);
    }

    /// Schedules the events of the network.
    fn schedule_network(&mut self) {
        for (at, event) in self.network.take_events() {
            self.at(at, SimEvent::Network(event));
        }
    }

    fn deliver(&mut self, conn: ConnId, to: Node, packet: Packet) {
        if !self.network.listens(conn, to) {
            return;
        }
        match to {
            Node::Master(index) => {
                let event = NetworkEvent::Deliver { conn, to, packet };
                self.handle_for_master(index, SimEvent::Network(event));
            }
            Node::Peer(peer) => {
                let event = NetworkEvent::Deliver { conn, to, packet };
                self.handle_for_peer(peer, SimEvent::Network(event));
            }
        }
    }

    /// One end breaks a connection.
    fn break_connection(&mut self, conn: ConnId, end: Node) {
        self.network.close(self.now, conn, end);
        self.schedule_network();
        match end {
            Node::Master(index) => self.handle_for_master(index, SimEvent::MasterLost(index, conn)),
            Node::Peer(peer) => self.peer_lost(peer, conn),
        }
    }

    fn living(&self) -> impl Iterator<Item = usize> + '_ {
        self.peers.iter().enumerate().filter(|(_, p)| p.alive).map(|(i, _)| i)
    }

    /// Whether every living peer has worked, twice in a row, with all living peers of its group.
    fn has_recovered(&self) -> bool {
        let world = |group: u32| self.living().filter(|p| self.peers[*p].group == group).count() as u32;
        let works = |p: usize| {
            let peer = &self.peers[p];
            let recent: Vec<_> = peer.program.healthy.iter().rev().take(2).collect();
            recent.len() == 2 && recent.iter().all(|w| **w == world(peer.group))
        };
        let are_up = self.masters.iter().all(SimMaster::is_up);
        are_up && self.living().count() > 0 && self.living().all(works)
    }

    fn report_no_recovery(&mut self) {
        let who: Vec<_> = self.living().map(|p| format!("p{p}: {}", self.peers[p].status())).collect();
        let waits = self.oracle.open_calls();
        let what = format!(
            "after {} events: living: {}; accepted and pending at the master: {:?}; open calls: {waits}",
            self.steps,
            who.join("; "),
            self.active_master().map(|index| self.masters[index].status()).unwrap_or_default(),
        );
        self.oracle.report_violation(self.now, Guarantee::RunRecovers, what);
    }

    fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.log_lines {
            lines.push(format!("{:>12} {}", self.now.to_string(), line()));
        }
    }

    fn calm_down(&mut self) {
        self.log(|| "calm: no more faults".into());
        self.calm = true;
        self.network.heal_all();
        self.at(self.now, SimEvent::Heal);
        for peer in &mut self.peers {
            peer.program.calm = true;
            if self.scenario.masters > 1 {
                // What worked before the faults says nothing.
                peer.program.healthy.clear();
            }
        }
        for peer in self.living().collect::<Vec<_>>() {
            self.peers[peer].slowness = Duration::ZERO;
            if self.peers[peer].busy_until > self.now {
                self.peers[peer].busy_until = self.now;
                self.at(self.now, SimEvent::Wake(peer));
            }
        }
        for index in 0..self.masters.len() {
            if self.masters[index].stopped_until > self.now {
                self.masters[index].stopped_until = self.now;
                self.at(self.now, SimEvent::WakeMaster(index));
            }
            if !self.masters[index].is_up() {
                self.at(self.now, SimEvent::StartMaster(index));
            }
        }
        if self.living().count() == 0 {
            let groups = self.scenario.starters.clone();
            groups.into_iter().take(3).for_each(|g| self.spawn(g));
        }
    }
}
