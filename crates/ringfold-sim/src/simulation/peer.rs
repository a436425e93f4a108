//! A peer's process: the driver of its machine and its executor.

use super::calls::PendingCall;
use super::{SimEvent, Simulation};
use crate::buffer::{SharedBuffer, SymbolWorkspace};
use crate::clock::Clock;
use crate::medium::{Outgoing, SimMedium};
use crate::network::{NetworkEvent, Node, Packet};
use crate::oracle::Guarantee;
use crate::planted_bug::PlantedBug;
use crate::program::{Checkpoint, Program};
use crate::symbol::Symbol;
use ringfold_plan::choice::{self, NoPlan};
use ringfold_plan::event::ExecutorEvent;
use ringfold_plan::executor::{Executor, FrameDecision, Membership};
use ringfold_plan::layout::Layout;
use ringfold_plan::medium::SlotId;
use ringfold_plan::plan::Plan;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::epoch::{Attributes, EpochDescription};
use ringfold_proto::id::{CallId, ConnId, EpochId, GroupId, OpId, PeerId, Rank};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::message::{Answer, Join, Phase, ToPeer};
use ringfold_proto::network::Network;
use ringfold_proto::peer::{Peer, PeerAction, PeerConfig};
use ringfold_proto::shared_state::Assignment;
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A peer's process.
pub(super) struct SimPeer {
    pub id: PeerId,
    pub group: u32,
    /// The replica that it is a rank of.
    pub replica: Option<usize>,
    pub alive: bool,
    /// Whether it has left by itself.
    pub left: bool,
    /// Whether a master has accepted it.
    pub was_accepted: bool,
    pub machine: Peer,
    pub executor: Executor<SymbolWorkspace>,
    pub medium: SimMedium,
    pub clock: Clock,
    pub program: Program,
    pub control: Option<ConnId>,
    /// The master to dial.
    pub next_master: usize,
    /// How many masters could not be connected to since the last connection.
    pub failed_dials: usize,
    pub links: BTreeMap<PeerId, ConnId>,
    /// How often it has reported measurements.
    pub(super) reports: u64,
    /// What waits to be sent to each peer.
    pub send_queues: BTreeMap<PeerId, VecDeque<Outgoing>>,
    /// The links that the machine wants.
    pub wanted_links: BTreeMap<PeerId, EpochId>,
    pub pending: BTreeMap<CallId, PendingCall>,
    /// The call, number and assignment of a sync after its election.
    pub syncing: Option<(CallId, u64, Assignment)>,
    pub sync_round: u64,
    /// The incarnation of the master that answered the last sync.
    pub sync_incarnation: u64,
    /// Since when it makes no calls because its state was rejected, and by which incarnation of the master.
    pub silent_since: Option<(Time, u64)>,
    /// The incarnation of the master that rejected its state last.
    pub rejected_by: u64,
    /// The world sizes after the last call other than a successful collective, for a planted bug.
    pub stale_world: Option<Attributes>,
    /// Stopped or slow until then. Events wait in the inbox meanwhile.
    pub busy_until: Time,
    pub slowness: Duration,
    pub inbox: VecDeque<SimEvent>,
    wake_at: Option<Time>,
    timer_at: Option<Time>,
    /// Buffers of returned calls: nothing may touch them.
    pub past_buffers: Vec<SharedBuffer>,
}

impl SimPeer {
    /// A summary for reports.
    pub fn status(&self) -> String {
        let epoch = self.machine.epoch().map(|e| format!("{} of {}", e.id, e.members.len()));
        format!("member {}, {:?}, healthy {:?}", self.machine.is_member(), epoch, self.program.healthy.last())
    }
}

impl Simulation {
    /// Starts a peer of this group, or a replica.
    pub(super) fn spawn(&mut self, group: u32) {
        match self.scenario.replica_ranks {
            None => self.spawn_with(group, None, None),
            Some(ranks) => self.spawn_replica(vec![None; ranks]),
        }
    }

