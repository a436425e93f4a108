//! A peer's process: its machine, its executor and its sockets, all moved on by whoever waits for a call.

use crate::clock::Clock;
use crate::knock::Rejected;
use crate::link::{Arrival, Link};
use crate::medium::TcpMedium;
use crate::memory::{Buffers, Memory};
use crate::mesh::{LinkNews, Mesh};
use crate::random;
use crate::timing::{STALL_AFTER, timing};
use crate::uplink::{News, Uplink};
use ringfold_plan::choice;
use ringfold_plan::event::ExecutorEvent;
use ringfold_plan::executor::{Executor, Membership};
use ringfold_plan::medium::{Medium, SlotId};
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::id::{CallId, EpochId, GroupId, OpId, PeerId, Tag};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::message::Join;
use ringfold_proto::peer::{Completion, Failure, Peer, PeerAction, PeerConfig};
use ringfold_proto::time::Time;
use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Arrivals of one link that are handed over before the others get their turn.
const ARRIVALS_PER_TURN: usize = 64;

/// The driver.
pub struct PeerDriver {
    pub clock: Clock,
    pub machine: Peer,
    executor: Executor<Memory>,
    medium: TcpMedium,
    mesh: Mesh,
    uplink: Uplink,
    reductions: BTreeMap<CallId, Reduction>,
    ended: BTreeMap<CallId, Result<Completion, Failure>>,
    /// The members of the epochs that were opened, by name and in the order of their ranks.
    members: BTreeMap<EpochId, Vec<String>>,
    /// When the process gives up.
    end: Time,
}

/// A collective that was called.
struct Reduction {
    op: Option<OpId>,
    /// None while the executor has them.
    buffers: Option<Buffers>,
}

/// A collective that has ended.
pub struct Reduced {
    /// How.
    pub result: Result<Completion, Failure>,
    /// Who took part, if it was started.
    pub members: Vec<String>,
    /// The caller's memory, given back.
    pub buffers: Buffers,
}

impl PeerDriver {
    /// A peer that is not connected.
    pub fn new(
        master: SocketAddr,
        token: &str,
        name: &str,
        lifetime: Duration,
    ) -> Result<Self, Box<dyn Error>> {
        let id = PeerId(random::id()?);
        let mesh = Mesh::open(id)?;
        let addresses = vec![mesh.address()?];
        let join = Join { group: GroupId(0), name: name.to_owned(), host: 0, site: 0, addresses };
        let clock = Clock::start();
        Ok(Self {
            end: clock.now() + lifetime,
            clock,
            machine: Peer::new(PeerConfig { peer: id, join, timing: timing() }),
            executor: Executor::new(STALL_AFTER),
            medium: TcpMedium::default(),
            mesh,
            uplink: Uplink::new(master, token, id),
            reductions: BTreeMap::new(),
            ended: BTreeMap::new(),
            members: BTreeMap::new(),
        })
    }

