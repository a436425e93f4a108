//! A group's data plane: ranks, plans, the executor, and the links that it works over.
//!
//! It knows nothing of masters and votes. Whoever drives it opens epochs, starts operations, and is told what came of
//! them; the elastic layer makes one epoch after the other, fixed ranks have one.

use crate::all_reduce::HostBuffers;
use crate::workspace::{Pool, TensorWorkspace};
use core::time::Duration;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::link::Link;
use ringfold_fabric::medium::{LinkMedium, Received};
use ringfold_fabric::mesh::{Mesh, MeshNews};
use ringfold_fabric::poller::Token;
use ringfold_fabric::reactor::Expected;
use ringfold_plan::choice;
use ringfold_plan::event::ExecutorEvent;
use ringfold_plan::executor::{Executor, Membership};
use ringfold_plan::layout::Layout;
use ringfold_plan::medium::Medium;
use ringfold_plan::plan::Plan;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::cause::Cause;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{EpochId, OpId, PeerId, Rank};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::message::Direction;
use ringfold_proto::time::Time;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;

use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// Plans that are kept, per epoch.
const PLANS_MAX: usize = 256;

/// Arrivals of one link that are handed over before the others get their turn.
const ARRIVALS_PER_TURN: usize = ringfold_fabric::limits::ARRIVALS_PER_TURN;

/// How often so many are taken from a link that is given up.
const LAST_TURNS_MAX: usize = 4096;

/// The data plane of one peer.
pub(crate) struct DataPlane {
    mesh: Mesh,
    executor: Executor<TensorWorkspace>,
    medium: LinkMedium<TensorWorkspace>,
    pool: Pool,
    plans: HashMap<(EpochId, Descriptor, Layout), Arc<Plan>>,
    /// Whether what is overwritten in place is kept until the operation is decided.
    restores: bool,
    /// What members of a group of fixed ranks said.
    said: VecDeque<PlaneEvent>,
    /// When members were last heard to say that they are alive.
    pinged: HashMap<PeerId, Time>,
    /// Those who said goodbye: what they sent is kept.
    leavers: BTreeSet<PeerId>,
    /// Operations whose result is not here.
    running: HashSet<OpId>,
    /// Members on this host, as far as their hosts tell.
    neighbours: usize,
    /// Links of which not all that has arrived was handed over. The poller knows nothing of what was read already.
    unread: BTreeSet<PeerId>,
}

/// What came of it.
pub(crate) enum PlaneEvent {
    /// The result is here, undecided yet.
    Done { op: OpId, tx_bytes: u64, rx_bytes: u64 },
    /// Nothing touches the memory of the operation any more.
    Released { op: OpId, buffers: HostBuffers },
    /// A link was made.
    LinkUp { peer: PeerId },
    /// No link could be made.
    NoLink { peer: PeerId },
    /// A member connected for another purpose than data.
    Visitor { peer: PeerId, purpose: Purpose, connection: BlockingConnection },
    /// A peer runs something else under the same name.
    Mismatch { op: OpId, peer: PeerId },
    /// Nothing moves on a link that owes something.
    Stalled { peer: PeerId, direction: Direction },
    /// A link broke, or its other end broke the rules.
    LinkLost { peer: PeerId, why: String },
    /// A member says that the group of fixed ranks is over.
    Aborted { cause: Cause },
    /// A member of a group of fixed ranks leaves.
    Goodbye { peer: PeerId },
    /// A member of a group of fixed ranks tells this one something.
    Note { peer: PeerId, topic: u64, text: String },
}

impl DataPlane {
    /// Without epochs and links.
    pub(crate) fn new(mesh: Mesh, stall_after: Duration, restores: bool) -> Self {
        Self {
            mesh,
            executor: Executor::new(stall_after),
            medium: LinkMedium::default(),
            pool: Pool::default(),
            plans: HashMap::new(),
            restores,
            said: VecDeque::new(),
            pinged: HashMap::new(),
            leavers: BTreeSet::new(),
            running: HashSet::new(),
            neighbours: 1,
            unread: BTreeSet::new(),
        }
    }

    /// Operations may start in this epoch.
    pub(crate) fn open_epoch(&mut self, description: &EpochDescription, me: PeerId) -> Result<(), String> {
        let me = description.rank_of(me).ok_or("the epoch is not ours")?;
        let host = description.members[me.index()].host;
        self.neighbours = description.members.iter().filter(|member| member.host == host).count();
        let membership = Membership {
            members: description.members.iter().map(|member| member.peer).collect(),
            me,
            shape: GroupShape::of(description),
            tuning: description.tuning,
        };
        self.executor.open_epoch(description.id, membership).map_err(|error| error.to_string())
    }