    /// Starts a peer, which may be a rank of this replica.
    pub(super) fn spawn_with(&mut self, group: u32, checkpoint: Option<Checkpoint>, replica: Option<usize>) {
        let index = self.peers.len();
        let id = PeerId(self.random.bits128());
        let join = Join {
            group: GroupId(group),
            name: format!("p{index}"),
            host: self.random.between(1, 5),
            site: 0,
            cores: Default::default(),
            addresses: Vec::new(),
            relays: false,
        };
        let mut program = Program::new(self.scenario.seed, index, self.scenario.program_config.clone());
        program.calm = self.calm;
        if let Some(checkpoint) = checkpoint {
            self.log(|| format!("p{index}: has a checkpoint of {}", checkpoint.revision));
            program.load(checkpoint);
        }
        let joined = replica.map(|replica| self.replicas[replica].stated());
        let machine = Peer::new(PeerConfig { peer: id, join, replica: joined, timing: self.scenario.timing });
        let commands = program.begin();
        self.peers.push(SimPeer {
            id,
            group,
            replica,
            alive: true,
            left: false,
            was_accepted: false,
            machine,
            executor: Executor::new(self.scenario.stall_after),
            medium: SimMedium::default(),
            clock: self.random_clock(Node::Peer(index)),
            program,
            control: None,
            next_master: 0,
            failed_dials: 0,
            links: BTreeMap::new(),
            reports: 0,
            send_queues: BTreeMap::new(),
            wanted_links: BTreeMap::new(),
            pending: BTreeMap::new(),
            syncing: None,
            sync_round: 0,
            sync_incarnation: 0,
            silent_since: None,
            rejected_by: 0,
            stale_world: None,
            busy_until: Time::ZERO,
            slowness: Duration::ZERO,
            inbox: VecDeque::new(),
            wake_at: None,
            timer_at: None,
            past_buffers: Vec::new(),
        });
        self.by_id.insert(id, index);
        self.log(|| format!("p{index}: starts, joins group {group} ({})", id.short()));
        self.run_commands(index, commands);
        self.pump(index);
    }

    /// Handles an event of a peer now, or when it is no longer stopped or slow.
    pub(super) fn handle_for_peer(&mut self, peer: usize, event: SimEvent) {
        let state = &mut self.peers[peer];
        if !state.alive {
            return;
        }
        if state.busy_until > self.now || !state.inbox.is_empty() {
            state.inbox.push_back(event);
            return self.wake_later(peer);
        }
        self.process(peer, event);
    }

    pub(super) fn wake(&mut self, peer: usize) {
        if self.peers[peer].wake_at.is_some_and(|at| at <= self.now) {
            self.peers[peer].wake_at = None;
        }
        while self.peers[peer].alive && self.peers[peer].busy_until <= self.now {
            let Some(event) = self.peers[peer].inbox.pop_front() else { return };
            self.process(peer, event);
        }
        if self.peers[peer].alive && !self.peers[peer].inbox.is_empty() {
            self.wake_later(peer);
        }
    }

    fn wake_later(&mut self, peer: usize) {
        let at = self.peers[peer].busy_until.max(self.now);
        if self.peers[peer].wake_at.is_none_or(|set| at < set) {
            self.peers[peer].wake_at = Some(at);
            self.at(at, SimEvent::Wake(peer));
        }
    }

    fn process(&mut self, peer: usize, event: SimEvent) {
        let now = self.now;
        match event {
            SimEvent::Network(NetworkEvent::Deliver { conn, packet, .. }) => {
                self.peer_receives(peer, conn, packet)
            }
            SimEvent::Timer(_) => {
                let state = &mut self.peers[peer];
                let now = state.clock.reading(now);
                state.timer_at = None;
                if state.machine.poll_timeout().is_some_and(|at| at <= now) {
                    state.machine.handle_timeout(now);
                }
                state.executor.handle_timeout(now);
            }
            SimEvent::Replied(_, reply) => self.reply(peer, reply),
            SimEvent::Transmit(_, to) => self.transmit(peer, to),
            SimEvent::DialMaster(_) => self.dial_master(peer),
            SimEvent::DialPeer { to, epoch, give_up, .. } => self.dial_peer(peer, to, epoch, give_up),
            SimEvent::Probed { probe, forward, backward, .. } => {
                self.peers[peer].machine.handle_probed(probe, forward, backward);
            }
            SimEvent::Fetch { call, tries, .. } => self.fetch(peer, call, tries),
            _ => {}
        }
        self.pump(peer);
        let state = &mut self.peers[peer];
        if state.slowness > Duration::ZERO {
            state.busy_until = now + state.slowness;
        }
    }

