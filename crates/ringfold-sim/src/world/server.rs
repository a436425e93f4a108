//! The master's process: its lives, and the driver around the machine.

use super::{Happening, World};
use crate::chance::Chance;
use crate::network::{Node, Packet, Wire};
use crate::sabotage::Sabotage;
use crate::tour;
use ringfold_proto::event::Event;
use ringfold_proto::id::{ConnId, PeerId};
use ringfold_proto::master::{Master, MasterAction, MasterConfig, TourRequest, TourSolution};
use ringfold_proto::message::{Numbered, Phase, ToMaster, ToPeer};
use ringfold_proto::time::Time;
use std::time::Duration;

/// The master's process.
pub(super) struct Server {
    seed: u64,
    master: Option<Master>,
    life: u64,
    timer_at: Option<Time>,
}

impl Server {
    pub fn new(seed: u64) -> Self {
        Self { seed, master: None, life: 0, timer_at: None }
    }

    pub fn is_up(&self) -> bool {
        self.master.is_some()
    }

    pub fn status(&self) -> (usize, usize) {
        self.master.as_ref().map_or((0, 0), |m| (m.accepted().len(), m.waiting().len()))
    }
}

impl World {
    pub(super) fn start_master(&mut self) {
        if self.server.is_up() {
            return;
        }
        self.server.life += 1;
        let name = match self.sabotage {
            Some(Sabotage::ReuseEpochNumber) => "master".to_owned(),
            _ => format!("master {}", self.server.life),
        };
        let seed = Chance::new(self.server.seed, &name).bytes32();
        let config = MasterConfig { timing: self.scenario.timing, tuning: self.scenario.tuning, seed };
        self.server.master = Some(Master::new(config));
        self.server.timer_at = None;
        self.oracle.master_started();
        let life = self.server.life;
        self.note(|| format!("master: life {life} begins"));
    }

    pub(super) fn kill_master(&mut self, back_after: Duration) {
        if self.server.master.take().is_none() {
            return;
        }
        self.note(|| format!("master: dies, back in {back_after:?}"));
        for wire in self.network.wires_of(Node::Master) {
            self.network.close(self.now, wire, Node::Master);
            self.wires.remove(&wire);
        }
        self.ship();
        self.after(back_after, Happening::MasterStarts);
    }

    /// A peer's connection is accepted.
    pub(super) fn master_accepts(&mut self, peer: usize) -> Wire {
        let wire = self.network.connect(Node::Peer(peer), Node::Master);
        self.wires.insert(wire, super::Purpose::Control);
        let id = self.peers[peer].id;
        if let Some(master) = &mut self.server.master {
            master.handle_connected(self.now, ConnId(wire.0), id);
        }
        wire
    }

    pub(super) fn master_receives(&mut self, wire: Wire, packet: Packet) {
        match packet {
            Packet::ToMaster(message) => {
                for (wire, message) in self.sabotage_control(wire, *message) {
                    self.hand_to_master(wire, message);
                }
            }
            _ => self.master_lost(wire),
        }
    }

    pub(super) fn master_lost(&mut self, wire: Wire) {
        self.network.close(self.now, wire, Node::Master);
        if let Some(master) = &mut self.server.master {
            master.handle_lost(self.now, ConnId(wire.0));
        }
        self.pump_master();
    }

    pub(super) fn master_timer(&mut self) {
        self.server.timer_at = None;
        if let Some(master) = &mut self.server.master
            && master.poll_timeout().is_some_and(|at| at <= self.now)
        {
            master.handle_timeout(self.now);
        }
        self.pump_master();
    }

    pub(super) fn evict(&mut self, peer: PeerId) {
        if let Some(master) = &mut self.server.master {
            master.evict(self.now, peer, "the operator said so");
        }
        self.pump_master();
    }

    /// A ring was found; perhaps a better one will be found later.
    pub(super) fn tour_found(&mut self, ticket: u64, question: &TourRequest, answer: TourSolution) {
        if let Some(master) = &mut self.server.master {
            master.handle_tour(self.now, ticket, answer.clone());
        }
        if self.chance.per_mille(200) && answer.left_out.is_empty() {
            let mut order = answer.order;
            self.chance.shuffle(&mut order);
            let later = TourSolution { order, left_out: Vec::new() };
            let delay = Duration::from_millis(self.chance.between(50, 2_000));
            self.after(delay, Happening::Tour(ticket, question.clone(), later));
        }
        self.pump_master();
    }

    fn hand_to_master(&mut self, wire: Wire, message: Numbered<ToMaster>) {
        if let Some(master) = &mut self.server.master {
            master.handle_message(self.now, ConnId(wire.0), message);
        }
        self.pump_master();
    }

    fn pump_master(&mut self) {
        while let Some(action) = self.server.master.as_mut().and_then(Master::poll_action) {
            match action {
                MasterAction::Send { conn, message } => {
                    if let ToPeer::Answer { call, phase: Phase::Sync, .. } = &message.message {
                        // Answers are held against the life that gave them, not the one that they arrive in.
                        let peer = self.network.other_end(Wire(conn.0), Node::Master);
                        let life = self.oracle.sync_life();
                        self.sync_lives.entry((peer, *call)).or_insert(life);
                    }
                    self.network.send(self.now, Wire(conn.0), Node::Master, Packet::ToPeer(message));
                }
                MasterAction::Close { conn } => self.network.close(self.now, Wire(conn.0), Node::Master),
                MasterAction::SolveTour(question) => {
                    let answer = tour::answer(&question, self.scenario.seed);
                    let delay = Duration::from_millis(self.chance.between(0, 60));
                    self.after(delay, Happening::Tour(question.id, question, answer));
                }
                MasterAction::Notify(event) => {
                    match &event {
                        Event::RevisionReset(group, _) | Event::RunEnded(group, _) => {
                            self.oracle.revision_reset(*group);
                        }
                        Event::RestoreBegan(_) => self.oracle.restore_began(),
                        _ => {}
                    }
                    self.note(|| format!("master: {event}"));
                }
            }
        }
        self.ship();
        let Some(at) = self.server.master.as_ref().and_then(Master::poll_timeout) else { return };
        if self.server.timer_at.is_none_or(|set| at < set) {
            self.server.timer_at = Some(at);
            self.at(at, Happening::Timer(Node::Master));
        }
    }
}
