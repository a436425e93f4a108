//! Peers and links; the test chooses the order of events.

use super::memory::{Memory, Payload};
use ringfold_plan::event::ExecutorEvent;
use ringfold_plan::executor::{Executor, FrameDecision, Membership};
use ringfold_plan::medium::{Medium, SlotId, Ticket};
use ringfold_plan::plan::Plan;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{EpochId, GroupId, Incarnation, OpId, PeerId, Rank, Seq, Tag};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::time::Time;
use ringfold_proto::tuning::Tuning;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub const STALL_AFTER: Duration = Duration::from_secs(4);

pub fn epoch(counter: u64) -> EpochId {
    EpochId { group: GroupId(0), incarnation: Incarnation(7), counter }
}

pub fn op(tag: u64, seq: u64) -> OpId {
    OpId { epoch: epoch(1), tag: Tag(tag), seq: Seq(seq) }
}

pub fn peer(rank: usize) -> PeerId {
    PeerId(100 + rank as u128)
}

fn rank(peer: PeerId) -> usize {
    (peer.0 - 100) as usize
}

pub fn tuning(eager_slots: u16, window_slots: u16) -> Tuning {
    Tuning { eager_slots, window_slots, ..Tuning::default() }
}

/// Something on a link.
#[derive(Clone, Debug)]
pub enum Item {
    Message(LinkMessage),
    /// A frame that is not flushed.
    Put(DataHeader, Payload, Ticket),
    /// A flushed frame.
    Frame(DataHeader, Vec<i64>),
}

/// The medium of one executor.
#[derive(Default)]
pub struct Wire {
    sent: Vec<(PeerId, Item)>,
    slots: BTreeMap<SlotId, Vec<i64>>,
    cancelled: BTreeSet<Ticket>,
    retired: BTreeSet<EpochId>,
    tickets: u64,
    pub released: usize,
}

impl Wire {
    /// Bytes arrive in a slot.
    pub fn place(&mut self, slot: SlotId, bytes: Vec<i64>) {
        let old = self.slots.insert(slot, bytes);
        assert_eq!(old, None, "{slot:?} was still in use");
    }

    /// The slots of an epoch are gone; what the executor lets go of in it is let go already.
    pub fn retire(&mut self, epoch: EpochId) {
        self.slots.retain(|slot, _| slot.epoch != epoch);
        self.retired.insert(epoch);
    }
}

impl Medium for Wire {
    type Workspace = Memory;

    fn put(&mut self, to: PeerId, header: &DataHeader, payload: Payload) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.sent.push((to, Item::Put(*header, payload, ticket)));
        ticket
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cancelled.insert(ticket);
    }

    fn send(&mut self, to: PeerId, message: LinkMessage) {
        self.sent.push((to, Item::Message(message)));
    }

    fn frame(&self, slot: SlotId) -> &[i64] {
        &self.slots[&slot]
    }

    fn release(&mut self, slot: SlotId) {
        let was_full = self.slots.remove(&slot).is_some();
        assert!(was_full || self.retired.contains(&slot.epoch), "{slot:?} was released twice");
        self.released += 1;
    }
}

pub struct Peer {
    pub executor: Executor<Memory>,
    pub wire: Wire,
    pub events: Vec<ExecutorEvent<Memory>>,
}

/// All peers and links.
pub struct Net {
    pub now: Time,
    pub peers: Vec<Peer>,
    /// Put, and not flushed.
    pub leaving: BTreeMap<(usize, usize), VecDeque<Item>>,
    /// In flight.
    pub travelling: BTreeMap<(usize, usize), VecDeque<Item>>,
    pub messages: Vec<(usize, usize, LinkMessage)>,
    chance: u64,
}

/// A possible event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    Leave(usize, usize),
    Arrive(usize, usize),
}

impl Net {
    /// Peers with links between all of them, no epoch yet.
    pub fn linked(world: usize, seed: u64) -> Self {
        let peers = (0..world).map(|_| Peer {
            executor: Executor::new(STALL_AFTER),
            wire: Wire::default(),
            events: Vec::new(),
        });
        let mut net = Self {
            now: Time::ZERO,
            peers: peers.collect(),
            leaving: BTreeMap::new(),
            travelling: BTreeMap::new(),
            messages: Vec::new(),
            chance: seed,
        };
        for a in 0..world {
            for b in (0..world).filter(|b| *b != a) {
                net.peers[a].executor.handle_link_up(net.now, peer(b));
            }
        }
        net
    }

    /// Peers in one open epoch.
    pub fn open(world: usize, tuning: Tuning, seed: u64) -> Self {
        let mut net = Self::linked(world, seed);
        for at in 0..world {
            net.open_epoch(at, epoch(1), tuning);
        }
        net
    }

    pub fn open_epoch(&mut self, at: usize, epoch: EpochId, tuning: Tuning) {
        let members = (0..self.peers.len()).map(peer).collect();
        let membership = Membership::uniform(members, Rank::from_index(at), tuning);
        self.peers[at].executor.open_epoch(epoch, membership).unwrap();
        self.poll(at);
    }

    pub fn start(&mut self, at: usize, op: OpId, descriptor: Descriptor, plan: Arc<Plan>, memory: &Memory) {
        self.peers[at].executor.start(self.now, op, descriptor, plan, memory.clone()).unwrap();
        self.poll(at);
    }

    pub fn commit(&mut self, at: usize, op: OpId) {
        self.peers[at].executor.commit(op).unwrap();
        self.poll(at);
    }

    pub fn abort(&mut self, at: usize, op: OpId) {
        self.peers[at].executor.abort(op);
        self.poll(at);
    }