    /// Processes actions, events and outgoing messages until there are no more.
    pub(super) fn pump(&mut self, peer: usize) {
        while self.peers[peer].alive {
            let state = &mut self.peers[peer];
            let now = state.clock.reading(self.now);
            state.executor.poll(now, &mut state.medium);
            let outgoing = std::mem::take(&mut state.medium.outgoing);
            if !outgoing.is_empty() {
                outgoing.into_iter().for_each(|o| self.queue_outgoing(peer, o));
            } else if let Some(event) = state.executor.poll_event() {
                self.handle_executor_event(peer, event);
            } else if let Some(action) = state.machine.poll_action() {
                self.handle_action(peer, action);
            } else {
                break;
            }
        }
        self.schedule_network();
        let state = &mut self.peers[peer];
        let at = [state.machine.poll_timeout(), state.executor.poll_timeout()].into_iter().flatten().min();
        if let Some(at) = at.filter(|_| state.alive).map(|at| state.clock.when(at))
            && state.timer_at.is_none_or(|set| at < set)
        {
            state.timer_at = Some(at);
            self.at(at, SimEvent::Timer(Node::Peer(peer)));
        }
        self.check_buffers(peer);
    }

    fn peer_receives(&mut self, peer: usize, conn: ConnId, packet: Packet) {
        let from = self.network.other_end(conn, Node::Peer(peer));
        match packet {
            Packet::ToPeer(message) => {
                if let ToPeer::Answer { call, phase: Phase::Sync, round, answer: Answer::Synced(_), .. } =
                    &message.message
                {
                    self.peers[peer].sync_round = *round;
                    self.peers[peer].sync_incarnation = self.sync_incarnation(conn, peer, *call);
                }
                let now = self.reading(peer);
                self.peers[peer].machine.handle_message(now, conn, *message);
            }
            Packet::Data(header, symbols) => {
                if let Some(Node::Peer(from)) = from {
                    self.receive_frame(peer, from, *header, symbols);
                }
            }
            Packet::Link(message) => {
                if let Some(Node::Peer(from)) = from {
                    let from = self.peers[from].id;
                    let message = self.alter_link_message(peer, message);
                    let state = &mut self.peers[peer];
                    state.machine.handle_heard(from);
                    state.executor.handle_link_message(state.clock.reading(self.now), from, message);
                }
            }
            Packet::End => {
                self.network.close(self.now, conn, Node::Peer(peer));
                self.peer_lost(peer, conn);
            }
            Packet::ToMaster(_) | Packet::Masters(_) => {}
        }
    }

    fn receive_frame(&mut self, peer: usize, from: usize, header: DataHeader, mut symbols: Vec<Symbol>) {
        let from = self.peers[from].id;
        let Some(header) = self.alter_frame(peer, header) else { return };
        self.flip_payload(peer, from, &header, &mut symbols);
        let now = self.now;
        let state = &mut self.peers[peer];
        state.machine.handle_heard(from);
        let reading = state.clock.reading(now);
        let verdict = state.executor.offer(from, &header);
        state.medium.store_frame(SlotId { from, epoch: header.op.epoch, index: header.slot }, symbols);
        match verdict {
            FrameDecision::Place => state.executor.handle_frame(reading, from, header),
            FrameDecision::Discard => state.executor.handle_discarded(reading, from, header),
            FrameDecision::Violation(why) => {
                let what = format!("p{peer} accuses {} of {why:?} with {header:?}", from.short());
                self.oracle.report_violation(now, Guarantee::NoFalseAccusation, what);
            }
        }
    }

    /// Frames and messages to one peer wait in one queue, in which some messages come first.
    fn queue_outgoing(&mut self, peer: usize, outgoing: Outgoing) {
        let (Outgoing::Frame(to, ..) | Outgoing::Message(to, _)) = &outgoing;
        let to = *to;
        let queue = self.peers[peer].send_queues.entry(to).or_default();
        match &outgoing {
            Outgoing::Message(_, message) if message.overtakes_data() => queue.push_front(outgoing),
            _ => queue.push_back(outgoing),
        }
        if queue.len() == 1 {
            let delay = Duration::from_nanos(self.random.between(0, 500_000));
            self.after(delay, SimEvent::Transmit(peer, to));
        }
    }