    /// The epoch is over; what is left in it is aborted.
    pub(crate) fn close_epoch(&mut self, epoch: EpochId) {
        self.executor.close_epoch(epoch);
        self.medium.retire(epoch);
        self.plans.retain(|(of, ..), _| *of != epoch);
    }

    /// Starts an operation, or gives its buffers back.
    pub(crate) fn start(
        &mut self,
        now: Time,
        op: OpId,
        descriptor: Descriptor,
        layout: &Layout,
        buffers: HostBuffers,
    ) -> Result<(), (String, HostBuffers)> {
        let Some(membership) = self.executor.membership(op.epoch) else {
            return Err(("its epoch is not open".into(), buffers));
        };
        let world = membership.members.len();
        let key = (op.epoch, descriptor.shared(), layout.clone());
        let plan = match self.plans.get(&key) {
            Some(plan) => plan.clone(),
            None => {
                let (me, shape, tuning) = (membership.me, &membership.shape, &membership.tuning);
                let plan = match choice::plan(&descriptor, layout, me, shape, tuning) {
                    Ok(plan) => plan,
                    Err(none) => return Err((none.to_string(), buffers)),
                };
                if self.plans.len() >= PLANS_MAX {
                    self.plans.clear();
                }
                self.plans.entry(key).or_insert(Arc::new(plan)).clone()
            }
        };
        let workspace =
            TensorWorkspace::new(buffers, descriptor, plan.scratch, world, self.restores, &mut self.pool);
        self.executor
            .start(now, op, descriptor, plan, workspace)
            .map_err(|refused| (refused.why.to_string(), refused.workspace.retire(&mut self.pool)))?;
        self.running.insert(op);
        Ok(())
    }

    /// The operation's result holds.
    pub(crate) fn commit(&mut self, op: OpId) {
        if self.executor.commit(op).is_err() {
            tracing::error!(%op, "committed without being done");
            self.executor.abort(op);
        }
    }

    /// The operation is void.
    pub(crate) fn abort(&mut self, op: OpId) {
        self.executor.abort(op);
    }

    /// The operation was decided without having been started here.
    pub(crate) fn skip(&mut self, op: OpId) {
        self.executor.decided(op);
    }

    /// What makes the links.
    pub(crate) fn mesh(&mut self) -> &mut Mesh {
        &mut self.mesh
    }

    /// What the mesh has to tell.
    fn next_of_mesh(&mut self, now: Time) -> Option<PlaneEvent> {
        Some(match self.mesh.next_news()? {
            MeshNews::Up(peer, link) => {
                self.link_up(now, peer, link);
                PlaneEvent::LinkUp { peer }
            }
            MeshNews::Failed(peer, why) => {
                tracing::warn!(peer = peer.short(), why, "no link can be made");
                PlaneEvent::NoLink { peer }
            }
            MeshNews::Visitor { peer, purpose, connection } => {
                PlaneEvent::Visitor { peer, purpose, connection }
            }
        })
    }

    fn link_up(&mut self, now: Time, peer: PeerId, link: Link) {
        tracing::debug!(peer = peer.short(), shared = link.is_shared(), "a link is made");
        self.medium.add(peer, link);
        self.executor.handle_link_up(now, peer);
        // What came on the heels of the handshake was read with it, or lies in memory.
        self.unread.insert(peer);
    }

    /// Whether there is one.
    pub(crate) fn has_link(&self, peer: PeerId) -> bool {
        self.medium.has(peer)
    }

    /// A link is given up. Says whether there was one.
    pub(crate) fn unlink(&mut self, peer: PeerId) -> bool {
        let had = self.medium.remove(peer);
        self.unread.remove(&peer);
        self.pinged.remove(&peer);
        if had {
            self.executor.handle_link_lost(peer);
        }
        had
    }

    /// Shows the other end that we are alive.
    pub(crate) fn ping(&mut self, peer: PeerId) {
        self.medium.send(peer, LinkMessage::Ping);
    }

    /// When the other end last showed that it is alive.
    pub(crate) fn pinged_at(&self, peer: PeerId) -> Option<Time> {
        self.pinged.get(&peer).copied()
    }

