//! A peer's process: the driver around its machine and its executor, and its user's program.

use super::{Happening, World};
use crate::buffer::{Buffer, SharedBuffer, SymbolWorkspace};
use crate::medium::{Outgoing, SimMedium};
use crate::network::{Node, Packet, Transit, Wire};
use crate::oracle::{Promise, SyncSeen};
use crate::program::{Command, Program, Reply};
use crate::sabotage::Sabotage;
use crate::symbol::Contribution;
use ringfold_plan::choice;
use ringfold_plan::event::ExecutorEvent;
use ringfold_plan::executor::{Executor, Membership, Verdict};
use ringfold_plan::layout::Layout;
use ringfold_plan::medium::SlotId;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::cause::Cause;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::{Attributes, EpochDescription};
use ringfold_proto::id::{CallId, ConnId, EpochId, GroupId, OpId, PeerId, Rank, Tag};
use ringfold_proto::message::{Answer, Join, Phase, ToPeer};
use ringfold_proto::peer::{Completion, Failure, Peer, PeerAction, PeerConfig};
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::shared_state::Assignment;
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// What a program waits for.
pub(super) enum Pending {
    Plain(Time),
    Reduce { tag: Tag, buffer: SharedBuffer, op: Option<OpId>, since: Time },
}

/// A peer's process.
pub(super) struct SimPeer {
    pub id: PeerId,
    pub group: u32,
    pub alive: bool,
    pub machine: Peer,
    pub executor: Executor<SymbolWorkspace>,
    pub medium: SimMedium,
    pub program: Program,
    pub control: Option<Wire>,
    pub links: BTreeMap<PeerId, Wire>,
    /// What waits to be transmitted to each peer.
    pub lines: BTreeMap<PeerId, VecDeque<Outgoing>>,
    /// Peers that a link is wanted with.
    pub wishes: BTreeMap<PeerId, EpochId>,
    pub pending: BTreeMap<CallId, Pending>,
    /// The sync that is under way after its election.
    pub syncing: Option<(CallId, u64, Assignment)>,
    pub sync_round: u64,
    /// Its state was rejected, and it makes no calls since then; in which life of the master.
    pub silent_since: Option<(Time, u64)>,
    /// The world sizes after the last call that was no successful collective, for a planted bug.
    pub stale_world: Option<Attributes>,
    /// Stopped or slow until then; what happens meanwhile waits in the inbox.
    pub busy_until: Time,
    pub slowness: Duration,
    pub inbox: VecDeque<Happening>,
    wake_at: Option<Time>,
    timer_at: Option<Time>,
    /// Buffers that were given back: nothing may touch them any more.
    past_buffers: Vec<SharedBuffer>,
}

impl SimPeer {
    /// For reports.
    pub fn status(&self) -> String {
        let epoch = self.machine.epoch().map(|e| format!("{} of {}", e.id, e.members.len()));
        format!("member {}, {:?}, healthy {:?}", self.machine.is_member(), epoch, self.program.healthy.last())
    }
}

impl World {
    pub(super) fn spawn(&mut self, group: u32) {
        let index = self.peers.len();
        let id = PeerId(self.chance.bits128());
        let join = Join {
            group: GroupId(group),
            name: format!("p{index}"),
            host: self.chance.between(1, 5),
            site: 0,
            addresses: Vec::new(),
        };
        let mut program = Program::new(self.scenario.seed, index, self.scenario.habits.clone());
        program.calm = self.calm;
        let machine = Peer::new(PeerConfig { peer: id, join, timing: self.scenario.timing });
        let commands = program.begin();
        self.peers.push(SimPeer {
            id,
            group,
            alive: true,
            machine,
            executor: Executor::new(self.scenario.stall_after),
            medium: SimMedium::default(),
            program,
            control: None,
            links: BTreeMap::new(),
            lines: BTreeMap::new(),
            wishes: BTreeMap::new(),
            pending: BTreeMap::new(),
            syncing: None,
            sync_round: 0,
            silent_since: None,
            stale_world: None,
            busy_until: Time::ZERO,
            slowness: Duration::ZERO,
            inbox: VecDeque::new(),
            wake_at: None,
            timer_at: None,
            past_buffers: Vec::new(),
        });
        self.by_id.insert(id, index);
        self.note(|| format!("p{index}: starts, wants to join group {group} ({})", id.short()));
        self.carry_out(index, commands);
        self.pump(index);
    }