    /// Sends some of the queue. Memory is read when a frame is sent; then its put is flushed.
    fn transmit(&mut self, peer: usize, to: PeerId) {
        for _ in 0..self.random.between(1, 5) {
            let state = &mut self.peers[peer];
            let Some(outgoing) = state.send_queues.get_mut(&to).and_then(VecDeque::pop_front) else { return };
            let conn = state.links.get(&to).copied();
            let packet = match outgoing {
                Outgoing::Message(_, message) => Packet::Link(message),
                Outgoing::Frame(_, header, ticket) => {
                    let Some((op, payload)) = state.medium.unflushed.remove(&ticket) else { continue };
                    let symbols = payload.transmit(state.medium.cancelled.contains(&op));
                    state.executor.handle_flushed(state.clock.reading(self.now), ticket);
                    Packet::Data(header, symbols)
                }
            };
            if let Some(conn) = conn {
                self.network.send(self.now, conn, Node::Peer(peer), packet);
            }
        }
        if self.peers[peer].send_queues.get(&to).is_some_and(|queue| !queue.is_empty()) {
            let delay = Duration::from_nanos(self.random.between(0, 500_000));
            self.after(delay, SimEvent::Transmit(peer, to));
        }
    }

    fn handle_executor_event(&mut self, peer: usize, event: ExecutorEvent<SymbolWorkspace>) {
        self.log(|| format!("p{peer}: executor: {event}"));
        if let ExecutorEvent::Quiesced { op, .. } = &event
            && self.peers[peer].suspended_call(*op).is_some()
        {
            return self.report_holding(peer, *op);
        }
        let machine = &mut self.peers[peer].machine;
        match event {
            ExecutorEvent::Done { op, digest, .. } => {
                machine.handle_op_done(op, digest);
            }
            ExecutorEvent::Corrupted { op, peer: from } => machine.handle_op_corrupted(op, from),
            ExecutorEvent::Committed { op, .. } | ExecutorEvent::Quiesced { op, .. } => {
                machine.handle_op_released(op);
                self.report_links(peer);
            }
            ExecutorEvent::Mismatch { op, peer: from } => machine.handle_op_mismatch(op, from),
            ExecutorEvent::LinkLost { .. } => {}
            ExecutorEvent::Stalled { peer: other, direction } => {
                machine.handle_link_stalled(other, direction)
            }
            ExecutorEvent::Violation { peer: other, why } => {
                let what = format!("p{peer} accuses {} of {why:?}", other.short());
                self.oracle.report_violation(self.now, Guarantee::NoFalseAccusation, what);
            }
        }
    }

    fn handle_action(&mut self, peer: usize, action: PeerAction) {
        match action {
            PeerAction::DialMaster => {
                if self.peers[peer].control.take().is_some() {
                    self.turn_to_next_master(peer);
                }
                let delay = self.network.latency();
                self.after(delay, SimEvent::DialMaster(peer));
            }
            PeerAction::PreferMaster(addresses) => {
                match self.masters.iter().position(|m| addresses.contains(&m.address())) {
                    Some(index) => self.peers[peer].next_master = index,
                    None => self.turn_to_next_master(peer),
                }
            }
            PeerAction::Send { conn, message } => {
                self.network.send(self.now, conn, Node::Peer(peer), Packet::ToMaster(message));
            }
            PeerAction::Close { conn } => {
                self.network.close(self.now, conn, Node::Peer(peer));
                self.peers[peer].control.take_if(|current| *current == conn);
            }
            PeerAction::Link { member, epoch, .. } => self.want_link(peer, member.peer, epoch),
            PeerAction::UseRelays(_) => {}
            PeerAction::Unlink(other) => self.unlink(peer, other),
            PeerAction::Ping(other) => {
                let ping = Outgoing::Message(other, LinkMessage::Ping);
                self.queue_outgoing(peer, ping);
            }
            PeerAction::OpenEpoch(description) => self.open_epoch(peer, &description),
            PeerAction::CloseEpoch(epoch) => self.peers[peer].executor.close_epoch(epoch),
            PeerAction::StartOp { op, call, descriptor, network } => {
                self.start_op(peer, op, call, descriptor, network.as_deref());
            }
            PeerAction::CommitOp(op) => {
                let world = self.attributes_at(peer);
                self.oracle.op_committed(self.now, op, peer, world);
                if self.peers[peer].executor.commit(op).is_err() {
                    let what = format!("p{peer} must commit {op}, which is not done");
                    self.oracle.report_violation(self.now, Guarantee::NoFalseAccusation, what);
                }
            }
            PeerAction::AbortOp(op) => {
                self.peers[peer].executor.abort(op);
                self.alter_abort(peer, op);
            }
            PeerAction::SuspendOp(op) => self.suspend_op(peer, op),
            PeerAction::ResumeOp { op, call, descriptor, held } => {
                self.resume_op(peer, op, call, descriptor, &held);
            }
            PeerAction::SkipOp(op) => self.peers[peer].executor.decided(op),
            PeerAction::Probe { probe, peer: other, .. } => self.probe(peer, probe, other),
            PeerAction::Sync { call, number, assignment } => self.begin_sync(peer, call, number, assignment),
            PeerAction::StillWaiting(note) => self.log(|| format!("p{peer}: {note}")),
            PeerAction::Notify(event) => self.log(|| format!("p{peer}: {event}")),
            PeerAction::Complete { call, result } => self.complete(peer, call, result),
        }
    }

