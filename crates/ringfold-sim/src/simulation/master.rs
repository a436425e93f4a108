//! The master's process: its incarnations, and the driver of the machine.

use super::{SimEvent, Simulation};
use crate::network::{Node, Packet};
use crate::oracle::Guarantee;
use crate::planted_bug::PlantedBug;
use crate::random_stream::RandomStream;
use crate::tour;
use ringfold_proto::cause::Departure;
use ringfold_proto::coordinator::{Coordinator, MasterList};
use ringfold_proto::event::{Event, RecoveredState};
use ringfold_proto::id::{ConnId, PeerId};
use ringfold_proto::master::{MasterAction, MasterConfig, TourRequest, TourSolution};
use ringfold_proto::message::{Phase, ToPeer};
use ringfold_proto::recovery::Recover;
use ringfold_proto::time::Time;
use std::time::Duration;

/// The master's process.
pub(super) struct SimMaster {
    seed: u64,
    machine: Option<Coordinator>,
    incarnations: u64,
    timer_at: Option<Time>,
}

impl SimMaster {
    pub fn new(seed: u64) -> Self {
        Self { seed, machine: None, incarnations: 0, timer_at: None }
    }

    pub fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    pub fn status(&self) -> (usize, usize) {
        let machine = self.machine.as_ref().and_then(Coordinator::machine);
        machine.map_or((0, 0), |m| (m.accepted().len(), m.waiting().len()))
    }
}

impl Simulation {
    pub(super) fn start_master(&mut self) {
        if self.master.is_up() {
            return;
        }
        self.master.incarnations += 1;
        let name = match self.planted_bug {
            Some(PlantedBug::ReuseEpochNumber) => "master".to_owned(),
            _ => format!("master {}", self.master.incarnations),
        };
        let seed = RandomStream::new(self.master.seed, &name).bytes32();
        let config = MasterConfig {
            timing: self.scenario.timing,
            recovery: self.scenario.recovery,
            tuning: self.scenario.tuning,
            appraise: ringfold_plan::estimate::gain_percent,
            relays: Vec::new(),
            seed,
        };
        self.master.machine = Some(Coordinator::new(config, MasterList::single()));
        self.master.timer_at = None;
        self.oracle.master_started();
        let number = self.master.incarnations;
        self.log(|| format!("master: incarnation {number} starts"));
    }

    pub(super) fn kill_master(&mut self, back_after: Duration) {
        if self.master.machine.take().is_none() {
            return;
        }
        self.log(|| format!("master: dies, restarts in {back_after:?}"));
        for conn in self.network.connections_of(Node::Master) {
            self.network.close(self.now, conn, Node::Master);
            self.conn_kinds.remove(&conn);
        }
        self.schedule_network();
        self.after(back_after, SimEvent::StartMaster);
    }

    /// A peer's connection is accepted.
    pub(super) fn master_accepts(&mut self, peer: usize) -> ConnId {
        let conn = self.network.connect(Node::Peer(peer), Node::Master);
        self.conn_kinds.insert(conn, super::ConnKind::Control);
        let id = self.peers[peer].id;
        if let Some(master) = &mut self.master.machine {
            master.handle_connected(self.now, conn, id);
        }
        conn
    }

    pub(super) fn master_receives(&mut self, conn: ConnId, packet: Packet) {
        match packet {
            Packet::ToMaster(message) => {
                for (conn, message) in self.alter_control(conn, *message) {
                    self.with_master(|master, now| master.handle_message(now, conn, message));
                }
            }
            _ => self.master_lost(conn),
        }
    }

    pub(super) fn master_lost(&mut self, conn: ConnId) {
        self.network.close(self.now, conn, Node::Master);
        let evicts = self.planted_bug == Some(PlantedBug::EvictOnReset);
        self.with_master(|master, now| match evicts {
            true => master.handle_closed(now, conn),
            false => master.handle_lost(now, conn),
        });
    }

    pub(super) fn master_timer(&mut self) {
        self.master.timer_at = None;
        self.with_master(|master, now| {
            if master.poll_timeout().is_some_and(|at| at <= now) {
                master.handle_timeout(now);
            }
        });
    }

    pub(super) fn evict(&mut self, peer: PeerId) {
        self.with_master(|master, now| master.evict(now, peer, "evicted by the operator"));
    }

