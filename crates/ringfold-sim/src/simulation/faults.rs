//! The effects of faults.

use super::peer::SimPeer;
use super::{ConnKind, SimEvent, Simulation};
use crate::network::Node;
use crate::program::Checkpoint;
use crate::scenario::{Fault, PEERS_MAX};
use ringfold_proto::id::ConnId;
use std::collections::BTreeMap;
use std::time::Duration;

impl Simulation {
    pub(super) fn inject_fault(&mut self, fault: Fault) {
        if let Some(pause) = disturbance(&fault) {
            self.disturbed_until = self.disturbed_until.max(self.now + pause + super::SETTLING / 2);
        }
        let living: Vec<_> = self.living().collect();
        let victim = self.random.pick(&living).copied();
        match (fault, victim) {
            (Fault::Join(group), _) => {
                if living.len() < PEERS_MAX {
                    self.spawn(group);
                }
            }
            (Fault::KillMaster(back_after), _) => {
                let index = self.pick_master();
                self.kill_master(index, back_after);
            }
            (Fault::FreezeMaster(pause), _) => {
                let index = self.pick_master();
                self.stop_master(index, pause);
            }
            (Fault::CutMasters(pause, both), _) => {
                let (one, other) = (self.pick_master(), self.pick_master());
                if one != other {
                    self.cut(Node::Master(one), Node::Master(other), pause, both);
                }
            }
            (Fault::IsolateMaster(pause, both), _) => {
                let master = Node::Master(self.pick_master());
                let share = self.random.between(100, 1_000);
                for node in self.nodes().into_iter().filter(|node| *node != master) {
                    if self.random.with_probability(share) {
                        self.cut(node, master, pause, both);
                    }
                }
            }
            (Fault::Partition(pause), _) => {
                // In half of the cases the active master keeps fewer.
                let active = self.active_master().filter(|_| self.random.with_probability(500));
                let share = if active.is_some() { 350 } else { 500 };
                let nodes = self.nodes().into_iter();
                let (one, other): (Vec<_>, Vec<_>) = nodes.partition(|node| {
                    active.map(Node::Master) == Some(*node) || self.random.with_probability(share)
                });
                one.iter().for_each(|a| other.iter().for_each(|b| self.cut(*a, *b, pause, true)));
            }
            (Fault::IsolateRestarted(back_after, pause), _) => {
                let index = self.pick_master();
                for node in self.nodes().into_iter().filter(|node| *node != Node::Master(index)) {
                    self.cut(node, Node::Master(index), pause, true);
                }
                self.kill_master(index, back_after);
            }
            (Fault::ResetMasters, _) => {
                let node = Node::Master(self.pick_master());
                self.reset(node, ConnKind::Masters);
            }
            (Fault::LoseAll(master), _) => self.lose_all(&living, master),
            (_, None) => {}
            (Fault::Leave, Some(peer)) => self.leave(peer),
            (Fault::Kill, Some(peer)) => self.end_process(peer, "is killed"),
            (Fault::Evict, Some(peer)) => self.evict(self.peers[peer].id),
            (Fault::Freeze(pause), Some(peer)) => self.slow_down(peer, pause, Duration::ZERO),
            (Fault::Slow(each, pause), Some(peer)) => self.slow_down(peer, pause, each),
            (Fault::Cut(pause, both), Some(peer)) => {
                if let Some(other) = self.random.pick(&living).copied().filter(|o| *o != peer) {
                    self.cut(Node::Peer(peer), Node::Peer(other), pause, both);
                }
            }
            (Fault::Isolate(pause, both), Some(peer)) => {
                // In half of the cases it affects a new peer, which has no links yet.
                let mut peer = peer;
                if self.random.with_probability(500) && living.len() < PEERS_MAX {
                    self.spawn(self.peers[peer].group);
                    peer = self.peers.len() - 1;
                }
                let share = self.random.between(100, 1_000);
                for other in living.into_iter().filter(|o| *o != peer) {
                    if self.random.with_probability(share) {
                        self.cut(Node::Peer(peer), Node::Peer(other), pause, both);
                    }
                }
            }
            (Fault::CutMaster(pause, both), Some(peer)) => {
                let (a, b) = (Node::Peer(peer), Node::Master(self.pick_master()));
                let (a, b) = if self.random.with_probability(500) { (a, b) } else { (b, a) };
                self.cut(a, b, pause, both);
            }
            (Fault::ResetLink, Some(peer)) => self.reset(Node::Peer(peer), ConnKind::Link),
            (Fault::ResetControl, Some(peer)) => self.reset(Node::Peer(peer), ConnKind::Control),
            (Fault::ResetControls, Some(_)) => {
                living.into_iter().for_each(|peer| self.reset(Node::Peer(peer), ConnKind::Control));
            }
            (Fault::ResetPeer, Some(peer)) => {
                let node = Node::Peer(peer);
                for conn in self.network.connections_of(node) {
                    if self.network.listens(conn, node) {
                        self.log(|| format!("p{peer}: all connections are reset"));
                        self.break_first(conn, node);
                    }
                }
            }
        }
    }

    /// A peer leaves, and its process ends.
    pub(super) fn leave(&mut self, peer: usize) {
        self.log(|| format!("p{peer}: leaves"));
        self.peers[peer].machine.leave();
        self.peers[peer].left = true;
        self.pump(peer);
        self.end_process(peer, "has left");
    }