    /// Something concerns a peer: now, or when it is no longer stopped or slow.
    pub(super) fn for_peer(&mut self, peer: usize, what: Happening) {
        let state = &mut self.peers[peer];
        if !state.alive {
            return;
        }
        if state.busy_until > self.now || !state.inbox.is_empty() {
            state.inbox.push_back(what);
            return self.wake_later(peer);
        }
        self.process(peer, what);
    }

    pub(super) fn wake(&mut self, peer: usize) {
        if self.peers[peer].wake_at.is_some_and(|at| at <= self.now) {
            self.peers[peer].wake_at = None;
        }
        while self.peers[peer].alive && self.peers[peer].busy_until <= self.now {
            let Some(what) = self.peers[peer].inbox.pop_front() else { return };
            self.process(peer, what);
        }
        if self.peers[peer].alive && !self.peers[peer].inbox.is_empty() {
            self.wake_later(peer);
        }
    }

    fn wake_later(&mut self, peer: usize) {
        let at = self.peers[peer].busy_until.max(self.now);
        if self.peers[peer].wake_at.is_none_or(|set| at < set) {
            self.peers[peer].wake_at = Some(at);
            self.at(at, Happening::Wake(peer));
        }
    }

    fn process(&mut self, peer: usize, what: Happening) {
        let now = self.now;
        match what {
            Happening::Transit(Transit::Deliver { wire, packet, .. }) => {
                self.peer_receives(peer, wire, packet)
            }
            Happening::Timer(_) => {
                let state = &mut self.peers[peer];
                state.timer_at = None;
                if state.machine.poll_timeout().is_some_and(|at| at <= now) {
                    state.machine.handle_timeout(now);
                }
                state.executor.handle_timeout(now);
            }
            Happening::Replied(_, reply) => self.reply(peer, reply),
            Happening::Transmit(_, to) => self.transmit(peer, to),
            Happening::DialMaster(_) => self.dial_master(peer),
            Happening::Knock { to, epoch, give_up, .. } => self.knock(peer, to, epoch, give_up),
            Happening::Probed { probe, forward, backward, .. } => {
                self.peers[peer].machine.handle_probed(probe, forward, backward);
            }
            Happening::Fetch { call, tries, .. } => self.fetch(peer, call, tries),
            _ => {}
        }
        self.pump(peer);
        let state = &mut self.peers[peer];
        if state.slowness > Duration::ZERO {
            state.busy_until = now + state.slowness;
        }
    }

    /// Moves messages, events and actions on until nothing moves.
    pub(super) fn pump(&mut self, peer: usize) {
        while self.peers[peer].alive {
            let now = self.now;
            let state = &mut self.peers[peer];
            state.executor.poll(now, &mut state.medium);
            let outgoing = std::mem::take(&mut state.medium.outgoing);
            if !outgoing.is_empty() {
                outgoing.into_iter().for_each(|o| self.put_on_wire(peer, o));
            } else if let Some(event) = state.executor.poll_event() {
                self.executor_says(peer, event);
            } else if let Some(action) = state.machine.poll_action() {
                self.act(peer, action);
            } else {
                break;
            }
        }
        self.ship();
        let state = &mut self.peers[peer];
        let at = [state.machine.poll_timeout(), state.executor.poll_timeout()].into_iter().flatten().min();
        if let Some(at) = at.filter(|_| state.alive)
            && state.timer_at.is_none_or(|set| at < set)
        {
            state.timer_at = Some(at);
            self.at(at, Happening::Timer(Node::Peer(peer)));
        }
        self.look_at_buffers(peer);
    }