    /// Tells a member that the group is over.
    pub(crate) fn tell_abort(&mut self, peer: PeerId, epoch: EpochId, cause: Cause) {
        self.medium.send(peer, LinkMessage::Abort { epoch, cause });
    }

    /// Tells a member that we leave.
    pub(crate) fn say_goodbye(&mut self, peer: PeerId, epoch: EpochId) {
        self.medium.send(peer, LinkMessage::Goodbye { epoch });
    }

    /// Tells a member something, beside all operations.
    pub(crate) fn tell(&mut self, peer: PeerId, epoch: EpochId, topic: u64, text: String) {
        self.medium.send(peer, LinkMessage::Note { epoch, topic, text });
    }

    /// A member that said goodbye is gone. What it sent can still be taken up.
    pub(crate) fn deafen(&mut self, peer: PeerId) {
        self.unread.remove(&peer);
        self.medium.detach(peer);
    }

    /// Sends the rest on all links and closes them, by the deadline at the latest.
    pub(crate) fn close_links(&mut self, deadline: Instant) {
        self.medium.close(deadline);
    }

    /// Members that an operation waits for.
    pub(crate) fn awaits(&self, op: OpId) -> Vec<Rank> {
        self.executor.awaits(op)
    }

    /// Whether a member has begun to send what belongs to an operation that is not started here.
    pub(crate) fn is_offered(&self, op: OpId) -> bool {
        self.executor.is_offered(op)
    }

    /// Something can be done with a socket: whose link is to be read, if it belongs to one.
    pub(crate) fn handle_ready(&mut self, now: Time, token: Token) -> Option<PeerId> {
        match self.medium.peer_of(token) {
            Some(peer) => {
                self.medium.handle_ready(peer);
                Some(peer)
            }
            None => {
                self.mesh.handle_ready(now, token);
                None
            }
        }
    }

    /// Hands over what arrived on a link. Each frame is worked on while it is still in the cache, and what comes of
    /// it leaves at once.
    pub(crate) fn read_link(&mut self, now: Time, from: PeerId) -> io::Result<()> {
        self.unread.remove(&from);
        for _ in 0..ARRIVALS_PER_TURN {
            let executor = &self.executor;
            match self.medium.next(from, |header| executor.offer(from, header))? {
                None => return Ok(()),
                Some(Received::Frame(header)) => {
                    self.executor.handle_frame(now, from, header);
                    self.executor.poll(now, &mut self.medium);
                    self.flush(now);
                }
                Some(Received::Discarded(header)) => self.executor.handle_discarded(now, from, header),
                Some(Received::Message(LinkMessage::Abort { epoch, cause })) => {
                    if self.executor.membership(epoch).is_some() {
                        self.said.push_back(PlaneEvent::Aborted { cause });
                    }
                }
                Some(Received::Message(LinkMessage::Goodbye { epoch })) => {
                    if self.executor.membership(epoch).is_some() {
                        self.leavers.insert(from);
                        self.said.push_back(PlaneEvent::Goodbye { peer: from });
                    }
                }
                Some(Received::Message(LinkMessage::Note { epoch, topic, text })) => {
                    if self.executor.membership(epoch).is_some() {
                        self.said.push_back(PlaneEvent::Note { peer: from, topic, text });
                    }
                }
                Some(Received::Message(message)) => {
                    if message == LinkMessage::Ping {
                        self.pinged.insert(from, now);
                    }
                    self.executor.handle_link_message(now, from, message);
                }
            }
        }
        self.unread.insert(from);
        Ok(())
    }

    /// A turn begins. The links that are to be read, of which the poller tells nothing.
    pub(crate) fn begin_turn(&mut self) -> Vec<PeerId> {
        self.medium.cancel_sleep();
        let Self { medium, unread, .. } = self;
        unread.extend(medium.ready_shared());
        unread.iter().copied().collect()
    }

    /// Whether something has come of which the poller tells nothing.
    pub(crate) fn has_input(&self) -> bool {
        self.has_unread() || self.medium.ready_shared().next().is_some()
    }

