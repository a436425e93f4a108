//! The masters' processes: their incarnations, the drivers of their machines, and the connections between them.

use super::{ConnKind, SimEvent, Simulation, signatures};
use crate::clock::Clock;
use crate::network::{NetworkEvent, Node, Packet};
use crate::oracle::Guarantee;
use crate::planted_bug::PlantedBug;
use crate::random_stream::RandomStream;
use crate::tour;
use ringfold_proto::cause::Departure;
use ringfold_proto::coordinator::{Coordinator, MasterList, MasterStatus};
use ringfold_proto::event::{Event, RecoveredState};
use ringfold_proto::id::{CallId, ConnId, PeerId, Term};
use ringfold_proto::master::{Master, MasterAction, MasterConfig, TourRequest, TourSolution};
use ringfold_proto::message::{Numbered, Outcome, Phase, ToPeer};
use ringfold_proto::recovery::Recover;
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// A master's process.
pub(super) struct SimMaster {
    index: usize,
    seed: u64,
    machine: Option<Coordinator>,
    starts: u64,
    clock: Clock,
    /// The connections to other masters that this one has dialled.
    pub(super) dialled: BTreeMap<usize, ConnId>,
    /// The connections that other masters have dialled.
    pub(super) accepted: BTreeMap<ConnId, usize>,
    /// The oracle's number of the last machine that decides.
    deciding: u64,
    /// The oracle's number of its incarnation.
    incarnation: u64,
    /// The term in which it leads, if there are several masters.
    pub(super) term: Option<Term>,
    /// Whether it has led, or followed a master that leads, since its start.
    remembers: bool,
    /// The term in which it last asked for votes, what other masters said when, and whether it took over too early: for a
    /// planted bug.
    pub(super) stands: Option<Term>,
    pub(super) statuses: BTreeMap<u16, (Time, MasterStatus)>,
    pub(super) took_over: bool,
    /// Stopped until then. Events wait in the inbox meanwhile.
    pub(super) stopped_until: Time,
    inbox: VecDeque<SimEvent>,
    timer_at: Option<Time>,
}

/// The pause before a master dials another one again.
const REDIAL: Duration = Duration::from_millis(40);

impl SimMaster {
    pub fn new(seed: u64, index: usize, clock: Clock) -> Self {
        Self {
            index,
            seed,
            machine: None,
            starts: 0,
            clock,
            dialled: BTreeMap::new(),
            accepted: BTreeMap::new(),
            deciding: 0,
            incarnation: 0,
            term: None,
            remembers: false,
            stands: None,
            statuses: BTreeMap::new(),
            took_over: false,
            stopped_until: Time::ZERO,
            inbox: VecDeque::new(),
            timer_at: None,
        }
    }

    pub fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    /// Whether it leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.deciding_machine().is_some()
    }

    /// The machine that decides, if this master leads.
    pub(super) fn deciding_machine(&self) -> Option<&Master> {
        self.machine.as_ref().and_then(Coordinator::machine)
    }

    pub fn status(&self) -> (usize, usize) {
        self.deciding_machine().map_or((0, 0), |m| (m.accepted().len(), m.waiting().len()))
    }

    /// An address that stands for it in redirects.
    pub fn address(&self) -> SocketAddr {
        address(self.index)
    }

    /// Its name in the log of a run with so many masters.
    pub(super) fn name(&self, masters: usize) -> String {
        if masters == 1 { "master".to_owned() } else { format!("m{}", self.index) }
    }
}

fn address(index: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1 + index as u16))
}

impl Simulation {
    /// The clock of a process. With one master all are exact.
    pub(super) fn random_clock(&self, of: Node) -> Clock {
        if self.scenario.masters == 1 {
            return Clock::EXACT;
        }
        Clock::with_rate(RandomStream::new(self.scenario.seed, &format!("clock {of:?}")).between(900, 1_101))
    }