    /// A ring was found. Another one may follow later.
    pub(super) fn tour_found(&mut self, request: &TourRequest, answer: TourSolution) {
        if let Some(master) = &mut self.master.machine {
            master.handle_tour(self.now, request.id, answer.clone());
        }
        if self.random.with_probability(200) && answer.left_out.is_empty() {
            let mut order = answer.order;
            self.random.shuffle(&mut order);
            let later = TourSolution { order, left_out: Vec::new() };
            let delay = Duration::from_millis(self.random.between(50, 2_000));
            self.after(delay, SimEvent::Tour(request.clone(), later));
        }
        self.pump_master();
    }

    /// Calls the machine if it is up, and carries out its actions.
    fn with_master(&mut self, call: impl FnOnce(&mut Coordinator, Time)) {
        if let Some(master) = &mut self.master.machine {
            call(master, self.now);
        }
        self.pump_master();
    }

    /// Checks that a peer that the master evicted for the end of its connection was dead, or that its links were down.
    fn check_reset(&mut self, id: PeerId) {
        let Some(peer) = self.by_id.get(&id).copied() else { return };
        let state = &self.peers[peer];
        if state.alive && state.machine.is_member() && self.now > self.disturbed_until {
            let what = format!("p{peer} lives, and was evicted because its connection was reset");
            self.oracle.report_violation(self.now, Guarantee::ResetsEvictNobody, what);
        }
    }

    /// Checks that no peer that took part offered a newer state.
    fn check_recovery(&mut self, state: &RecoveredState) {
        if self.scenario.recovery.policy != Recover::Newest || self.scenario.recovery.min.is_some() {
            return;
        }
        let others = state.others.iter().map(|(who, _)| who);
        let all = state.holders.iter().chain(&state.differing).chain(others);
        let offered = all.filter_map(|who| self.by_id.get(&who.peer)).map(|p| (*p, &self.peers[*p].program));
        let newest = offered.max_by_key(|(_, program)| program.offered);
        if let Some((peer, program)) = newest
            && program.offered > state.revision
        {
            let what = format!("p{peer} offered {}, and {} won", program.offered, state.revision);
            self.oracle.report_violation(self.now, Guarantee::NewestStateWins, what);
        }
    }

    fn pump_master(&mut self) {
        while let Some(action) = self.master.machine.as_mut().and_then(Coordinator::poll_action) {
            match action {
                MasterAction::Send { conn, message } => {
                    if let ToPeer::Answer { call, phase: Phase::Sync, .. } = &message.message {
                        // Answers are checked against the incarnation that sent them.
                        let peer = self.network.other_end(conn, Node::Master);
                        let incarnation = self.oracle.incarnation();
                        self.sync_incarnations.entry((peer, *call)).or_insert(incarnation);
                    }
                    self.network.send(self.now, conn, Node::Master, Packet::ToPeer(message));
                }
                MasterAction::Close { conn } => self.network.close(self.now, conn, Node::Master),
                MasterAction::SolveTour(request) => {
                    let solution = tour::solve(&request, self.scenario.seed);
                    let delay = Duration::from_millis(self.random.between(0, 60));
                    self.after(delay, SimEvent::Tour(request, solution));
                }
                MasterAction::Notify(event) => {
                    match &event {
                        Event::RevisionReset(group, _) | Event::RunEnded(group, _) => {
                            self.oracle.revision_reset(*group);
                        }
                        Event::Recovered(group, state) => {
                            self.oracle.revision_reset(*group);
                            self.check_recovery(state);
                        }
                        Event::RestoreBegan(_) => self.oracle.restore_began(),
                        Event::Departed(who, Departure::ConnectionLost) => self.check_reset(who.peer),
                        _ => {}
                    }
                    self.log(|| format!("master: {event}"));
                }
                MasterAction::SetMembers(_) | MasterAction::SendMaster { .. } => {}
            }
        }
        self.schedule_network();
        let Some(at) = self.master.machine.as_ref().and_then(Coordinator::poll_timeout) else { return };
        if self.master.timer_at.is_none_or(|set| at < set) {
            self.master.timer_at = Some(at);
            self.at(at, SimEvent::Timer(Node::Master));
        }
    }
}
