//! A group's data plane: ranks, plans, the executor, and links.
//!
//! It knows no master and no votes. Its driver opens epochs, starts operations and takes their events. The elastic layer
//! has one epoch after the other, a group of fixed ranks has one.

use crate::all_reduce::HostBuffers;
use crate::device_plan::DevicePlan;
use crate::staging::piece_order;
use crate::workspace::{ErrorFeedback, FinalRanges, Pool, Residual, TensorWorkspace};
use core::time::Duration;
use foldhash::{HashMap, HashSet};
use ringfold_fabric::clock::Clock;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::link::Link;
use ringfold_fabric::medium::{LinkMedium, Received};
use ringfold_fabric::memory::Memory;
use ringfold_fabric::mesh::{Mesh, MeshEvent};
use ringfold_fabric::poller::Token;
use ringfold_fabric::reactor::Expected;
use ringfold_fabric::slots::SlotPool;
use ringfold_plan::choice;
use ringfold_plan::event::ExecutorEvent;
use ringfold_plan::executor::{Executor, Membership};
use ringfold_plan::layout::Layout;
use ringfold_plan::medium::Medium;
use ringfold_plan::ownership::Holding;
use ringfold_plan::parts::Chunking;
use ringfold_plan::plan::Plan;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::cause::Cause;
use ringfold_proto::cores::{CoreShare, each_has_a_core};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::epoch::{EpochDescription, Member};
use ringfold_proto::event::LinkTransport;
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{EpochId, OpId, PeerId, Rank, Tag};
use ringfold_proto::link_message::{DeviceStage, LinkMessage, RankActivity};
use ringfold_proto::message::Direction;
use ringfold_proto::network::{Network, Path};
use ringfold_proto::time::Time;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Plans that are kept, per epoch.
const PLANS_MAX: usize = 256;

/// Arrivals of one link that are processed before the others get their turn.
const ARRIVALS_PER_TURN: usize = ringfold_fabric::limits::ARRIVALS_PER_TURN;

/// How often that number is read from a link that is closed.
const LAST_TURNS_MAX: usize = 4096;

/// The data plane of one peer.
pub(crate) struct DataPlane {
    mesh: Mesh,
    executor: Executor<TensorWorkspace>,
    medium: LinkMedium<TensorWorkspace>,
    pool: Pool,
    /// Plans, by the network that they were chosen for; 0 is the epoch's.
    plans: HashMap<(EpochId, u64, Descriptor, Layout), Arc<Plan>>,
    /// As `plans`, for operations in device memory; none for those that have to run in host memory.
    device_plans: HashMap<(EpochId, u64, Descriptor), Option<Arc<DevicePlan>>>,
    /// The networks of tags that have another one than the epoch, and the shapes of the group with them.
    networks: HashMap<(EpochId, Tag), u64>,
    shapes: HashMap<(EpochId, u64), GroupShape>,
    /// Whether in-place buffers are restored if an operation fails.
    restores: bool,
    /// Messages of members of a group of fixed ranks.
    said: VecDeque<PlaneEvent>,
    /// When the last ping of a member arrived.
    pinged: HashMap<PeerId, Time>,
    /// Members that have left: what they sent is kept.
    leavers: BTreeSet<PeerId>,
    /// Operations that are not done.
    running: HashSet<OpId>,
    /// The members, whether each has this one's host id, and the cores that it may use. This one is the last.
    core_shares: Vec<(PeerId, bool, CoreShare)>,
    has_own_core: bool,
    has_spare_core: bool,
    /// Links with buffered arrivals, which the poller does not report.
    unread: BTreeSet<PeerId>,
    /// Quantisation errors that the last committed operation of each tag has left.
    residuals: HashMap<Tag, Residual>,
    /// What is here of aborted operations that may be resumed, until their memory is free.
    suspended: HashMap<OpId, Holding>,
    /// For tests: operations that compare results until one whose result gets a flipped bit.
    faulty_after: Option<u64>,
}