    fn peer_receives(&mut self, peer: usize, wire: Wire, packet: Packet) {
        let from = self.network.other_end(wire, Node::Peer(peer));
        match packet {
            Packet::ToPeer(message) => {
                if let ToPeer::Answer { phase: Phase::Sync, round, answer: Answer::Synced(_), .. } =
                    &message.message
                {
                    self.peers[peer].sync_round = *round;
                }
                self.peers[peer].machine.handle_message(self.now, ConnId(wire.0), *message);
            }
            Packet::Data(header, symbols) => {
                if let Some(Node::Peer(from)) = from {
                    self.frame_arrives(peer, from, *header, symbols);
                }
            }
            Packet::Link(message) => {
                if let Some(Node::Peer(from)) = from {
                    let from = self.peers[from].id;
                    for message in self.sabotage_message(peer, from, message) {
                        let state = &mut self.peers[peer];
                        state.machine.handle_heard(from);
                        state.executor.handle_link_message(self.now, from, message);
                    }
                }
            }
            Packet::End => {
                self.network.close(self.now, wire, Node::Peer(peer));
                self.peer_lost(peer, wire);
            }
            Packet::ToMaster(_) => {}
        }
    }

    fn frame_arrives(
        &mut self,
        peer: usize,
        from: usize,
        header: DataHeader,
        symbols: Vec<crate::symbol::Symbol>,
    ) {
        let from = self.peers[from].id;
        let Some(header) = self.sabotage_frame(peer, header) else { return };
        let now = self.now;
        let state = &mut self.peers[peer];
        state.machine.handle_heard(from);
        let verdict = state.executor.offer(from, &header);
        state.medium.land(SlotId { from, epoch: header.op.epoch, index: header.slot }, symbols);
        match verdict {
            Verdict::Place => state.executor.handle_frame(now, from, header),
            Verdict::Discard => state.executor.handle_discarded(now, from, header),
            Verdict::Violation(why) => {
                let what = format!("p{peer} accuses {} of {why:?} with {header:?}", from.short());
                self.oracle.accuse(now, Promise::NobodyIsAccused, what);
            }
        }
    }

    /// What goes out to one peer waits in one line, data and messages alike.
    fn put_on_wire(&mut self, peer: usize, outgoing: Outgoing) {
        let (Outgoing::Frame(to, ..) | Outgoing::Message(to, _)) = &outgoing;
        let to = *to;
        let line = self.peers[peer].lines.entry(to).or_default();
        line.push_back(outgoing);
        if line.len() == 1 {
            let delay = Duration::from_nanos(self.chance.between(0, 500_000));
            self.after(delay, Happening::Transmit(peer, to));
        }
    }

    /// Memory is read when a frame leaves, not before; from then on the put is flushed.
    fn transmit(&mut self, peer: usize, to: PeerId) {
        for _ in 0..self.chance.between(1, 5) {
            let state = &mut self.peers[peer];
            let Some(outgoing) = state.lines.get_mut(&to).and_then(VecDeque::pop_front) else { return };
            let wire = state.links.get(&to).copied();
            let packet = match outgoing {
                Outgoing::Message(_, message) => Packet::Link(message),
                Outgoing::Frame(_, header, ticket) => {
                    let Some((op, payload)) = state.medium.unflushed.remove(&ticket) else { continue };
                    let symbols = payload.transmit(state.medium.cancelled.contains(&op));
                    state.executor.handle_flushed(self.now, ticket);
                    Packet::Data(header, symbols)
                }
            };
            if let Some(wire) = wire {
                self.network.send(self.now, wire, Node::Peer(peer), packet);
            }
        }
        if self.peers[peer].lines.get(&to).is_some_and(|line| !line.is_empty()) {
            let delay = Duration::from_nanos(self.chance.between(0, 500_000));
            self.after(delay, Happening::Transmit(peer, to));
        }
    }

    fn executor_says(&mut self, peer: usize, event: ExecutorEvent<SymbolWorkspace>) {
        self.note(|| format!("p{peer}: executor: {event}"));
        let machine = &mut self.peers[peer].machine;
        match event {
            ExecutorEvent::Done { op, .. } => machine.handle_op_done(op),
            ExecutorEvent::Committed { op, .. } | ExecutorEvent::Quiesced { op, .. } => {
                machine.handle_op_released(op)
            }
            ExecutorEvent::Mismatch { op, peer: from } => machine.handle_op_mismatch(op, from),
            ExecutorEvent::LinkLost { .. } => {}
            ExecutorEvent::Stalled { peer: other, direction } => {
                machine.handle_link_stalled(other, direction)
            }
            ExecutorEvent::Violation { peer: other, why } => {
                let what = format!("p{peer} accuses {} of {why:?}", other.short());
                self.oracle.accuse(self.now, Promise::NobodyIsAccused, what);
            }
        }
    }