    pub(super) fn start_master(&mut self, index: usize) {
        if self.masters[index].is_up() {
            return;
        }
        let masters = self.masters.len();
        let master = &mut self.masters[index];
        master.starts += 1;
        let name = match self.planted_bug {
            Some(PlantedBug::ReuseEpochNumber) => master.name(masters),
            _ => format!("{} {}", master.name(masters), master.starts),
        };
        let seed = RandomStream::new(master.seed, &name).bytes32();
        let config = MasterConfig {
            peers_max: ringfold_proto::limits::WORLD_MAX,
            timing: self.scenario.timing,
            recovery: self.scenario.recovery,
            tuning: self.scenario.tuning,
            appraise: ringfold_plan::estimate::gain_percent,
            relays: Vec::new(),
            signer: signatures::signer(index, master.starts),
            seed,
        };
        let addresses = (0..masters).map(|other| vec![address(other)]).collect();
        let list =
            if masters == 1 { MasterList::single() } else { MasterList { addresses, me: index as u16 } };
        master.machine = Some(Coordinator::new(config, list));
        (master.timer_at, master.term, master.stands) = (None, None, None);
        let (name, number) = (master.name(masters), master.starts);
        self.log(|| format!("{name}: incarnation {number} starts"));
        if masters == 1 {
            return self.begin_deciding(index);
        }
        for other in (0..masters).filter(|other| *other != index) {
            let delay = self.network.latency();
            self.after(delay, SimEvent::DialOtherMaster { from: index, to: other });
        }
        self.pump_master(index);
    }

    /// A machine starts that decides.
    fn begin_deciding(&mut self, index: usize) {
        let number = self.oracle.master_started();
        let master = &mut self.masters[index];
        (master.deciding, master.incarnation) = (number, number);
    }

    pub(super) fn kill_master(&mut self, index: usize, back_after: Duration) {
        let masters = self.masters.len();
        let master = &mut self.masters[index];
        if master.machine.take().is_none() {
            return;
        }
        master.dialled.clear();
        master.accepted.clear();
        master.inbox.clear();
        master.statuses.clear();
        master.stopped_until = Time::ZERO;
        (master.term, master.took_over, master.remembers) = (None, false, false);
        let name = master.name(masters);
        self.log(|| format!("{name}: dies, restarts in {back_after:?}"));
        let node = Node::Master(index);
        for conn in self.network.connections_of(node) {
            self.network.close(self.now, conn, node);
            self.conn_kinds.remove(&conn);
        }
        self.schedule_network();
        self.after(back_after, SimEvent::StartMaster(index));
    }

    /// SIGSTOP, and SIGCONT after a pause.
    pub(super) fn stop_master(&mut self, index: usize, pause: Duration) {
        let until = self.now + pause;
        let name = self.masters[index].name(self.masters.len());
        let stopped_until = &mut self.masters[index].stopped_until;
        *stopped_until = until.max(*stopped_until);
        self.log(|| format!("{name}: is stopped for {pause:?}"));
        self.at(until, SimEvent::WakeMaster(index));
    }

    /// Whether a master can be reached, and runs.
    pub(super) fn accepts(&self, from: Node, index: usize) -> bool {
        let master = &self.masters[index];
        self.network.is_open(from, Node::Master(index), self.now)
            && master.is_up()
            && master.stopped_until <= self.now
    }

    /// A peer's connection is accepted.
    pub(super) fn accept_peer(&mut self, index: usize, peer: usize) -> ConnId {
        let conn = self.network.connect(Node::Peer(peer), Node::Master(index));
        self.conn_kinds.insert(conn, ConnKind::Control);
        let id = self.peers[peer].id;
        self.call_master(index, |master, now| master.handle_connected(now, conn, id));
        if self.masters.len() > 1 {
            self.pump_master(index);
        }
        conn
    }

    fn dial_other_master(&mut self, from: usize, to: usize) {
        if self.masters[from].dialled.contains_key(&to) {
            return;
        }
        if !self.accepts(Node::Master(from), to) {
            return self.after(REDIAL, SimEvent::DialOtherMaster { from, to });
        }
        let conn = self.network.connect(Node::Master(from), Node::Master(to));
        self.conn_kinds.insert(conn, ConnKind::Masters);
        self.masters[from].dialled.insert(to, conn);
        self.masters[to].accepted.insert(conn, from);
        self.with_master(from, |master, now| master.handle_master_connected(now, to as u16));
    }

    /// Handles an event of a master now, or when it is no longer stopped.
    pub(super) fn handle_for_master(&mut self, index: usize, event: SimEvent) {
        let master = &mut self.masters[index];
        if !master.is_up() {
            return;
        }
        if master.stopped_until > self.now {
            master.inbox.push_back(event);
        } else {
            self.process_for_master(index, event);
        }
    }

    pub(super) fn wake_master(&mut self, index: usize) {
        while self.masters[index].stopped_until <= self.now {
            let Some(event) = self.masters[index].inbox.pop_front() else { return };
            self.process_for_master(index, event);
        }
    }

