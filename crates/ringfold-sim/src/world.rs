//! A whole run in virtual time: a master, peers, their users' programs, the network between them, and
//! what goes wrong. The machines and the executor are the real ones.

mod links;
mod mishap;
mod peer;
mod planted;
mod server;
mod state;

use crate::chance::Chance;
use crate::network::{Network, Node, Packet, Transit, Wire};
use crate::oracle::{Oracle, Promise};
use crate::program::Reply;
use crate::sabotage::Sabotage;
use crate::scenario::{Fault, PEERS_MAX, Scenario};
use peer::SimPeer;
use ringfold_proto::id::{CallId, EpochId, OpId, PeerId};
use ringfold_proto::master::{TourRequest, TourSolution};
use ringfold_proto::time::Time;
use server::Server;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

/// Something that is to happen.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    Transit(Transit),
    Fault(usize),
    Calm,
    Timer(Node),
    /// A program's call could not be made, or its pause is over.
    Replied(usize, Reply),
    /// A peer that was stopped or slow goes on.
    Wake(usize),
    /// A peer is no longer slow.
    Recover(usize),
    /// A peer's medium transmits what waits for another peer.
    Transmit(usize, PeerId),
    DialMaster(usize),
    /// A peer knocks at another for a link.
    Knock {
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
    /// A fetch asks its next source.
    Fetch {
        peer: usize,
        call: CallId,
        tries: usize,
    },
    MasterStarts,
    Tour(u64, TourRequest, TourSolution),
    Respawn(u32),
    Heal,
}

#[derive(Debug)]
struct Entry {
    at: Time,
    order: u64,
    /// Boxed, because the queue moves its entries about.
    what: Box<Happening>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The promises that were broken.
    pub violations: Vec<crate::oracle::Violation>,
    /// Virtual time at the end.
    pub end: Time,
    /// Things that happened.
    pub steps: u64,
    /// Reduces that peers saw committed and aborted, and completed syncs.
    pub committed: u64,
    /// See `committed`.
    pub aborted: u64,
    /// See `committed`.
    pub synced: u64,
    /// The log, if it was asked for.
    pub log: Vec<String>,
}

/// The run.
pub struct World {
    scenario: Scenario,
    chance: Chance,
    now: Time,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    network: Network,
    server: Server,
    peers: Vec<SimPeer>,
    by_id: BTreeMap<PeerId, usize>,
    wires: BTreeMap<Wire, Purpose>,
    oracle: Oracle,
    sabotage: Option<Sabotage>,
    contributions: u32,
    /// Votes that arrived, for planted bugs.
    votes: BTreeMap<OpId, BTreeSet<Wire>>,
    /// In which life of the master a sync was answered.
    sync_lives: BTreeMap<(Option<Node>, CallId), u64>,
    calm: bool,
    log: Option<Vec<String>>,
    steps: u64,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Control,
    Link,
}

/// After the trouble is over, everyone must be at work together within this time.
const RECOVERY: Duration = Duration::from_secs(60);

/// Calls made so long after the trouble is over must not fail for want of peers.
const SETTLING: Duration = Duration::from_secs(10);

/// So many things happen in a run at the most; more means that something turns in circles.
const STEPS_MAX: u64 = 5_000_000;

impl World {
    /// A run that has not begun.
    pub fn new(scenario: Scenario, sabotage: Option<Sabotage>, logs: bool) -> Self {
        let seed = scenario.seed;
        Self {
            chance: Chance::new(seed, "world"),
            now: Time::ZERO,
            queue: BinaryHeap::new(),
            order: 0,
            network: Network::new(seed, scenario.latency_max, scenario.network_patience),
            server: Server::new(seed),
            peers: Vec::new(),
            by_id: BTreeMap::new(),
            wires: BTreeMap::new(),
            oracle: Oracle::default(),
            sabotage,
            contributions: 0,
            votes: BTreeMap::new(),
            sync_lives: BTreeMap::new(),
            calm: false,
            log: logs.then(Vec::new),
            steps: 0,
            scenario,
        }
    }