    pub fn poll(&mut self, at: usize) {
        let who = &mut self.peers[at];
        who.executor.poll(self.now, &mut who.wire);
        assert!(!who.executor.wants_poll());
        while let Some(event) = who.executor.poll_event() {
            who.events.push(event);
        }
        for (to, item) in who.wire.sent.drain(..) {
            if let Item::Message(message) = &item {
                self.messages.push((at, rank(to), message.clone()));
            }
            self.leaving.entry((at, rank(to))).or_default().push_back(item);
        }
    }

    /// What can happen next.
    pub fn moves(&self) -> Vec<Move> {
        let busy = |queues: &BTreeMap<(usize, usize), VecDeque<Item>>| {
            queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(way, _)| *way).collect::<Vec<_>>()
        };
        let leave = busy(&self.leaving).into_iter().map(|(from, to)| Move::Leave(from, to));
        let arrive = busy(&self.travelling).into_iter().map(|(from, to)| Move::Arrive(from, to));
        leave.chain(arrive).collect()
    }

    pub fn make(&mut self, what: Move) {
        match what {
            Move::Leave(from, to) => self.leave(from, to),
            Move::Arrive(from, to) => self.arrive(from, to),
        }
    }

    fn leave(&mut self, from: usize, to: usize) {
        let Some(item) = self.leaving.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
        let item = match item {
            Item::Put(header, payload, ticket) => {
                let is_cancelled = self.peers[from].wire.cancelled.contains(&ticket);
                let bytes = if is_cancelled { payload.leave_cancelled() } else { payload.leave() };
                self.peers[from].executor.handle_flushed(self.now, ticket);
                self.poll(from);
                Item::Frame(header, bytes)
            }
            item => item,
        };
        self.travelling.entry((from, to)).or_default().push_back(item);
    }

    fn arrive(&mut self, from: usize, to: usize) {
        let Some(item) = self.travelling.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
        match item {
            Item::Message(message) => {
                self.peers[to].executor.handle_link_message(self.now, peer(from), message);
            }
            Item::Frame(header, bytes) => self.arrive_frame(from, to, header, bytes),
            Item::Put(..) => unreachable!("it has not left"),
        }
        self.poll(to);
    }

    fn arrive_frame(&mut self, from: usize, to: usize, header: DataHeader, bytes: Vec<i64>) {
        let who = &mut self.peers[to];
        match who.executor.offer(peer(from), &header) {
            FrameDecision::Place => {
                let slot = SlotId { from: peer(from), epoch: header.op.epoch, index: header.slot };
                who.wire.place(slot, bytes);
                who.executor.handle_frame(self.now, peer(from), header);
            }
            FrameDecision::Discard => who.executor.handle_discarded(self.now, peer(from), header),
            FrameDecision::Violation(why) => panic!("{header:?}: {why}"),
        }
    }

    /// Lets everything happen, in an order by chance.
    pub fn settle(&mut self) {
        while self.stir() {}
    }

    /// Lets one thing happen, by chance.
    pub fn stir(&mut self) -> bool {
        let moves = self.moves();
        if moves.is_empty() {
            return false;
        }
        let chosen = moves[self.random(moves.len())];
        self.make(chosen);
        true
    }

    /// Lets one link, one way, do all it can.
    pub fn drain(&mut self, from: usize, to: usize) {
        let busy = |net: &Self| {
            let is_busy = |queues: &BTreeMap<(usize, usize), VecDeque<Item>>| {
                queues.get(&(from, to)).is_some_and(|queue| !queue.is_empty())
            };
            is_busy(&net.leaving) || is_busy(&net.travelling)
        };
        while busy(self) {
            self.leave(from, to);
            self.arrive(from, to);
        }
    }

    pub fn random(&mut self, below: usize) -> usize {
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.chance >> 33) as usize) % below
    }

    /// Both ends lose their link, and what was on it. Puts that had not left are reported as flushed.
    pub fn cut(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            self.peers[from].executor.handle_link_lost(peer(to));
            self.peers[from].wire.slots.retain(|slot, _| slot.from != peer(to));
            self.travelling.remove(&(from, to));
            for item in self.leaving.remove(&(from, to)).unwrap_or_default() {
                if let Item::Put(_, _, ticket) = item {
                    self.peers[from].executor.handle_flushed(self.now, ticket);
                }
            }
            self.poll(from);
        }
    }

    /// The two are linked again.
    pub fn mend(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            self.peers[from].executor.handle_link_up(self.now, peer(to));
            self.poll(from);
        }
    }

    pub fn is_done(&self, at: usize, op: OpId) -> bool {
        self.peers[at].events.iter().any(|e| matches!(e, ExecutorEvent::Done { op: done, .. } if *done == op))
    }

    pub fn is_quiesced(&self, at: usize, op: OpId) -> bool {
        let quiesced =
            |e: &ExecutorEvent<Memory>| matches!(e, ExecutorEvent::Quiesced { op: o, .. } if *o == op);
        self.peers[at].events.iter().any(quiesced)
    }

    /// Messages of a kind, from a peer.
    pub fn count_messages(&self, from: usize, kind: impl Fn(&LinkMessage) -> bool) -> usize {
        self.messages.iter().filter(|(at, _, message)| *at == from && kind(message)).count()
    }

    /// Nothing is kept anywhere, and every slot has been released.
    pub fn assert_clean(&self) {
        for who in &self.peers {
            assert_eq!(who.executor.kept(), 0);
            assert_eq!(who.executor.in_flight(), 0);
            assert!(who.wire.slots.is_empty(), "{:?}", who.wire.slots.keys());
        }
    }
}
