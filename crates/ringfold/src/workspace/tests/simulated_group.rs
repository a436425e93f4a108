//! Ranks in one thread: real plans, executors and workspaces, and a medium that delivers at random times.
//!
//! The bytes of a frame are read from the sender's memory only when it is delivered.

use super::super::{FinalRanges, Outgoing, Pool, TensorWorkspace};
use crate::all_reduce::HostBuffers;
use core::time::Duration;
use ringfold_fabric::memory::Arrivals;
use ringfold_plan::choice::plan;
use ringfold_plan::event::ExecutorEvent;
use ringfold_plan::executor::{Executor, FrameDecision, Membership};
use ringfold_plan::layout::Layout;
use ringfold_plan::medium::{Medium, SlotId, Ticket};
use ringfold_plan::step::{Left, Region};
use ringfold_plan::workspace::Workspace;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{EpochId, GroupId, Incarnation, OpId, PeerId, Rank, Seq, Tag};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::time::Time;
use ringfold_proto::tuning::Tuning;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

const EPOCH: EpochId = EpochId { group: GroupId(0), incarnation: Incarnation(7), counter: 1 };
const OP: OpId = OpId { epoch: EPOCH, tag: Tag(3), seq: Seq(0) };

/// How an operation ends.
#[derive(Clone, Copy, PartialEq)]
pub enum Ending {
    Committed,
    /// After this many events.
    Aborted(u64),
}

/// The pieces of a rank's input that are still to arrive, the next one last.
pub struct LatePieces {
    pub arrivals: Arc<Arrivals>,
    pub missing: Vec<usize>,
}

/// Runs an operation, and returns the targets of all ranks.
pub fn run(
    descriptors: &[Descriptor],
    buffers: Vec<HostBuffers>,
    tuning: Tuning,
    pool: &mut Pool,
    end: Ending,
) -> Vec<Vec<u8>> {
    run_late(descriptors, buffers, Vec::new(), tuning, pool, end)
}

/// As `run`, with inputs whose pieces arrive at random times.
pub fn run_late(
    descriptors: &[Descriptor],
    buffers: Vec<HostBuffers>,
    late: Vec<LatePieces>,
    tuning: Tuning,
    pool: &mut Pool,
    end: Ending,
) -> Vec<Vec<u8>> {
    let world = buffers.len();
    let nodes = descriptors.iter().zip(buffers).enumerate().map(|(index, (descriptor, buffers))| {
        Node::start(Rank::from_index(index), world, *descriptor, buffers, tuning, pool)
    });
    let mut group = SimulatedGroup { nodes: nodes.collect(), chance: 0x9e37_79b9 + world as u64, events: 0 };
    for (node, late) in group.nodes.iter_mut().zip(late) {
        node.late = Some(late);
    }
    group.run(end);
    let is_weighted = descriptors[0].weight.is_some();
    let take = |node: Node| {
        if end == Ending::Committed && !is_weighted {
            let workspace = node.workspace.borrow();
            assert!(node.copied == workspace.memory.output(), "bytes changed after they were final");
            assert_eq!(node.copied_bytes, node.copied.len(), "each byte is final once");
        } else {
            assert!(!is_weighted || node.copied_bytes == 0, "nothing is final before the commit");
        }
        drop(node.executor);
        let workspace = Rc::into_inner(node.workspace).expect("no other reference").into_inner();
        let output = workspace.memory.output().to_vec();
        workspace.retire(pool);
        output
    };
    group.nodes.into_iter().map(take).collect()
}

struct SimulatedGroup {
    nodes: Vec<Node>,
    chance: u64,
    events: u64,
}

struct Node {
    executor: Executor<ObservedWorkspace>,
    medium: SimulatedMedium,
    workspace: Rc<RefCell<TensorWorkspace>>,
    late: Option<LatePieces>,
    finals: Arc<FinalRanges>,
    /// The parts of the target that were final, and how many bytes.
    copied: Vec<u8>,
    copied_bytes: usize,
    is_done: bool,
    is_over: bool,
}

#[derive(Clone, Copy)]
enum Event {
    Poll(usize),
    Flush(usize),
    Deliver(usize, usize),
    Arrive(usize),
}

impl SimulatedGroup {
    fn run(&mut self, end: Ending) {
        loop {
            if end == Ending::Aborted(self.events) {
                self.nodes.iter_mut().for_each(|node| node.executor.abort(OP));
            }
            self.note_events();
            if end == Ending::Committed && self.nodes.iter().all(|node| node.is_done && !node.is_over) {
                self.nodes.iter_mut().for_each(|node| node.executor.commit(OP).expect("it is done"));
                continue;
            }
            let possible = self.possible();
            if possible.is_empty() {
                if let Ending::Aborted(after) = end
                    && self.events < after
                {
                    self.events = after;
                    continue;
                }
                break;
            }
            self.events += 1;
            self.chance ^= self.chance << 13;
            self.chance ^= self.chance >> 7;
            self.chance ^= self.chance << 17;
            self.happen(possible[(self.chance % possible.len() as u64) as usize]);
        }
        assert!(self.nodes.iter().all(|node| node.is_over), "an operation does not end");
    }