    /// The world sizes that the user of a peer sees.
    fn attributes_at(&self, peer: usize) -> Attributes {
        let world = self.peers[peer].machine.attributes();
        match self.planted_bug {
            Some(PlantedBug::StaleWorld) => self.peers[peer].stale_world.unwrap_or(world),
            _ => world,
        }
    }

    fn open_epoch(&mut self, peer: usize, description: &EpochDescription) {
        self.oracle.opened(self.now, peer, description);
        let state = &mut self.peers[peer];
        let me = description.rank_of(state.id).unwrap_or_default();
        state.program.leads = me == Rank(0);
        let membership = Membership {
            members: description.members.iter().map(|m| m.peer).collect(),
            me,
            shape: GroupShape::of(description),
            tuning: description.tuning,
        };
        if let Err(why) = state.executor.open_epoch(description.id, membership) {
            let what = format!("the executor of p{peer} rejected {}: {why}", description.id);
            self.oracle.report_violation(self.now, Guarantee::NoFalseAccusation, what);
        }
    }

    fn start_op(
        &mut self,
        peer: usize,
        op: OpId,
        call: CallId,
        descriptor: Descriptor,
        network: Option<&Network>,
    ) {
        let now = self.now;
        let state = &mut self.peers[peer];
        let Some(PendingCall::Reduce { buffer, op: slot, .. }) = state.pending.get_mut(&call) else { return };
        *slot = Some(op);
        let buffer = buffer.clone();
        if buffer.borrow().flips_result {
            self.flipped_results.insert((op, state.id));
        }
        let Some(membership) = state.executor.membership(op.epoch) else {
            let what = format!("p{peer}: {op} has no open epoch");
            return self.oracle.report_violation(now, Guarantee::NoFalseAccusation, what);
        };
        let members = membership.members.iter().filter_map(|m| self.by_id.get(m)).copied().collect();
        let (me, tuning) = (membership.me, &membership.tuning);
        let adapted = network.map(|network| membership.shape.clone().with_network(Some(network)));
        let shape = adapted.as_ref().unwrap_or(&membership.shape);
        let plan = choice::plan(&descriptor, &Layout::Even, me, shape, tuning);
        self.oracle.op_started(op, peer, buffer.borrow().contribution, members);
        self.run_plan(peer, op, descriptor, plan, |scratch| SymbolWorkspace::new(buffer, scratch));
    }

    /// Starts an operation with its plan.
    pub(super) fn run_plan(
        &mut self,
        peer: usize,
        op: OpId,
        descriptor: Descriptor,
        plan: Result<Plan, NoPlan>,
        workspace: impl FnOnce(u64) -> SymbolWorkspace,
    ) {
        let now = self.now;
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                let what = format!("p{peer} has no plan for {op}: {error}");
                return self.oracle.report_violation(now, Guarantee::NoFalseAccusation, what);
            }
        };
        let state = &mut self.peers[peer];
        let workspace = workspace(plan.scratch);
        let started =
            state.executor.start(state.clock.reading(now), op, descriptor, Arc::new(plan), workspace);
        if let Err(rejected) = started {
            let what = format!("the executor of p{peer} rejected {op}: {}", rejected.why);
            self.oracle.report_violation(now, Guarantee::NoFalseAccusation, what);
        }
    }
}
