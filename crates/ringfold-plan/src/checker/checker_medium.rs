//! The in-memory medium of one rank: its outgoing queue, and the slots that others fill.

use super::memory::{Lazy, Symbols};
use super::symbol::Symbol;
use crate::medium::{Medium, SlotId, Ticket};
use crate::step::Region;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{PeerId, Rank};
use ringfold_proto::link_message::LinkMessage;
use std::collections::{HashMap, VecDeque};

/// A frame or message in flight on a link.
#[derive(Debug)]
pub(super) enum LinkItem {
    Frame { header: DataHeader, body: FrameBody },
    Message(LinkMessage),
}

/// The contents of a frame, which may not have been read from the sender's memory yet.
#[derive(Debug)]
pub(super) enum FrameBody {
    Lazy(Lazy, Ticket),
    Read(Vec<Symbol>),
}

/// The medium of one rank.
#[derive(Debug)]
pub(super) struct CheckerMedium {
    /// By receiver; with the time of the put.
    pub(super) out: Vec<VecDeque<(u64, LinkItem)>>,
    slots: HashMap<SlotId, Vec<Symbol>>,
    tickets: u64,
    /// The time, to order items of different links.
    clock: u64,
    /// Puts that were read and not reported as flushed.
    pub(super) unreported: Vec<Ticket>,
    /// The number of frames put, by receiver.
    pub(super) put: Vec<usize>,
    /// The number of frames taken, by sender.
    pub(super) taken: Vec<usize>,
    /// The number of frames that arrived, by sender.
    pub(super) arrived: Vec<usize>,
    /// The number of elements put.
    pub(super) elements: u64,
    /// A violation of the medium's contract by the executor.
    pub(super) misuse: Option<String>,
}

impl CheckerMedium {
    pub(super) fn new(world: usize) -> Self {
        Self {
            out: (0..world).map(|_| VecDeque::new()).collect(),
            slots: HashMap::new(),
            tickets: 0,
            clock: 0,
            unreported: Vec::new(),
            put: vec![0; world],
            taken: vec![0; world],
            arrived: vec![0; world],
            elements: 0,
            misuse: None,
        }
    }

    pub(super) fn peer(rank: usize) -> PeerId {
        PeerId(rank as u128 + 1)
    }

    pub(super) fn rank(peer: PeerId) -> Rank {
        Rank::from_index(peer.0 as usize - 1)
    }

    /// Sets the time.
    pub(super) fn tick(&mut self, clock: u64) {
        self.clock = clock;
    }

    /// Places a frame in its slot.
    pub(super) fn fill(&mut self, slot: SlotId, frame: Vec<Symbol>) {
        self.arrived[Self::rank(slot.from).index()] += 1;
        if self.slots.insert(slot, frame).is_some() {
            self.misuse.get_or_insert(format!("slot {} is filled twice", slot.index));
        }
    }

    /// Whether a frame to a rank has not been read.
    pub(super) fn has_unread(&self, to: usize) -> bool {
        let is_unread = |item: &LinkItem| matches!(item, LinkItem::Frame { body: FrameBody::Lazy(..), .. });
        self.out[to].iter().any(|(_, item)| is_unread(item))
    }

    /// Reads the oldest unread frame to a rank. Returns whether there was one, or the overwritten element.
    pub(super) fn read_ahead(&mut self, to: usize) -> Result<bool, (Region, u64)> {
        for (_, item) in &mut self.out[to] {
            if let LinkItem::Frame { body, .. } = item
                && let FrameBody::Lazy(..) = body
            {
                let unread = core::mem::replace(body, FrameBody::Read(Vec::new()));
                *body = FrameBody::Read(unread.read(&mut self.unreported)?);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl FrameBody {
    /// Reads the contents. The put can be reported as flushed from now on.
    pub(super) fn read(self, unreported: &mut Vec<Ticket>) -> Result<Vec<Symbol>, (Region, u64)> {
        match self {
            Self::Read(frame) => Ok(frame),
            Self::Lazy(lazy, ticket) => {
                unreported.push(ticket);
                lazy.read()
            }
        }
    }
}

impl Medium for CheckerMedium {
    type Workspace = Symbols;

    fn put(&mut self, to: PeerId, header: &DataHeader, payload: Lazy) -> Ticket {
        let to = Self::rank(to).index();
        if header.chunk as usize != self.put[to] {
            self.misuse.get_or_insert(format!("frame {} is put as number {}", header.chunk, self.put[to]));
        }
        self.put[to] += 1;
        self.elements += payload.elements();
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let body = FrameBody::Lazy(payload, ticket);
        self.out[to].push_back((self.clock, LinkItem::Frame { header: *header, body }));
        ticket
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.misuse.get_or_insert(format!("{ticket:?} is cancelled without an abort"));
    }

    fn send(&mut self, to: PeerId, message: LinkMessage) {
        self.out[Self::rank(to).index()].push_back((self.clock, LinkItem::Message(message)));
    }

    fn frame(&self, slot: SlotId) -> &[Symbol] {
        self.slots.get(&slot).map_or(&[], Vec::as_slice)
    }

    fn release(&mut self, slot: SlotId) {
        self.taken[Self::rank(slot.from).index()] += 1;
        if self.slots.remove(&slot).is_none() {
            self.misuse.get_or_insert(format!("slot {} is released, but empty", slot.index));
        }
    }
}