    fn note_events(&mut self) {
        for node in &mut self.nodes {
            for range in node.finals.take() {
                let workspace = node.workspace.borrow();
                node.copied[range.clone()].copy_from_slice(&workspace.memory.output()[range.clone()]);
                node.copied_bytes += range.len();
            }
            while let Some(event) = node.executor.poll_event() {
                match event {
                    ExecutorEvent::Done { .. } => node.is_done = true,
                    ExecutorEvent::Committed { .. } | ExecutorEvent::Quiesced { .. } => node.is_over = true,
                    other => panic!("{other}"),
                }
            }
        }
    }

    fn possible(&self) -> Vec<Event> {
        let mut possible = Vec::new();
        for (from, node) in self.nodes.iter().enumerate() {
            possible.extend(node.executor.wants_poll().then_some(Event::Poll(from)));
            possible.extend((!node.medium.flushed.is_empty()).then_some(Event::Flush(from)));
            let links = node.medium.out.iter().enumerate().filter(|(_, queue)| !queue.is_empty());
            possible.extend(links.map(|(to, _)| Event::Deliver(from, to)));
            let is_late = node.late.as_ref().is_some_and(|late| !late.missing.is_empty());
            possible.extend((is_late && !node.is_over).then_some(Event::Arrive(from)));
        }
        possible
    }

    fn happen(&mut self, event: Event) {
        let now = Time(self.events);
        match event {
            Event::Poll(rank) => {
                let node = &mut self.nodes[rank];
                node.executor.poll(now, &mut node.medium);
            }
            Event::Flush(rank) => {
                let node = &mut self.nodes[rank];
                let ticket = node.medium.flushed.pop().expect("there is one");
                node.executor.handle_flushed(now, ticket);
            }
            Event::Arrive(rank) => {
                let node = &mut self.nodes[rank];
                let late = node.late.as_mut().expect("it is late");
                late.arrivals.add(late.missing.pop().expect("there is one"));
                node.executor.handle_input(OP);
            }
            Event::Deliver(from, to) => {
                let medium = &mut self.nodes[from].medium;
                let peer = peer(from);
                match medium.out[to].pop_front().expect("there is one") {
                    QueuedItem::Message(message) => {
                        self.nodes[to].executor.handle_link_message(now, peer, message);
                    }
                    QueuedItem::Frame { header, ticket, payload } => {
                        let bytes =
                            payload.map_or_else(|| vec![0; header.length as usize], ObservedPayload::read);
                        medium.flushed.push(ticket);
                        self.nodes[to].receive(now, peer, header, bytes);
                    }
                }
            }
        }
    }
}

impl Node {
    fn start(
        me: Rank,
        world: usize,
        descriptor: Descriptor,
        buffers: HostBuffers,
        tuning: Tuning,
        pool: &mut Pool,
    ) -> Self {
        let mut executor = Executor::new(Duration::from_secs(3600));
        for other in (0..world).filter(|other| *other != me.index()) {
            executor.handle_link_up(Time::ZERO, peer(other));
        }
        let membership = Membership::uniform((0..world).map(peer).collect(), me, tuning);
        let plan = plan(&descriptor, &Layout::Even, me, &membership.shape, &membership.tuning);
        let plan = plan.expect("there is one");
        executor.open_epoch(EPOCH, membership).expect("it is sound");
        let mut workspace = TensorWorkspace::new(buffers, descriptor, plan.scratch, world, true, None, pool);
        let finals = Arc::new(FinalRanges::new(1));
        workspace.report_finals(&plan, finals.clone());
        let copied = vec![0; workspace.memory.output().len()];
        let workspace = Rc::new(RefCell::new(workspace));
        let observed = ObservedWorkspace(Rc::clone(&workspace));
        let started = executor.start(Time::ZERO, OP, descriptor, Arc::new(plan), observed);
        started.map_err(|refused| refused.why).expect("it can be started");
        let out = (0..world).map(|_| VecDeque::new()).collect();
        let medium = SimulatedMedium { out, slots: HashMap::new(), tickets: 0, flushed: Vec::new() };
        let (is_done, is_over) = (false, false);
        Self { executor, medium, workspace, late: None, finals, copied, copied_bytes: 0, is_done, is_over }
    }