    /// Ends all peers, and all masters if there is a time to restart after. The peers come back.
    fn lose_all(&mut self, living: &[usize], master: Option<Duration>) {
        if let Some(back_after) = master {
            (0..self.masters.len()).for_each(|index| self.kill_master(index, back_after));
        }
        let mut replicas: BTreeMap<usize, Vec<Option<Checkpoint>>> = BTreeMap::new();
        for peer in living.iter().copied() {
            let replica = self.peers[peer].replica;
            replica.inspect(|replica| self.replicas[*replica].restarts = false);
            self.end_process(peer, "is killed");
            let age = self.random.between(0, 4) as usize;
            let SimPeer { group, program, .. } = &self.peers[peer];
            let (group, checkpoint) = (*group, program.checkpoint(age));
            if let (Some(replica), Some(ranks)) = (replica, self.scenario.replica_ranks) {
                replicas.entry(replica).or_insert_with(|| vec![None; ranks])[group as usize] = checkpoint;
                continue;
            }
            let delay = Duration::from_millis(self.random.between(20, 2_500));
            self.after(delay, SimEvent::Respawn(group, checkpoint));
        }
        for checkpoints in replicas.into_values() {
            let delay = Duration::from_millis(self.random.between(20, 2_500));
            self.after(delay, SimEvent::RespawnReplica(checkpoints));
        }
    }

    /// A master, mostly the active one.
    fn pick_master(&mut self) -> usize {
        if self.masters.len() == 1 {
            return 0;
        }
        let any = self.random.between(0, self.masters.len() as u64) as usize;
        match self.active_master() {
            Some(active) if self.random.with_probability(600) => active,
            _ => any,
        }
    }

    /// All masters and all living peers.
    fn nodes(&self) -> Vec<Node> {
        (0..self.masters.len()).map(Node::Master).chain(self.living().map(Node::Peer)).collect()
    }

    fn node_name(&self, node: Node) -> String {
        match node {
            Node::Master(index) => self.masters[index].name(self.masters.len()),
            Node::Peer(peer) => format!("p{peer}"),
        }
    }

    fn cut_name(&self, node: Node) -> String {
        match node {
            Node::Master(_) if self.masters.len() == 1 => "Master".to_owned(),
            node => format!("{node:?}"),
        }
    }

    /// Ends a process. Its kernel closes its connections.
    pub(super) fn end_process(&mut self, peer: usize, how: &str) {
        if !self.peers[peer].alive {
            return;
        }
        self.log(|| format!("p{peer}: {how}"));
        self.peers[peer].alive = false;
        self.oracle.process_ended(peer);
        for conn in self.network.connections_of(Node::Peer(peer)) {
            self.network.close(self.now, conn, Node::Peer(peer));
        }
        self.schedule_network();
        self.network.sweep();
        self.restart_replica_of(peer);
    }

    /// Stops a peer for a while, or slows down every event.
    pub(super) fn slow_down(&mut self, peer: usize, pause: Duration, each: Duration) {
        self.log(|| format!("p{peer}: is slow ({each:?} each, or stopped if 0) for {pause:?}"));
        self.oracle.delayed(peer, pause * 4);
        if each > Duration::ZERO {
            self.peers[peer].slowness = each;
            self.after(pause, SimEvent::Recover(peer));
        } else {
            self.peers[peer].busy_until = self.peers[peer].busy_until.max(self.now + pause);
            self.after(pause, SimEvent::Wake(peer));
        }
    }

    pub(super) fn cut(&mut self, a: Node, b: Node, pause: Duration, both: bool) {
        let (from, to) = (self.cut_name(a), self.cut_name(b));
        self.log(|| format!("cut from {from} to {to} for {pause:?} (both directions: {both})"));
        let until = self.now + pause;
        self.network.add_cut(a, b, until);
        if both {
            self.network.add_cut(b, a, until);
        }
        self.at(until, SimEvent::Heal);
    }

    pub(super) fn reset(&mut self, node: Node, purpose: ConnKind) {
        let conns: Vec<_> = self
            .network
            .connections_of(node)
            .into_iter()
            .filter(|w| self.conn_kinds.get(w) == Some(&purpose))
            .collect();
        let Some(conn) = self.random.pick(&conns).copied() else { return };
        if !self.network.listens(conn, node) {
            return;
        }
        let name = self.node_name(node);
        self.log(|| format!("{name}: a connection ({purpose:?}) is reset"));
        self.break_first(conn, node);
    }

    /// Breaks a connection. One end notices it first.
    fn break_first(&mut self, conn: ConnId, node: Node) {
        let first = match self.network.other_end(conn, node) {
            Some(other) if self.random.with_probability(500) => other,
            _ => node,
        };
        self.break_connection(conn, first);
    }
}

/// How long a fault may affect links and processes. Other faults do not excuse the eviction of a peer that lives.
fn disturbance(fault: &Fault) -> Option<Duration> {
    match fault {
        Fault::Freeze(pause)
        | Fault::Slow(_, pause)
        | Fault::Cut(pause, _)
        | Fault::Isolate(pause, _)
        | Fault::CutMaster(pause, _)
        | Fault::KillMaster(pause)
        | Fault::FreezeMaster(pause)
        | Fault::CutMasters(pause, _)
        | Fault::IsolateMaster(pause, _)
        | Fault::Partition(pause)
        | Fault::IsolateRestarted(_, pause)
        | Fault::LoseAll(Some(pause)) => Some(*pause),
        Fault::ResetLink | Fault::ResetPeer | Fault::ResetMasters => Some(Duration::ZERO),
        Fault::Join(_)
        | Fault::Leave
        | Fault::Kill
        | Fault::LoseAll(None)
        | Fault::Evict
        | Fault::ResetControl
        | Fault::ResetControls => None,
    }
}