    /// Makes a call and waits for its end.
    pub fn call(
        &mut self,
        make: impl FnOnce(&mut Peer, Time) -> Result<CallId, Failure>,
    ) -> Result<Result<Completion, Failure>, Box<dyn Error>> {
        let now = self.clock.now();
        match make(&mut self.machine, now) {
            Ok(call) => self.wait(call),
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// Starts a collective; the buffers come back from [`PeerDriver::finish`].
    pub fn start(&mut self, tag: Tag, descriptor: Descriptor, buffers: Buffers) -> Result<CallId, Failure> {
        let call = self.machine.collective(self.clock.now(), tag, descriptor)?;
        self.reductions.insert(call, Reduction { op: None, buffers: Some(buffers) });
        Ok(call)
    }

    /// Waits for a collective.
    pub fn finish(&mut self, call: CallId) -> Result<Reduced, Box<dyn Error>> {
        let result = self.wait(call)?;
        let reduction = self.reductions.remove(&call).ok_or("no collective was started by that call")?;
        let buffers = reduction.buffers.ok_or("a call ended while the executor had its buffers")?;
        let epoch = reduction.op.map(|op| op.epoch);
        let members = epoch.and_then(|epoch| self.members.get(&epoch).cloned()).unwrap_or_default();
        Ok(Reduced { result, members, buffers })
    }

    /// Says goodbye.
    pub fn leave(&mut self) -> Result<(), Box<dyn Error>> {
        self.machine.leave();
        self.pump(self.clock.now())
    }

    fn wait(&mut self, call: CallId) -> Result<Result<Completion, Failure>, Box<dyn Error>> {
        loop {
            if let Some(result) = self.ended.remove(&call) {
                return Ok(result);
            }
            self.turn()?;
        }
    }

    /// Moves on whatever can be moved, or rests for a moment.
    pub fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        let now = self.clock.now();
        if now >= self.end {
            return Err("the run did not end in time".into());
        }
        let mut moved = self.hear_master(now);
        moved |= self.make_links(now)?;
        moved |= self.read_links(now);
        if self.machine.poll_timeout().is_some_and(|at| at <= now) {
            self.machine.handle_timeout(now);
        }
        self.executor.handle_timeout(now);
        self.pump(now)?;
        self.clock.rest(moved);
        Ok(())
    }

    fn hear_master(&mut self, now: Time) -> bool {
        let news = self.uplink.turn(now);
        let moved = !news.is_empty();
        news.into_iter().for_each(|news| self.hear(now, news));
        moved
    }

    fn hear(&mut self, now: Time, news: News) {
        match news {
            News::Connected(conn) => self.machine.handle_connected(now, conn),
            News::DialFailed(Rejected { why, retryable }) => {
                self.machine.handle_dial_failed(now, &why, retryable);
            }
            News::Message(conn, message) => self.machine.handle_message(now, conn, *message),
            News::Lost(conn) => self.machine.handle_lost(now, conn),
        }
    }

    fn make_links(&mut self, now: Time) -> Result<bool, Box<dyn Error>> {
        let news = self.mesh.turn(now, self.uplink.run)?;
        let moved = !news.is_empty();
        for news in news {
            match news {
                LinkNews::Up(peer, socket) => {
                    self.medium.links.insert(peer, Link::new(socket));
                    self.executor.handle_link_up(now, peer);
                    self.machine.handle_link_up(peer);
                }
                LinkNews::Failed(peer) => self.machine.handle_link_failed(peer),
            }
        }
        Ok(moved)
    }

    /// Hands over what arrived, in the order of each link.
    fn read_links(&mut self, now: Time) -> bool {
        let mut moved = false;
        for peer in self.medium.links.keys().copied().collect::<Vec<_>>() {
            for _ in 0..ARRIVALS_PER_TURN {
                let Some(link) = self.medium.links.get_mut(&peer) else { break };
                match link.next(|header| self.executor.offer(peer, header)) {
                    Ok(None) => break,
                    Ok(Some(arrival)) => self.receive(now, peer, arrival),
                    Err(_) => self.lose_link(now, peer),
                }
                moved = true;
            }
        }
        moved
    }

    fn receive(&mut self, now: Time, from: PeerId, arrival: Arrival) {
        self.machine.handle_heard(from);
        match arrival {
            Arrival::Frame(header, payload) => {
                self.medium.land(SlotId { from, epoch: header.op.epoch, index: header.slot }, payload);
                self.executor.handle_frame(now, from, header);
            }
            Arrival::Discarded(header) => self.executor.handle_discarded(now, from, header),
            Arrival::Message(message) => self.executor.handle_link_message(now, from, message),
        }
    }

    /// A link broke, or its other end broke the rules.
    fn lose_link(&mut self, now: Time, peer: PeerId) {
        if self.medium.unlink(peer) {
            self.executor.handle_link_lost(peer);
            self.machine.handle_link_lost(now, peer);
        }
    }

    /// Lets machine and executor do all that they can do now.
    fn pump(&mut self, now: Time) -> Result<(), Box<dyn Error>> {
        loop {
            self.executor.poll(now, &mut self.medium);
            for broken in self.medium.flush() {
                self.lose_link(now, broken);
            }
            for ticket in std::mem::take(&mut self.medium.flushed) {
                self.executor.handle_flushed(now, ticket);
            }
            if let Some(event) = self.executor.poll_event() {
                self.note(now, event);
            } else if let Some(action) = self.machine.poll_action() {
                self.act(now, action)?;
            } else if !self.executor.wants_poll() {
                return Ok(());
            }
        }
    }

    fn note(&mut self, now: Time, event: ExecutorEvent<Memory>) {
        match event {
            ExecutorEvent::Done { op, .. } => self.machine.handle_op_done(op),
            ExecutorEvent::Committed { op, workspace } | ExecutorEvent::Quiesced { op, workspace } => {
                if let Some(reduction) = self.reductions.values_mut().find(|r| r.op == Some(op)) {
                    reduction.buffers = Some(workspace.into_buffers());
                }
                self.machine.handle_op_released(op);
            }
            ExecutorEvent::Mismatch { op, peer } => self.machine.handle_op_mismatch(op, peer),
            // The machine learns of lost links itself, and gives up what ran over them.
            ExecutorEvent::LinkLost { .. } => {}
            ExecutorEvent::Stalled { peer, direction } => self.machine.handle_link_stalled(peer, direction),
            ExecutorEvent::Violation { peer, .. } => self.lose_link(now, peer),
        }
    }

    fn act(&mut self, now: Time, action: PeerAction) -> Result<(), Box<dyn Error>> {
        match action {
            PeerAction::DialMaster => {
                if let Some(news) = self.uplink.dial(now) {
                    self.hear(now, news);
                }
            }
            PeerAction::Send { conn, message } => self.uplink.send(conn, &message),
            PeerAction::Close { conn } => self.uplink.close(conn),
            PeerAction::Link { member, .. } if self.medium.links.contains_key(&member.peer) => {
                self.machine.handle_link_up(member.peer);
            }
            PeerAction::Link { member, epoch, key } => self.mesh.wish(now, member, epoch, &key),
            PeerAction::Unlink(peer) => {
                self.mesh.forget(peer);
                if self.medium.unlink(peer) {
                    self.executor.handle_link_lost(peer);
                }
            }
            PeerAction::Ping(peer) => self.medium.send(peer, LinkMessage::Ping),
            PeerAction::OpenEpoch(description) => self.open_epoch(&description)?,
            PeerAction::CloseEpoch(epoch) => {
                self.executor.close_epoch(epoch);
                self.medium.retire(epoch);
            }
            PeerAction::StartOp { op, call, descriptor } => self.start_op(now, op, call, descriptor)?,
            PeerAction::CommitOp(op) => self.executor.commit(op)?,
            PeerAction::AbortOp(op) => self.executor.abort(op),
            PeerAction::SkipOp(op) => self.executor.decided(op),
            // The tracer's program never has anything measured or synced.
            PeerAction::Probe { probe, .. } => self.machine.handle_probed(probe, None, None),
            PeerAction::Sync { call, number, .. } => self.machine.handle_fetched(call, number, false),
            PeerAction::Complete { call, result } => {
                self.ended.insert(call, result);
            }
        }
        Ok(())
    }

    fn open_epoch(&mut self, description: &EpochDescription) -> Result<(), Box<dyn Error>> {
        let me = description.rank_of(self.machine.id()).ok_or("the epoch is not ours")?;
        let membership = Membership {
            members: description.members.iter().map(|member| member.peer).collect(),
            me,
            shape: GroupShape::of(description),
            tuning: description.tuning,
        };
        let names = description.members.iter().map(|member| member.name.clone()).collect();
        self.members.insert(description.id, names);
        Ok(self.executor.open_epoch(description.id, membership)?)
    }

    fn start_op(
        &mut self,
        now: Time,
        op: OpId,
        call: CallId,
        descriptor: Descriptor,
    ) -> Result<(), Box<dyn Error>> {
        let membership = self.executor.membership(op.epoch).ok_or("the operation's epoch is not open")?;
        let plan = choice::plan(&descriptor, membership.me, &membership.shape, &membership.tuning);
        let reduction = self.reductions.get_mut(&call).ok_or("nobody called for that operation")?;
        reduction.op = Some(op);
        let buffers = reduction.buffers.take().ok_or("the operation was started twice")?;
        let memory = Memory::new(buffers, descriptor, plan.scratch, membership.members.len());
        self.executor.start(now, op, descriptor, Arc::new(plan), memory).map_err(|refused| refused.why)?;
        Ok(())
    }
}