    /// Runs to the end.
    pub fn run(mut self) -> Report {
        self.start_master();
        for group in self.scenario.starters.clone() {
            self.spawn(group);
        }
        for (i, (at, _)) in self.scenario.faults.clone().into_iter().enumerate() {
            self.at(at, Happening::Fault(i));
        }
        self.at(self.scenario.calm_at, Happening::Calm);
        let limit = self.scenario.calm_at + RECOVERY;
        while self.oracle.violations.is_empty() {
            let Some(Reverse(entry)) = self.queue.pop() else { break };
            self.now = entry.at;
            self.oracle.look_at_clock(self.now);
            self.steps += 1;
            if self.now > limit || self.steps > STEPS_MAX {
                self.no_recovery();
                break;
            }
            self.happen(*entry.what);
            if self.calm && self.has_recovered() {
                break;
            }
        }
        self.oracle.finish(self.now);
        Report {
            seed: self.scenario.seed,
            violations: std::mem::take(&mut self.oracle.violations),
            end: self.now,
            steps: self.steps,
            committed: self.oracle.committed,
            aborted: self.oracle.aborted,
            synced: self.oracle.synced,
            log: self.log.unwrap_or_default(),
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Transit(Transit::Deliver { wire, to, packet }) => self.deliver(wire, to, packet),
            Happening::Transit(Transit::Timeout { wire, from }) => {
                if self.network.breaks(self.now, wire, from) {
                    self.break_wire(wire, from);
                }
            }
            Happening::Fault(i) => self.trouble(self.scenario.faults[i].1.clone()),
            Happening::Calm => self.calm_down(),
            Happening::Heal => {
                self.network.release(self.now);
                self.ship();
            }
            Happening::Timer(Node::Master) => self.master_timer(),
            Happening::Timer(Node::Peer(peer)) => self.for_peer(peer, Happening::Timer(Node::Peer(peer))),
            Happening::Replied(peer, _)
            | Happening::Transmit(peer, _)
            | Happening::DialMaster(peer)
            | Happening::Probed { peer, .. }
            | Happening::Fetch { peer, .. }
            | Happening::Knock { from: peer, .. } => self.for_peer(peer, what),
            Happening::Wake(peer) => self.wake(peer),
            Happening::Recover(peer) => self.peers[peer].slowness = Duration::ZERO,
            Happening::MasterStarts => self.start_master(),
            Happening::Tour(ticket, question, answer) => self.tour_found(ticket, &question, answer),
            Happening::Respawn(group) => {
                if self.living().count() < PEERS_MAX {
                    self.spawn(group);
                }
            }
        }
    }

    /// Sees to it that something happens at a time.
    fn at(&mut self, at: Time, what: Happening) {
        self.order += 1;
        self.queue.push(Reverse(Entry { at: at.max(self.now), order: self.order, what: Box::new(what) }));
    }

    fn after(&mut self, delay: Duration, what: Happening) {
        self.at(self.now + delay, what);
    }

    /// Puts what the network holds for later into the queue.
    fn ship(&mut self) {
        for (at, transit) in self.network.drain() {
            self.at(at, Happening::Transit(transit));
        }
    }

    fn deliver(&mut self, wire: Wire, to: Node, packet: Packet) {
        if !self.network.listens(wire, to) {
            return;
        }
        match to {
            Node::Master => self.master_receives(wire, packet),
            Node::Peer(peer) => {
                let transit = Transit::Deliver { wire, to, packet };
                self.for_peer(peer, Happening::Transit(transit));
            }
        }
    }

    /// One end gives a connection up.
    fn break_wire(&mut self, wire: Wire, end: Node) {
        self.network.close(self.now, wire, end);
        self.ship();
        match end {
            Node::Master => self.master_lost(wire),
            Node::Peer(peer) => self.peer_lost(peer, wire),
        }
    }

    fn living(&self) -> impl Iterator<Item = usize> + '_ {
        self.peers.iter().enumerate().filter(|(_, p)| p.alive).map(|(i, _)| i)
    }

    /// Whether every living peer has worked, twice in a row, with all living peers of its group.
    fn has_recovered(&self) -> bool {
        let world = |group: u32| self.living().filter(|p| self.peers[*p].group == group).count() as u32;
        let well = |p: usize| {
            let peer = &self.peers[p];
            let recent: Vec<_> = peer.program.healthy.iter().rev().take(2).collect();
            recent.len() == 2 && recent.iter().all(|w| **w == world(peer.group))
        };
        self.server.is_up() && self.living().count() > 0 && self.living().all(well)
    }

    fn no_recovery(&mut self) {
        let who: Vec<_> = self.living().map(|p| format!("p{p}: {}", self.peers[p].status())).collect();
        let waits = self.oracle.open_calls();
        let what = format!(
            "{} things happened; living: {}; master: accepted {:?}; open calls: {waits}",
            self.steps,
            who.join("; "),
            self.server.status(),
        );
        self.oracle.accuse(self.now, Promise::TheRunRecovers, what);
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>12} {}", self.now.to_string(), line()));
        }
    }

    fn calm_down(&mut self) {
        self.note(|| "calm: nothing goes wrong from now on".into());
        self.calm = true;
        self.network.heal_all();
        self.at(self.now, Happening::Heal);
        for peer in &mut self.peers {
            peer.program.calm = true;
        }
        for peer in self.living().collect::<Vec<_>>() {
            self.peers[peer].slowness = Duration::ZERO;
            if self.peers[peer].busy_until > self.now {
                self.peers[peer].busy_until = self.now;
                self.at(self.now, Happening::Wake(peer));
            }
        }
        if !self.server.is_up() {
            self.at(self.now, Happening::MasterStarts);
        }
        if self.living().count() == 0 {
            let groups = self.scenario.starters.clone();
            groups.into_iter().take(3).for_each(|g| self.spawn(g));
        }
    }

    fn trouble(&mut self, fault: Fault) {
        if !self.calm {
            self.mishap(fault);
        }
    }
}