    /// From now on the poller tells of all that comes. Says whether something has come already: then nobody may sleep.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        // What waited for company goes alone. A link that is broken is found so in the next turn.
        self.medium.hurry();
        let _ = self.medium.flush();
        // If a put left just now, an operation may be at its end, and nothing else would tell of it.
        self.medium.prepare_sleep() | self.has_unread() | self.medium.has_flushed()
    }

    /// What is about to come, and worth looking for.
    pub(crate) fn expects(&self) -> Expected {
        let ranks = self.neighbours.max(self.medium.local_count() + 1);
        if self.running.is_empty() || ranks > cores() {
            Expected::Nothing
        } else if self.medium.is_all_shared() {
            Expected::SharedMemory
        } else {
            Expected::Sockets
        }
    }

    /// Whether there is a core that no rank of this host needs.
    pub(crate) fn has_spare_core(&self) -> bool {
        self.neighbours.max(self.medium.local_count() + 1) < cores()
    }

    /// How many links go through memory.
    pub(crate) fn shared_links(&self) -> usize {
        self.medium.shared_count()
    }

    /// Whether there is one.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Lets mesh and executor do all that they can do now. What came of it is to be asked for.
    pub(crate) fn pump(&mut self, now: Time) -> Option<PlaneEvent> {
        loop {
            if let Some(event) = self.next_of_mesh(now) {
                return Some(event);
            }
            self.executor.poll(now, &mut self.medium);
            if let Some(peer) = self.flush(now) {
                // What its other end said before counts, but for one that talks for ever. A stream that was read to its
                // end says so once, without a look.
                let (mut looks, mut turns) = (2, 0..LAST_TURNS_MAX);
                while looks > 0 && turns.next().is_some() {
                    if self.read_link(now, peer).is_err() || !self.unread.contains(&peer) {
                        looks -= 1;
                    }
                }
                if self.leavers.contains(&peer) {
                    self.deafen(peer);
                } else {
                    self.unlink(peer);
                }
                self.said.push_back(PlaneEvent::LinkLost { peer, why: "nothing can be sent on it".into() });
            }
            if let Some(event) = self.executor.poll_event() {
                if let Some(event) = self.told(event) {
                    return Some(event);
                }
            } else if !self.executor.wants_poll() {
                return self.said.pop_front();
            }
        }
    }

    /// Sends what can be sent; a link that broke in doing so.
    fn flush(&mut self, now: Time) -> Option<PeerId> {
        let broken = self.medium.flush();
        while let Some(ticket) = self.medium.next_flushed() {
            self.executor.handle_flushed(now, ticket);
        }
        broken.first().copied()
    }

    fn told(&mut self, event: ExecutorEvent<TensorWorkspace>) -> Option<PlaneEvent> {
        Some(match event {
            ExecutorEvent::Done { op, tx_bytes, rx_bytes } => {
                self.running.remove(&op);
                PlaneEvent::Done { op, tx_bytes, rx_bytes }
            }
            ExecutorEvent::Committed { op, workspace } | ExecutorEvent::Quiesced { op, workspace } => {
                self.running.remove(&op);
                PlaneEvent::Released { op, buffers: workspace.retire(&mut self.pool) }
            }
            ExecutorEvent::Mismatch { op, peer } => PlaneEvent::Mismatch { op, peer },
            // Whoever told us of the loss gives up what ran over the link.
            ExecutorEvent::LinkLost { .. } => return None,
            ExecutorEvent::Stalled { peer, direction } => PlaneEvent::Stalled { peer, direction },
            ExecutorEvent::Violation { peer, why } => {
                self.unlink(peer);
                PlaneEvent::LinkLost { peer, why: why.to_string() }
            }
        })
    }

    /// Operations that have not let go of their memory.
    pub(crate) fn in_flight(&self) -> usize {
        self.executor.in_flight()
    }

    /// After which time something is due, here or at one of these times.
    pub(crate) fn next_timeout<const N: usize>(
        &self,
        clock: &Clock,
        due: [Option<Time>; N],
    ) -> Option<Duration> {
        if self.has_unread() {
            return Some(Duration::ZERO);
        }
        let own = [self.executor.poll_timeout(), self.mesh.poll_timeout()];
        let next = own.into_iter().chain(due).flatten().min();
        next.map(|at| at.since(clock.now()))
    }

    /// Time has passed.
    pub(crate) fn handle_time(&mut self, now: Time) {
        if self.executor.poll_timeout().is_some_and(|at| at <= now) {
            self.executor.handle_timeout(now);
        }
        if self.mesh.poll_timeout().is_some_and(|at| at <= now) {
            self.mesh.handle_timeout(now);
        }
    }
}

/// Cores that this process may use.
fn cores() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    *CORES
}