/// What an operation leaves that may be resumed.
pub(crate) struct KeptContributions {
    pub(crate) holding: Holding,
    /// Where it is.
    pub(crate) scratch: Memory,
}

/// What an operation does besides its collective.
#[derive(Default)]
pub(crate) struct OpOptions {
    /// Its quantisation errors are carried over to the next operation of its tag.
    pub(crate) feedback: bool,
    /// Where it reports which parts of its result are final.
    pub(crate) finals: Option<Arc<FinalRanges>>,
    /// The scratch memory of the operation that it resumes.
    pub(crate) resumed: Option<Memory>,
}

/// An event of the data plane.
pub(crate) enum PlaneEvent {
    /// The result is complete, and not decided yet; with its digest, if the operation compares results.
    Done { op: OpId, tx_bytes: u64, rx_bytes: u64, digest: Option<u64> },
    /// The memory of the operation is no longer accessed.
    Released { op: OpId, buffers: HostBuffers },
    /// The same, of an operation that may be resumed.
    Suspended { op: OpId, buffers: HostBuffers, kept: KeptContributions },
    /// A link was made.
    LinkUp { peer: PeerId, transport: LinkTransport },
    /// No link could be made.
    NoLink { peer: PeerId, why: String },
    /// A member connected for another purpose than data.
    Visitor { peer: PeerId, purpose: Purpose, connection: BlockingConnection },
    /// A peer runs another operation under the same id.
    Mismatch { op: OpId, peer: PeerId },
    /// A payload of a peer does not match its checksum.
    Corrupted { op: OpId, peer: PeerId },
    /// A link with pending data makes no progress.
    Stalled { peer: PeerId, direction: Direction },
    /// A link broke, or its other end violated the protocol.
    LinkLost { peer: PeerId, why: String },
    /// A member has aborted the group of fixed ranks.
    Aborted { cause: Cause },
    /// A member of a group of fixed ranks leaves.
    Goodbye { peer: PeerId },
    /// A note of a member of a group of fixed ranks.
    Note { peer: PeerId, topic: u64, text: String },
    /// A member of a group of fixed ranks asks what this one does.
    Inquiry { peer: PeerId },
    /// What a member of a group of fixed ranks does.
    Activity { peer: PeerId, activity: RankActivity },
    /// A member of an elastic run has reached a stage of an operation in device memory.
    Device { peer: PeerId, op: OpId, stage: DeviceStage },
}

/// Elements of scratch for the share of a lost member, so that a resumed operation need not copy what it holds.
fn spare_scratch(plan: &Plan, descriptor: &Descriptor, world: usize) -> u64 {
    let share = || descriptor.count.div_ceil(world as u64) + world as u64;
    plan.resumption.as_ref().map_or(0, |_| share())
}

impl DataPlane {
    /// Without epochs and links.
    pub(crate) fn new(mesh: Mesh, stall_after: Duration, restores: bool) -> Self {
        let medium = LinkMedium::new(SlotPool::new(mesh.poller().limits().spare_slot_bytes));
        Self {
            mesh,
            executor: Executor::new(stall_after),
            medium,
            pool: Pool::default(),
            plans: HashMap::default(),
            device_plans: HashMap::default(),
            networks: HashMap::default(),
            shapes: HashMap::default(),
            restores,
            said: VecDeque::new(),
            pinged: HashMap::default(),
            leavers: BTreeSet::new(),
            running: HashSet::default(),
            core_shares: Vec::new(),
            has_own_core: false,
            has_spare_core: false,
            unread: BTreeSet::new(),
            residuals: HashMap::default(),
            suspended: HashMap::default(),
            faulty_after: None,
        }
    }