    fn receive(&mut self, now: Time, from: PeerId, header: DataHeader, bytes: Vec<u8>) {
        assert_eq!(bytes.len(), header.length as usize);
        match self.executor.offer(from, &header) {
            FrameDecision::Place => {
                let slot = SlotId { from, epoch: EPOCH, index: header.slot };
                self.medium.slots.insert(slot, bytes);
                self.executor.handle_frame(now, from, header);
            }
            FrameDecision::Discard => self.executor.handle_discarded(now, from, header),
            FrameDecision::Violation(why) => panic!("{why}"),
        }
    }
}

fn peer(rank: usize) -> PeerId {
    PeerId(rank as u128 + 1)
}

/// The medium of one rank.
struct SimulatedMedium {
    out: Vec<VecDeque<QueuedItem>>,
    slots: HashMap<SlotId, Vec<u8>>,
    tickets: u64,
    flushed: Vec<Ticket>,
}

enum QueuedItem {
    /// Cancelled if there is no payload.
    Frame {
        header: DataHeader,
        ticket: Ticket,
        payload: Option<ObservedPayload>,
    },
    Message(LinkMessage),
}

impl Medium for SimulatedMedium {
    type Workspace = ObservedWorkspace;

    fn put(&mut self, to: PeerId, header: &DataHeader, payload: ObservedPayload) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let frame = QueuedItem::Frame { header: *header, ticket, payload: Some(payload) };
        self.out[to.0 as usize - 1].push_back(frame);
        ticket
    }

    fn cancel(&mut self, cancelled: Ticket) {
        for item in self.out.iter_mut().flatten() {
            if let QueuedItem::Frame { ticket, payload, .. } = item
                && *ticket == cancelled
            {
                *payload = None;
            }
        }
    }

    fn send(&mut self, to: PeerId, message: LinkMessage) {
        self.out[to.0 as usize - 1].push_back(QueuedItem::Message(message));
    }

    fn frame(&self, slot: SlotId) -> &[u8] {
        &self.slots[&slot]
    }

    fn release(&mut self, slot: SlotId) {
        self.slots.remove(&slot);
    }
}

/// A workspace that checks its payloads.
struct ObservedWorkspace(Rc<RefCell<TensorWorkspace>>);

/// A payload that is being sent.
struct ObservedPayload {
    workspace: Rc<RefCell<TensorWorkspace>>,
    outgoing: Outgoing,
    expected: Vec<u8>,
}

impl ObservedPayload {
    /// Reads the bytes; they must not have changed since `load`.
    fn read(self) -> Vec<u8> {
        let now = bytes(&self.workspace.borrow(), &self.outgoing);
        assert!(now == self.expected, "bytes changed while they were sent");
        now
    }
}

fn bytes(workspace: &TensorWorkspace, outgoing: &Outgoing) -> Vec<u8> {
    match outgoing {
        Outgoing::Verbatim(span) => workspace.memory.bytes(span).to_vec(),
        Outgoing::Encoded(region) => {
            workspace.quantized.as_ref().expect("quantized").encoded(*region).to_vec()
        }
        Outgoing::Copy(bytes) => bytes.clone(),
    }
}

impl Workspace for ObservedWorkspace {
    type Payload = ObservedPayload;
    type Frame = [u8];

    fn has_input(&self, region: Region) -> bool {
        self.0.borrow().has_input(region)
    }

    fn note_done(&mut self, step: u32) {
        self.0.borrow_mut().note_done(step);
    }

    fn load(&mut self, region: Region) -> ObservedPayload {
        let mut workspace = self.0.borrow_mut();
        let lease = workspace.load(region);
        let outgoing = workspace.prepare(region);
        let expected = bytes(&workspace, &outgoing);
        assert_eq!(lease.len(), expected.len());
        ObservedPayload { workspace: Rc::clone(&self.0), outgoing, expected }
    }

    fn copy(&mut self, own: Region, into: Region) {
        self.0.borrow_mut().copy(own, into);
    }

    fn store(&mut self, frame: &[u8], into: Region) {
        self.0.borrow_mut().store(frame, into);
    }

    fn reduce(&mut self, frame: &[u8], own: Region, into: Region, left: Left) {
        self.0.borrow_mut().reduce(frame, own, into, left);
    }

    fn combine(&mut self, left: Region, right: Region, into: Region) {
        self.0.borrow_mut().combine(left, right, into);
    }

    fn settle(&mut self, region: Region) {
        self.0.borrow_mut().settle(region);
    }

    fn restore(&mut self) {
        self.0.borrow_mut().restore();
    }

    fn keep(&mut self) {
        self.0.borrow_mut().keep();
    }
}