    fn act(&mut self, peer: usize, action: PeerAction) {
        match action {
            PeerAction::DialMaster => {
                let delay = self.network.latency();
                self.after(delay, Happening::DialMaster(peer));
            }
            PeerAction::Send { conn, message } => {
                self.network.send(self.now, Wire(conn.0), Node::Peer(peer), Packet::ToMaster(message));
            }
            PeerAction::Close { conn } => {
                self.network.close(self.now, Wire(conn.0), Node::Peer(peer));
                self.peers[peer].control.take_if(|wire| wire.0 == conn.0);
            }
            PeerAction::Link { member, epoch, .. } => self.wish(peer, member.peer, epoch),
            PeerAction::Unlink(other) => self.unlink(peer, other),
            PeerAction::Ping(other) => {
                let ping = Outgoing::Message(other, ringfold_proto::link_message::LinkMessage::Ping);
                self.put_on_wire(peer, ping);
            }
            PeerAction::OpenEpoch(description) => self.open_epoch(peer, &description),
            PeerAction::CloseEpoch(epoch) => self.peers[peer].executor.close_epoch(epoch),
            PeerAction::StartOp { op, call, descriptor } => self.start_op(peer, op, call, descriptor),
            PeerAction::CommitOp(op) => {
                let world = self.attributes_at(peer);
                self.oracle.op_committed(self.now, op, peer, world);
                if self.peers[peer].executor.commit(op).is_err() {
                    let what = format!("p{peer} is to commit {op}, which is not done");
                    self.oracle.accuse(self.now, Promise::NobodyIsAccused, what);
                }
            }
            PeerAction::AbortOp(op) => {
                self.peers[peer].executor.abort(op);
                self.sabotage_abort(peer, op);
            }
            PeerAction::SkipOp(op) => self.peers[peer].executor.decided(op),
            PeerAction::Probe { probe, peer: other, .. } => self.probe(peer, probe, other),
            PeerAction::Sync { call, number, assignment } => self.begin_sync(peer, call, number, assignment),
            PeerAction::StillWaiting(note) => self.note(|| format!("p{peer}: {note}")),
            PeerAction::Complete { call, result } => self.complete(peer, call, result),
        }
    }

    /// The world sizes that a peer's user sees.
    fn attributes_at(&self, peer: usize) -> Attributes {
        let world = self.peers[peer].machine.attributes();
        match self.sabotage {
            Some(Sabotage::StaleWorld) => self.peers[peer].stale_world.unwrap_or(world),
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
            let what = format!("p{peer}'s executor does not open {}: {why}", description.id);
            self.oracle.accuse(self.now, Promise::NobodyIsAccused, what);
        }
    }

    fn start_op(&mut self, peer: usize, op: OpId, call: CallId, descriptor: Descriptor) {
        let now = self.now;
        let state = &mut self.peers[peer];
        let Some(Pending::Reduce { buffer, op: slot, .. }) = state.pending.get_mut(&call) else { return };
        *slot = Some(op);
        let Some(membership) = state.executor.membership(op.epoch) else {
            return self.oracle.accuse(
                now,
                Promise::NobodyIsAccused,
                format!("p{peer}: {op} has no open epoch"),
            );
        };
        let members = membership.members.iter().filter_map(|m| self.by_id.get(m)).copied().collect();
        let (me, shape, tuning) = (membership.me, &membership.shape, &membership.tuning);
        let plan = match choice::plan(&descriptor, &Layout::Even, me, shape, tuning) {
            Ok(plan) => plan,
            Err(none) => {
                let what = format!("p{peer} has no plan for {op}: {none}");
                return self.oracle.accuse(now, Promise::NobodyIsAccused, what);
            }
        };
        let workspace = SymbolWorkspace::new(buffer.clone(), plan.scratch);
        self.oracle.op_started(op, peer, buffer.borrow().contribution, members);
        let started = state.executor.start(now, op, descriptor, Arc::new(plan), workspace);
        if let Err(refused) = started {
            let what = format!("p{peer}'s executor does not start {op}: {}", refused.why);
            self.oracle.accuse(now, Promise::NobodyIsAccused, what);
        }
    }

