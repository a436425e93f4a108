//! Replicas: peers that start together, and again together when all have ended.

use super::peer::SimPeer;
use super::{SimEvent, Simulation};
use crate::oracle::Guarantee;
use crate::program::Checkpoint;
use crate::scenario::PEERS_MAX;
use ringfold_proto::id::ReplicaId;
use ringfold_proto::message::Replica;
use std::collections::BTreeSet;
use std::time::Duration;

/// How a rank ends if another one of its replica has exited.
const ENDED_BY_LAUNCHER: &str = "is ended by its launcher";

/// A replica. Rank i is in group i.
pub(super) struct SimReplica {
    id: ReplicaId,
    ranks: usize,
    /// The ranks that have started.
    peers: Vec<usize>,
    /// Whether it starts again when all ranks have ended.
    pub restarts: bool,
}

impl SimReplica {
    /// What its ranks state when they join.
    pub fn stated(&self) -> Replica {
        Replica { id: self.id, ranks: self.ranks as u32 }
    }
}

impl Simulation {
    /// Starts a replica, unless too many peers live. The first rank starts at once, the others a moment later.
    pub(super) fn spawn_replica(&mut self, checkpoints: Vec<Option<Checkpoint>>) {
        let ranks = checkpoints.len();
        if self.living().count() + ranks > PEERS_MAX {
            return;
        }
        let (replica, id) = (self.replicas.len(), ReplicaId(self.random.bits128()));
        self.replicas.push(SimReplica { id, ranks, peers: Vec::new(), restarts: false });
        for (rank, checkpoint) in checkpoints.into_iter().enumerate() {
            if rank == 0 {
                self.start_rank(replica, rank, checkpoint);
            } else {
                let delay = Duration::from_millis(self.random.between(0, 300));
                self.after(delay, SimEvent::StartRank { replica, rank, checkpoint });
            }
        }
    }

    pub(super) fn start_rank(&mut self, replica: usize, rank: usize, checkpoint: Option<Checkpoint>) {
        let peer = self.peers.len();
        self.replicas[replica].peers.push(peer);
        self.spawn_with(rank as u32, checkpoint, Some(replica));
        if self.replicas[replica].restarts {
            self.end_process(peer, ENDED_BY_LAUNCHER);
        }
    }

    /// A process has ended. If it was not killed, its launcher also ends the ranks that wait for it. Starts its replica again
    /// if it was the last rank and one of them was not killed.
    pub(super) fn restart_replica_of(&mut self, peer: usize) {
        let Some(replica) = self.peers[peer].replica else { return };
        let SimReplica { ranks, peers, restarts, .. } = &self.replicas[replica];
        if !*restarts {
            return;
        }
        let is_waiting = |peer: &usize| self.peers[*peer].alive && !self.peers[*peer].was_accepted;
        if let Some(waiting) = peers.iter().copied().find(is_waiting) {
            return self.end_process(waiting, ENDED_BY_LAUNCHER);
        }
        if peers.len() == *ranks && !peers.iter().any(|peer| self.peers[*peer].alive) {
            let checkpoints = vec![None; *ranks];
            self.replicas[replica].restarts = false;
            let delay = Duration::from_millis(self.random.between(10, 600));
            self.after(delay, SimEvent::RespawnReplica(checkpoints));
        }
    }

    /// Checks that a master has accepted all ranks of a replica, or none. A rank that was demoted, or had no epoch yet when a
    /// master restarted, may wait to be accepted again.
    pub(super) fn check_replicas(&mut self, index: usize) {
        if self.replicas.is_empty() {
            return;
        }
        let Some(machine) = self.masters[index].deciding_machine() else { return };
        let accepted: BTreeSet<_> = machine.accepted().into_iter().collect();
        let waiting: BTreeSet<_> = machine.waiting().into_iter().collect();
        for peer in &mut self.peers {
            peer.was_accepted |= accepted.contains(&peer.id);
        }
        let is_member = |peer: &usize| accepted.contains(&self.peers[*peer].id);
        let is_missed = |peer: &usize| {
            let SimPeer { id, left, was_accepted, .. } = &self.peers[*peer];
            let is_excused = *left || (waiting.contains(id) && *was_accepted);
            !accepted.contains(id) && !is_excused
        };
        let broken = self.replicas.iter().find_map(|SimReplica { ranks, peers, .. }| {
            let member = peers.iter().find(|peer| is_member(peer))?;
            let missed = peers.iter().find(|peer| is_missed(peer)).map(|peer| format!("p{peer}"));
            let missed = missed.or((peers.len() < *ranks).then(|| "a rank that has not started".into()))?;
            Some(format!("p{member} is a member, and not {missed}, a rank of the same replica"))
        });
        if let Some(what) = broken {
            self.oracle.report_violation(self.now, Guarantee::ReplicasAreWhole, what);
        }
    }
}