    /// Opens an epoch: operations may start in it.
    pub(crate) fn open_epoch(&mut self, description: &EpochDescription, me: PeerId) -> Result<(), String> {
        let me = description.rank_of(me).ok_or("this peer is not a member of the epoch")?;
        let own = &description.members[me.index()];
        let others = description.members.iter().filter(|member| member.peer != own.peer);
        let share = |member: &Member| (member.peer, member.host == own.host, member.cores.clone());
        self.core_shares = others.chain([own]).map(share).collect();
        self.count_cores();
        let membership = Membership {
            members: description.members.iter().map(|member| member.peer).collect(),
            me,
            shape: GroupShape::of(description),
            tuning: description.tuning,
        };
        self.executor.open_epoch(description.id, membership).map_err(|error| error.to_string())
    }

    /// Closes an epoch. Its operations are aborted.
    pub(crate) fn close_epoch(&mut self, epoch: EpochId) {
        self.executor.close_epoch(epoch);
        self.medium.retire(epoch);
        self.plans.retain(|(of, ..), _| *of != epoch);
        self.device_plans.retain(|(of, ..), _| *of != epoch);
        self.networks.retain(|(of, _), _| *of != epoch);
        self.shapes.retain(|(of, _), _| *of != epoch);
    }

    /// Plans of this operation's tag are chosen for this network from now on.
    pub(crate) fn use_network(&mut self, op: OpId, network: &Network) {
        let digest = network.digest();
        let Some(membership) = self.executor.membership(op.epoch) else { return };
        if self.networks.insert((op.epoch, op.tag), digest) == Some(digest) {
            return;
        }
        let shape = || membership.shape.clone().with_network(Some(network));
        self.shapes.entry((op.epoch, digest)).or_insert_with(shape);
        // Operations in flight have their plans.
        let used: HashSet<_> = self.networks.iter().map(|((epoch, _), digest)| (*epoch, *digest)).collect();
        self.shapes.retain(|key, _| used.contains(key));
        self.plans.retain(|(epoch, digest, ..), _| *digest == 0 || used.contains(&(*epoch, *digest)));
    }