    fn complete(&mut self, peer: usize, call: CallId, result: Result<Completion, Failure>) {
        self.note(|| match &result {
            Ok(done) => format!("p{peer}: {call} ends: {done:?}"),
            Err(why) => format!("p{peer}: {call} fails: {why}"),
        });
        self.oracle.returned(peer, call);
        self.peers[peer].syncing.take_if(|(c, ..)| *c == call);
        let Some(pending) = self.peers[peer].pending.remove(&call) else { return };
        self.look_at_failure(peer, &pending, &result);
        let reply = match pending {
            Pending::Plain(_) => {
                self.look_at_sync(peer, call, &result);
                Reply::Call(result)
            }
            Pending::Reduce { tag, buffer, op, .. } => {
                let committed = match &result {
                    Ok(_) => Some(true),
                    Err(Failure::Aborted(_)) => Some(false),
                    Err(_) => None,
                };
                if let Some(op) = op {
                    self.oracle.op_ended(self.now, op, peer, &buffer, committed);
                }
                let digest = buffer.borrow().result().iter().fold(1_u64, |d, s| d.rotate_left(5) ^ s.shape);
                buffer.borrow_mut().returned = true;
                self.peers[peer].past_buffers.push(buffer);
                let world = |done| if let Completion::Reduced { world } = done { world } else { 0 };
                Reply::Reduce(tag, result.map(|done| (world(done), digest)))
            }
        };
        self.reply(peer, reply);
    }

    fn reply(&mut self, peer: usize, reply: Reply) {
        if matches!(reply, Reply::Call(Ok(_)) | Reply::Reduce(_, Err(_))) {
            self.peers[peer].stale_world = Some(self.peers[peer].machine.attributes());
        }
        let commands = self.peers[peer].program.reply(reply);
        self.carry_out(peer, commands);
    }

    /// Makes the calls that a program wants.
    fn carry_out(&mut self, peer: usize, commands: Vec<Command>) {
        let now = self.now;
        for command in commands {
            self.note(|| format!("p{peer}: program: {command:?}"));
            let what = format!("{command:?}");
            let machine = &mut self.peers[peer].machine;
            let mut patience = self.scenario.timing.wait_max;
            let called = match command {
                Command::Connect => {
                    patience = Duration::from_secs(30);
                    machine.connect(now, Some(patience))
                }
                Command::Topology => machine.update_topology(now, None),
                Command::Pending => machine.are_peers_pending(now, None),
                Command::Optimise => machine.optimize_topology(now, None),
                Command::Sync(offer) => machine.sync_shared_state(now, None, offer),
                Command::Think(pause) => {
                    self.after(pause, Happening::Replied(peer, Reply::Thought));
                    continue;
                }
                Command::Silence(pause) => {
                    self.peers[peer].silent_since = Some((self.now, self.oracle.sync_life()));
                    self.after(pause, Happening::Replied(peer, Reply::Thought));
                    continue;
                }
                Command::Exit => return self.exit(peer),
                Command::Reduce { tag, count, in_place } => {
                    self.call_reduce(peer, tag, count, in_place);
                    continue;
                }
            };
            match called {
                Ok(call) => {
                    self.peers[peer].pending.insert(call, Pending::Plain(now));
                    self.oracle.called(peer, call, what, self.due(patience));
                }
                // A moment passes, so that a program that tries again at once does not stop time.
                Err(why) => {
                    self.after(Duration::from_millis(1), Happening::Replied(peer, Reply::Call(Err(why))));
                }
            }
        }
    }