    fn process_for_master(&mut self, index: usize, event: SimEvent) {
        match event {
            SimEvent::Network(NetworkEvent::Deliver { conn, packet, .. }) => {
                self.master_receives(index, conn, packet);
            }
            SimEvent::MasterLost(_, conn) => self.master_lost(index, conn),
            SimEvent::DialOtherMaster { from, to } => self.dial_other_master(from, to),
            SimEvent::Timer(_) => self.master_timer(index),
            SimEvent::Tour(_, request, solution) => self.tour_found(index, &request, solution),
            _ => {}
        }
    }

    fn master_receives(&mut self, index: usize, conn: ConnId, packet: Packet) {
        if !self.network.listens(conn, Node::Master(index)) {
            return;
        }
        match packet {
            Packet::ToMaster(message) => {
                if let Some(resume) = message.message.resume() {
                    self.check_claims(resume);
                }
                for (conn, message) in self.alter_control(index, conn, *message) {
                    self.with_master(index, |master, now| master.handle_message(now, conn, message));
                }
            }
            Packet::Masters(message) => {
                self.remember_status(index, &message);
                self.with_master(index, |master, now| master.handle_master_message(now, *message));
            }
            _ => self.master_lost(index, conn),
        }
    }

    pub(super) fn master_lost(&mut self, index: usize, conn: ConnId) {
        self.network.close(self.now, conn, Node::Master(index));
        let SimMaster { accepted, dialled, .. } = &self.masters[index];
        if accepted.contains_key(&conn) || dialled.values().any(|dialled| *dialled == conn) {
            return self.lost_between_masters(index, conn);
        }
        let evicts = self.planted_bug == Some(PlantedBug::EvictOnReset);
        self.with_master(index, |master, now| match evicts {
            true => master.handle_closed(now, conn),
            false => master.handle_lost(now, conn),
        });
    }

    fn lost_between_masters(&mut self, index: usize, conn: ConnId) {
        let master = &mut self.masters[index];
        if let Some(from) = master.accepted.remove(&conn) {
            // Another connection may have replaced it.
            if !master.accepted.values().any(|other| *other == from) {
                self.with_master(index, |master, now| master.handle_master_lost(now, from as u16));
            }
            return;
        }
        let lost = master.dialled.iter().find(|(_, dialled)| **dialled == conn).map(|(to, _)| *to);
        if let Some(to) = lost {
            master.dialled.remove(&to);
            self.after(REDIAL, SimEvent::DialOtherMaster { from: index, to });
        }
    }

    fn master_timer(&mut self, index: usize) {
        self.masters[index].timer_at = None;
        self.take_over_early(index);
        self.with_master(index, |master, now| {
            if master.poll_timeout().is_some_and(|at| at <= now) {
                master.handle_timeout(now);
            }
        });
    }

    /// The operator evicts a peer, at the master that leads.
    pub(super) fn evict(&mut self, peer: PeerId) {
        if let Some(index) = self.active_master() {
            self.with_master(index, |master, now| master.evict(now, peer, "evicted by the operator"));
        }
    }

    /// The master that leads; the newest one if several believe that they do.
    pub(super) fn active_master(&self) -> Option<usize> {
        let leading = self.masters.iter().filter(|master| master.leads());
        leading.max_by_key(|master| master.term).map(|master| master.index)
    }

    /// A ring was found. Another one may follow later.
    fn tour_found(&mut self, index: usize, request: &TourRequest, answer: TourSolution) {
        self.call_master(index, |master, now| master.handle_tour(now, request.id, answer.clone()));
        if self.random.with_probability(200) && answer.left_out.is_empty() {
            let mut order = answer.order;
            self.random.shuffle(&mut order);
            let later = TourSolution { order, left_out: Vec::new() };
            let delay = Duration::from_millis(self.random.between(50, 2_000));
            self.after(delay, SimEvent::Tour(index, request.clone(), later));
        }
        self.pump_master(index);
    }

    /// Calls the machine if it is up, and carries out its actions.
    pub(super) fn with_master(&mut self, index: usize, call: impl FnOnce(&mut Coordinator, Time)) {
        self.call_master(index, call);
        self.pump_master(index);
    }

    /// Calls the machine if it is up.
    pub(super) fn call_master(&mut self, index: usize, call: impl FnOnce(&mut Coordinator, Time)) {
        let SimMaster { machine, clock, .. } = &mut self.masters[index];
        if let Some(machine) = machine {
            call(machine, clock.reading(self.now));
        }
    }