    /// What is known of the network between this peer and each other one.
    pub(crate) fn measure(&self) -> impl Iterator<Item = (PeerId, Path)> + '_ {
        self.medium.peers().map(|peer| (peer, self.medium.measure(peer)))
    }

    /// Whether no other member is on this host.
    pub(crate) fn is_alone_on_host(&self) -> bool {
        self.core_shares.iter().filter(|(_, has_host_id, _)| *has_host_id).count() == 1
    }

    /// Forgets the quantisation errors of a tag, or of all.
    pub(crate) fn clear_residuals(&mut self, tag: Option<Tag>) {
        self.residuals.retain(|of, _| tag.is_some_and(|tag| tag != *of));
    }

    /// For tests: a bit of the result of the n-th operation that compares results flips, counted from 1.
    pub(crate) fn flip_result_of(&mut self, n: u64) {
        self.faulty_after = Some(n);
    }

    /// Starts an operation, or returns its buffers. If some of its input has not arrived, it begins with the rest.
    pub(crate) fn start(
        &mut self,
        now: Time,
        op: OpId,
        descriptor: Descriptor,
        layout: &Layout,
        buffers: HostBuffers,
        options: OpOptions,
    ) -> Result<(), (String, HostBuffers)> {
        let (plan, world) = match self.plan(op, &descriptor, layout) {
            Ok(planned) => planned,
            Err(why) => return Err((why, buffers)),
        };
        let feedback = options.feedback.then(|| {
            self.residuals.retain(|tag, residual| *tag != op.tag || residual.fits(&descriptor));
            ErrorFeedback::new(&descriptor, self.residuals.get(&op.tag).cloned())
        });
        let (restores, pool) = (self.restores, &mut self.pool);
        let scratch = match options.resumed {
            Some(_) => 0,
            None => plan.scratch + spare_scratch(&plan, &descriptor, world),
        };
        let mut workspace =
            TensorWorkspace::new(buffers, descriptor, scratch, world, restores, feedback, pool);
        if let Some(kept) = options.resumed {
            workspace.resume(kept, plan.scratch, pool);
        }
        if let Some(finals) = options.finals {
            workspace.report_finals(&plan, finals);
        }
        if let Some(left) = self.faulty_after.as_mut().filter(|_| descriptor.integrity.results) {
            *left = left.wrapping_sub(1);
            if *left == 0 {
                workspace.flip_result();
            }
        }
        self.executor
            .start(now, op, descriptor, plan, workspace)
            .map_err(|refused| (refused.why.to_string(), refused.workspace.retire(&mut self.pool)))?;
        self.running.insert(op);
        Ok(())
    }

    /// The plan of an operation, and the number of members.
    fn plan(
        &mut self,
        op: OpId,
        descriptor: &Descriptor,
        layout: &Layout,
    ) -> Result<(Arc<Plan>, usize), String> {
        let membership = self.executor.membership(op.epoch).ok_or("its epoch is not open")?;
        let world = membership.members.len();
        let network = self.networks.get(&(op.epoch, op.tag)).copied().unwrap_or(0);
        let key = (op.epoch, network, descriptor.shared(), layout.clone());
        if let Some(plan) = self.plans.get(&key) {
            return Ok((plan.clone(), world));
        }
        let shape = self.shapes.get(&(op.epoch, network)).unwrap_or(&membership.shape);
        let plan = choice::plan(descriptor, layout, membership.me, shape, &membership.tuning);
        let plan = Arc::new(plan.map_err(|none| none.to_string())?);
        if self.plans.len() >= PLANS_MAX {
            self.plans.clear();
        }
        self.plans.insert(key, plan.clone());
        Ok((plan, world))
    }

    /// In which order an all-reduce reads the pieces of its input; none if it has no plan.
    pub(crate) fn input_order(
        &mut self,
        op: OpId,
        descriptor: &Descriptor,
        bytes: usize,
        piece_bytes: usize,
    ) -> Option<Vec<usize>> {
        let (plan, _) = self.plan(op, descriptor, &Layout::Even).ok()?;
        Some(piece_order(&plan, descriptor.dtype.bytes(), bytes, piece_bytes))
    }

    /// More of an operation's input has arrived.
    pub(crate) fn handle_input(&mut self, op: OpId) {
        self.executor.handle_input(op);
    }

    /// Commits an operation.
    pub(crate) fn commit(&mut self, op: OpId) {
        if self.executor.commit(op).is_err() {
            tracing::error!(%op, "committed without being done");
            self.executor.abort(op);
        }
    }

    /// Aborts an operation.
    pub(crate) fn abort(&mut self, op: OpId) {
        self.executor.abort(op);
    }

    /// Aborts an operation, and keeps what has arrived of it if it can be resumed.
    pub(crate) fn suspend(&mut self, op: OpId) {
        self.suspended.extend(self.executor.holding(op).map(|holding| (op, holding)));
        self.executor.abort(op);
    }

    /// The members of an open epoch, in rank order.
    pub(crate) fn members(&self, epoch: EpochId) -> &[PeerId] {
        self.executor.membership(epoch).map_or(&[], |membership| &membership.members)
    }

    /// Records an operation that was decided without being started here.
    pub(crate) fn skip(&mut self, op: OpId) {
        self.executor.decided(op);
    }

    /// The mesh, which makes the links.
    pub(crate) fn mesh(&mut self) -> &mut Mesh {
        &mut self.mesh
    }

    /// The next event of the mesh.
    fn next_of_mesh(&mut self, now: Time) -> Option<PlaneEvent> {
        Some(match self.mesh.next_event()? {
            MeshEvent::Up(peer, link) => {
                let is_relayed = self.mesh.is_relayed(peer);
                let transport = if is_relayed { LinkTransport::Relay } else { link.transport() };
                self.link_up(now, peer, link);
                PlaneEvent::LinkUp { peer, transport }
            }
            MeshEvent::Failed(peer, why) => PlaneEvent::NoLink { peer, why },
            MeshEvent::Visitor { peer, purpose, connection } => {
                PlaneEvent::Visitor { peer, purpose, connection }
            }
        })
    }

    fn link_up(&mut self, now: Time, peer: PeerId, link: Link) {
        self.medium.add(peer, link);
        // Members of this host may have host ids of their own, so as not to share memory.
        let has_new_share = |(of, has_host_id, _): &(PeerId, bool, CoreShare)| *of == peer && !has_host_id;
        if self.medium.is_local(peer) && self.core_shares.iter().any(has_new_share) {
            self.count_cores();
        }
        self.executor.handle_link_up(now, peer);
        // Arrivals may have been read with the handshake, or be in shared memory.
        self.unread.insert(peer);
    }

    /// Whether there is one.
    pub(crate) fn has_link(&self, peer: PeerId) -> bool {
        self.medium.has(peer)
    }

    /// Drops a link. Returns whether there was one.
    pub(crate) fn unlink(&mut self, peer: PeerId) -> bool {
        let had = self.medium.remove(peer);
        self.unread.remove(&peer);
        self.pinged.remove(&peer);
        if had {
            self.executor.handle_link_lost(peer);
        }
        had
    }

    /// Pings a member.
    pub(crate) fn ping(&mut self, peer: PeerId) {
        self.medium.send(peer, LinkMessage::Ping);
    }

    /// When the last ping of a member arrived.
    pub(crate) fn pinged_at(&self, peer: PeerId) -> Option<Time> {
        self.pinged.get(&peer).copied()
    }

    /// Tells a member that the group was aborted.
    pub(crate) fn tell_abort(&mut self, peer: PeerId, epoch: EpochId, cause: Cause) {
        self.medium.send(peer, LinkMessage::Abort { epoch, cause });
    }

    /// Tells a member that this one leaves.
    pub(crate) fn say_goodbye(&mut self, peer: PeerId, epoch: EpochId) {
        self.medium.send(peer, LinkMessage::Goodbye { epoch });
    }

    /// Sends a note to a member.
    pub(crate) fn send_note(&mut self, peer: PeerId, epoch: EpochId, topic: u64, text: String) {
        self.medium.send(peer, LinkMessage::Note { epoch, topic, text });
    }

    /// Asks a member what it does.
    pub(crate) fn inquire(&mut self, peer: PeerId, epoch: EpochId) {
        self.medium.send(peer, LinkMessage::Inquiry { epoch });
    }

    /// Tells a member what this one does.
    pub(crate) fn tell_activity(&mut self, peer: PeerId, epoch: EpochId, activity: RankActivity) {
        self.medium.send(peer, LinkMessage::Activity { epoch, activity });
    }

    /// When the last input of a member arrived.
    pub(crate) fn heard_at(&self, peer: PeerId) -> Option<Time> {
        self.executor.heard_at(peer)
    }

    /// When an operation last made progress.
    pub(crate) fn moved_at(&self, op: OpId) -> Option<Time> {
        self.executor.moved_at(op)
    }

    /// Whether a member has begun an operation, as far as this one has seen.
    pub(crate) fn has_begun(&self, op: OpId, rank: Rank) -> bool {
        self.executor.has_begun(op, rank)
    }

    /// Tells a member which stage of an operation in device memory this one has reached.
    pub(crate) fn send_stage(&mut self, peer: PeerId, op: OpId, stage: DeviceStage) {
        self.medium.send(peer, LinkMessage::Device { op, stage });
    }

    /// What the members compute of an operation in device memory; none if it has to run in host memory.
    pub(crate) fn device_plan(&mut self, op: OpId, descriptor: &Descriptor) -> Option<Arc<DevicePlan>> {
        let membership = self.executor.membership(op.epoch)?;
        let network = self.networks.get(&(op.epoch, op.tag)).copied().unwrap_or(0);
        let key = (op.epoch, network, descriptor.shared());
        if let Some(plan) = self.device_plans.get(&key) {
            return plan.clone();
        }
        let shape = self.shapes.get(&(op.epoch, network)).unwrap_or(&membership.shape);
        // Digests are of results in host memory.
        let parts = DevicePlan::of(descriptor, shape, &membership.tuning);
        let parts = parts.filter(|_| !descriptor.integrity.results);
        let plan = parts.map(|parts| {
            let (members, me) = (membership.members.clone(), membership.me.index());
            let chunk_elements = Chunking::of(descriptor, &membership.tuning).elements_max.into();
            Arc::new(DevicePlan { members, me, parts, chunk_elements })
        });
        if self.device_plans.len() >= PLANS_MAX {
            self.device_plans.clear();
        }
        self.device_plans.insert(key, plan.clone());
        plan
    }

    /// A member that has left is disconnected. What it sent can still be used.
    pub(crate) fn detach(&mut self, peer: PeerId) {
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

    /// A socket is ready. Returns the member whose link must be read, if it belongs to one.
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

    /// Processes what arrived on a link. Each frame is processed while it is in the cache, and the results are sent at once.
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
                Some(Received::Message(LinkMessage::Device { op, stage })) => {
                    // An epoch that is not open yet has unknown members.
                    let membership = self.executor.membership(op.epoch);
                    let is_member = membership.is_none_or(|epoch| epoch.members.contains(&from));
                    if is_member && !self.executor.is_decided(op) {
                        self.said.push_back(PlaneEvent::Device { peer: from, op, stage });
                    }
                }
                Some(Received::Message(message)) => {
                    self.note_for_group(now, from, &message);
                    self.executor.handle_link_message(now, from, message);
                }
            }
        }
        self.unread.insert(from);
        Ok(())
    }

    /// Notes what a message says of waits.
    fn note_for_group(&mut self, now: Time, from: PeerId, message: &LinkMessage) {
        let is_open = |epoch: &EpochId| self.executor.membership(*epoch).is_some();
        match message {
            LinkMessage::Ping => drop(self.pinged.insert(from, now)),
            LinkMessage::Inquiry { epoch } if is_open(epoch) => {
                self.said.push_back(PlaneEvent::Inquiry { peer: from });
            }
            LinkMessage::Activity { epoch, activity } if is_open(epoch) => {
                self.said.push_back(PlaneEvent::Activity { peer: from, activity: *activity });
            }
            _ => {}
        }
    }

    /// Begins a turn. Returns the links to read that the poller does not report.
    pub(crate) fn begin_turn(&mut self) -> Vec<PeerId> {
        self.medium.cancel_sleep();
        let Self { medium, unread, .. } = self;
        unread.extend(medium.ready_shared());
        unread.iter().copied().collect()
    }

    /// Whether something has arrived that the poller does not report.
    pub(crate) fn has_input(&self) -> bool {
        self.has_unread() || self.medium.ready_shared().next().is_some()
    }

    /// As [`Drive::look`](ringfold_fabric::reactor::Drive::look), if there is one link.
    pub(crate) fn look(&mut self) -> Option<bool> {
        let from = self.medium.look()?;
        self.unread.extend(from);
        Some(from.is_some())
    }

    /// Has the poller report all arrivals. Returns whether there are some already: then the thread must not sleep.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        // Deferred messages are sent now. The next turn detects a broken link.
        self.medium.flush_deferred();
        let _ = self.medium.flush();
        // A put that has just left may complete an operation.
        self.medium.prepare_sleep() | self.has_unread() | self.medium.has_flushed()
    }

    /// What may arrive soon, and is worth spinning for.
    pub(crate) fn expects(&self) -> Expected {
        if self.running.is_empty() {
            Expected::Nothing
        } else if !self.has_own_core {
            Expected::OnSharedCores
        } else if self.medium.is_all_shared() {
            Expected::SharedMemory
        } else {
            Expected::Sockets
        }
    }

    /// Whether each member on this host can have a core of its own.
    pub(crate) fn has_own_core(&self) -> bool {
        self.has_own_core
    }

    /// Whether there is one more for this member.
    pub(crate) fn has_spare_core(&self) -> bool {
        self.has_spare_core
    }

    fn count_cores(&mut self) {
        let Self { core_shares, medium, .. } = self;
        let here = core_shares.iter().filter(|(peer, has_host_id, _)| *has_host_id || medium.is_local(*peer));
        let mut shares: Vec<_> = here.map(|(.., share)| share).collect();
        self.has_own_core = each_has_a_core(&shares);
        // This member is the last one.
        shares.extend(shares.last().copied());
        self.has_spare_core = each_has_a_core(&shares);
    }

    /// The number of links that use shared memory.
    pub(crate) fn shared_links(&self) -> usize {
        self.medium.shared_count()
    }

    /// Whether there is one.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Does everything that mesh and executor can do now. Returns the next event.
    pub(crate) fn pump(&mut self, now: Time) -> Option<PlaneEvent> {
        loop {
            if let Some(event) = self.next_of_mesh(now) {
                return Some(event);
            }
            self.executor.poll(now, &mut self.medium);
            if let Some(peer) = self.flush(now) {
                // What the other end sent before counts, up to a limit. A stream reports its end once, without a read.
                let (mut looks, mut turns) = (2, 0..LAST_TURNS_MAX);
                while looks > 0 && turns.next().is_some() {
                    if self.read_link(now, peer).is_err() || !self.unread.contains(&peer) {
                        looks -= 1;
                    }
                }
                if self.leavers.contains(&peer) {
                    self.detach(peer);
                } else {
                    self.unlink(peer);
                }
                self.said.push_back(PlaneEvent::LinkLost { peer, why: "sending failed".into() });
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

    /// Sends what can be sent now. Returns a link that broke.
    fn flush(&mut self, now: Time) -> Option<PeerId> {
        let broken = self.medium.flush();
        while let Some(ticket) = self.medium.next_flushed() {
            self.executor.handle_flushed(now, ticket);
        }
        broken.first().copied()
    }

    fn told(&mut self, event: ExecutorEvent<TensorWorkspace>) -> Option<PlaneEvent> {
        Some(match event {
            ExecutorEvent::Done { op, tx_bytes, rx_bytes, digest } => {
                self.running.remove(&op);
                PlaneEvent::Done { op, tx_bytes, rx_bytes, digest }
            }
            ExecutorEvent::Committed { op, mut workspace } => {
                self.running.remove(&op);
                self.residuals.extend(workspace.take_residual().map(|residual| (op.tag, residual)));
                PlaneEvent::Released { op, buffers: workspace.retire(&mut self.pool) }
            }
            // Aborted: the errors before it are kept, and added again when it is repeated.
            ExecutorEvent::Quiesced { op, workspace } => {
                self.running.remove(&op);
                match self.suspended.remove(&op) {
                    None => PlaneEvent::Released { op, buffers: workspace.retire(&mut self.pool) },
                    Some(holding) => {
                        let (buffers, scratch) = workspace.suspend(&mut self.pool);
                        PlaneEvent::Suspended { op, buffers, kept: KeptContributions { holding, scratch } }
                    }
                }
            }
            ExecutorEvent::Mismatch { op, peer } => PlaneEvent::Mismatch { op, peer },
            ExecutorEvent::Corrupted { op, peer } => PlaneEvent::Corrupted { op, peer },
            // The driver, which reported the loss, aborts the operations on the link.
            ExecutorEvent::LinkLost { .. } => return None,
            ExecutorEvent::Stalled { peer, direction } => PlaneEvent::Stalled { peer, direction },
            ExecutorEvent::Violation { peer, why } => {
                self.unlink(peer);
                PlaneEvent::LinkLost { peer, why: why.to_string() }
            }
        })
    }

    /// Operations that may still access their memory.
    pub(crate) fn in_flight(&self) -> usize {
        self.executor.in_flight()
    }

    /// How long there is until something is due, here or at one of these times.
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