    fn call_reduce(&mut self, peer: usize, tag: Tag, count: u64, in_place: bool) {
        let descriptor = Descriptor::all_reduce(count, DType::F32, ReduceOp::Avg);
        match self.peers[peer].machine.collective(self.now, tag, descriptor) {
            Ok(call) => {
                self.contributions += 1;
                let buffer = Buffer::new(Contribution(self.contributions), count, in_place);
                buffer.borrow_mut().forgets_to_restore = self.sabotage == Some(Sabotage::SkipRestore);
                let pending = Pending::Reduce { tag, buffer, op: None, since: self.now };
                self.peers[peer].pending.insert(call, pending);
                let due = self.due(self.scenario.timing.wait_max);
                self.oracle.called(peer, call, format!("reduce {tag}"), due);
            }
            Err(why) => {
                let reply = Reply::Reduce(tag, Err(why));
                self.after(Duration::from_millis(1), Happening::Replied(peer, reply));
            }
        }
    }

    /// When a call must have returned: its patience, the grace that acting phases have, and some slack.
    fn due(&self, patience: Duration) -> Time {
        self.now + patience + self.scenario.timing.answer_grace + Duration::from_secs(2)
    }

    fn exit(&mut self, peer: usize) {
        let group = self.peers[peer].group;
        self.die(peer, "exits");
        let delay = Duration::from_millis(self.chance.between(10, 600));
        self.after(delay, Happening::Respawn(group));
    }

    /// When the trouble is over and nobody strays, live peers let each other down no more.
    fn look_at_failure(&mut self, peer: usize, pending: &Pending, result: &Result<Completion, Failure>) {
        let since = match pending {
            Pending::Plain(since) | Pending::Reduce { since, .. } => *since,
        };
        if let Err(Failure::Aborted(cause) | Failure::VoteFailed(cause)) = result
            && let Cause::Timeout { waited_for } = &**cause
            && let Some(silent) = waited_for.iter().find(|who| self.is_rejected_since(who.peer, since))
        {
            let what = format!("p{peer} waited for {silent}, whose state was rejected before");
            return self.oracle.accuse(self.now, Promise::NobodyWaitsForRejected, what);
        }
        let calm =
            since >= self.scenario.calm_at + super::SETTLING && self.scenario.habits.strays_per_mille == 0;
        let what = match result {
            Err(Failure::Aborted(cause) | Failure::VoteFailed(cause)) => match **cause {
                Cause::Timeout { .. } | Cause::LinkLost { .. } | Cause::Mismatch { .. } if calm => {
                    cause.to_string()
                }
                _ => return,
            },
            Err(failure) => match failure.protocol_violation() {
                Some(how) => how.to_string(),
                None => return,
            },
            Ok(_) => return,
        };
        self.oracle.accuse(
            self.now,
            Promise::NobodyIsAccused,
            format!("p{peer} failed although all was well: {what}"),
        );
    }

    /// Whether a peer makes no calls since before that time because its state was rejected. A master that restarted since
    /// does not know of it.
    fn is_rejected_since(&self, peer: PeerId, time: Time) -> bool {
        // The master takes a planted vote for a call of the peer.
        if let Some(Sabotage::CommitWithoutLastVote | Sabotage::CountVoteTwice) = self.sabotage {
            return false;
        }
        let state = self.by_id.get(&peer).map(|p| &self.peers[*p]);
        let silent = state.and_then(|p| p.silent_since);
        silent.is_some_and(|(since, life)| since <= time && life == self.oracle.sync_life())
    }

    fn look_at_sync(&mut self, peer: usize, call: CallId, result: &Result<Completion, Failure>) {
        if let Ok(Completion::Synced(revision)) = result {
            let state = &self.peers[peer];
            let (group, round) = (GroupId(state.group), state.sync_round);
            let contents = state.program.contents.clone();
            let life = self.sync_lives.get(&(Some(Node::Peer(peer)), call)).copied().unwrap_or(0);
            let synced = SyncSeen { life, group, round, revision: *revision, contents };
            self.oracle.sync_ended(self.now, peer, synced);
        }
    }

    fn look_at_buffers(&mut self, peer: usize) {
        let buffers = std::mem::take(&mut self.peers[peer].past_buffers);
        for buffer in &buffers {
            if !buffer.borrow().violations.is_empty() {
                self.oracle.buffer_touched(self.now, peer, buffer);
            }
        }
        // A buffer that nobody else holds can't be touched any more.
        self.peers[peer].past_buffers =
            buffers.into_iter().filter(|b| std::rc::Rc::strong_count(b) > 1).collect();
    }
}