    /// The incarnation of the master that answered a sync on this connection.
    pub(super) fn sync_incarnation(&self, conn: ConnId, peer: usize, call: CallId) -> u64 {
        let machine = self.answering.get(&conn).copied().unwrap_or(0);
        self.sync_incarnations.get(&(machine, peer, call)).copied().unwrap_or(0)
    }

    fn send_to_peer(&mut self, index: usize, conn: ConnId, message: Box<Numbered<ToPeer>>) {
        match &message.message {
            ToPeer::Answer { call, phase: Phase::Sync, .. } => {
                // Answers are checked against the incarnation that sent them first.
                let SimMaster { deciding, incarnation, .. } = self.masters[index];
                self.answering.insert(conn, deciding);
                if let Some(Node::Peer(peer)) = self.network.other_end(conn, Node::Master(index)) {
                    self.sync_incarnations.entry((deciding, peer, *call)).or_insert(incarnation);
                }
            }
            ToPeer::Decided { op, outcome: Outcome::Committed { .. }, .. } => {
                self.oracle.commit_sent(self.now, *op);
            }
            _ => {}
        }
        self.network.send(self.now, conn, Node::Master(index), Packet::ToPeer(message));
    }

    fn note_event(&mut self, index: usize, event: &Event) {
        match event {
            Event::RevisionReset(group, _) | Event::RunEnded(group, _) => {
                self.oracle.revision_reset(*group);
            }
            Event::Recovered(group, state) => {
                self.oracle.revision_reset(*group);
                self.check_recovery(state);
            }
            Event::RestoreBegan(_) => self.masters[index].incarnation = self.oracle.restore_began(),
            Event::Departed(who, how) => {
                if self.scenario.only_takeovers {
                    let what = format!("{} {how}, although only masters were stopped or killed", who.name);
                    self.oracle.report_violation(self.now, Guarantee::TakeoversFailNothing, what);
                }
                if *how == Departure::ConnectionLost {
                    self.check_reset(who.peer);
                }
            }
            Event::Stands(term) => self.masters[index].stands = Some(*term),
            Event::Leads(term) => {
                if !self.masters.iter().any(|master| master.remembers) {
                    self.oracle.masters_forgot();
                }
                self.begin_deciding(index);
                let master = &mut self.masters[index];
                (master.term, master.remembers) = (Some(*term), true);
                if let Some(incarnation) = master.machine.as_ref().and_then(Coordinator::incarnation) {
                    self.oracle.leads(incarnation, *term);
                }
            }
            Event::Follows(..) => self.masters[index].remembers = true,
            Event::SteppedDown(..) => {
                let master = &mut self.masters[index];
                (master.term, master.took_over) = (None, false);
            }
            _ => {}
        }
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

    fn pump_master(&mut self, index: usize) {
        self.check_replicas(index);
        while let Some(action) = self.masters[index].machine.as_mut().and_then(Coordinator::poll_action) {
            match action {
                MasterAction::Send { conn, message } => self.send_to_peer(index, conn, message),
                MasterAction::Close { conn } => {
                    self.network.close(self.now, conn, Node::Master(index));
                    if self.masters.len() > 1 {
                        self.call_master(index, |master, now| master.handle_lost(now, conn));
                    }
                }
                MasterAction::SolveTour(request) => {
                    let solution = tour::solve(&request, self.scenario.seed);
                    let delay = Duration::from_millis(self.random.between(0, 60));
                    self.after(delay, SimEvent::Tour(index, request, solution));
                }
                MasterAction::Notify(event) => {
                    self.note_event(index, &event);
                    let name = self.masters[index].name(self.masters.len());
                    self.log(|| format!("{name}: {event}"));
                }
                MasterAction::SendMaster { to, message } => {
                    self.forge_confirmation(index, to, &message);
                    if let Some(conn) = self.masters[index].dialled.get(&usize::from(to)) {
                        self.network.send(self.now, *conn, Node::Master(index), Packet::Masters(message));
                    }
                }
                MasterAction::SetMembers(_) => {}
            }
        }
        self.schedule_network();
        let SimMaster { machine, clock, timer_at, .. } = &mut self.masters[index];
        let Some(at) = machine.as_ref().and_then(Coordinator::poll_timeout) else { return };
        let at = clock.when(at);
        if timer_at.is_none_or(|set| at < set) {
            *timer_at = Some(at);
            self.at(at, SimEvent::Timer(Node::Master(index)));
        }
    }
}
