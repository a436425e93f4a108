//! One rank's side of the in-memory medium: what it has handed over, and the slots that others fill.

use super::memory::{Lazy, Symbols};
use super::symbol::Symbol;
use crate::medium::{Medium, SlotId, Ticket};
use crate::step::Region;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{PeerId, Rank};
use ringfold_proto::link_message::LinkMessage;
use std::collections::{HashMap, VecDeque};

/// What is under way on a link.
#[derive(Debug)]
pub(super) enum Parcel {
    Frame { header: DataHeader, body: Body },
    Message(LinkMessage),
}

/// A frame's contents: read from the sender's memory already, or still to be read.
#[derive(Debug)]
pub(super) enum Body {
    Lazy(Lazy, Ticket),
    Read(Vec<Symbol>),
}

/// What a rank has handed over, received, and not been told yet.
#[derive(Debug)]
pub(super) struct Port {
    /// By the rank that it goes to; with the time at which it was handed over.
    pub(super) out: Vec<VecDeque<(u64, Parcel)>>,
    slots: HashMap<SlotId, Vec<Symbol>>,
    tickets: u64,
    /// Counts what is handed over, over all links, so that older can be told from newer.
    clock: u64,
    /// Puts that have been read and not reported as flushed.
    pub(super) unreported: Vec<Ticket>,
    /// Frames that were put, by the rank that they go to.
    pub(super) put: Vec<usize>,
    /// Frames that were taken, by the rank that they came from.
    pub(super) taken: Vec<usize>,
    /// Frames that arrived, by the rank that they came from.
    pub(super) arrived: Vec<usize>,
    /// Elements that were put.
    pub(super) elements: u64,
    /// A rule of the medium that the executor broke.
    pub(super) misuse: Option<String>,
}

impl Port {
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

    /// Advances the time by which older is told from newer.
    pub(super) fn tick(&mut self, clock: u64) {
        self.clock = clock;
    }

    /// The bytes of a frame are in their slot now.
    pub(super) fn fill(&mut self, slot: SlotId, frame: Vec<Symbol>) {
        self.arrived[Self::rank(slot.from).index()] += 1;
        if self.slots.insert(slot, frame).is_some() {
            self.misuse.get_or_insert(format!("slot {} is filled twice", slot.index));
        }
    }

    /// Whether a frame to a rank is still to be read.
    pub(super) fn has_unread(&self, to: usize) -> bool {
        let is_unread = |parcel: &Parcel| matches!(parcel, Parcel::Frame { body: Body::Lazy(..), .. });
        self.out[to].iter().any(|(_, parcel)| is_unread(parcel))
    }

    /// Reads the oldest unread frame to a rank. Says whether there was one, or what it found overwritten.
    pub(super) fn read_ahead(&mut self, to: usize) -> Result<bool, (Region, u64)> {
        for (_, parcel) in &mut self.out[to] {
            if let Parcel::Frame { body, .. } = parcel
                && let Body::Lazy(..) = body
            {
                let unread = core::mem::replace(body, Body::Read(Vec::new()));
                *body = Body::Read(unread.read(&mut self.unreported)?);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Body {
    /// The contents. A put that is read only now can be reported as flushed from now on.
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

impl Medium for Port {
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
        let body = Body::Lazy(payload, ticket);
        self.out[to].push_back((self.clock, Parcel::Frame { header: *header, body }));
        ticket
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.misuse.get_or_insert(format!("{ticket:?} is cancelled, though nothing was aborted"));
    }

    fn send(&mut self, to: PeerId, message: LinkMessage) {
        self.out[Self::rank(to).index()].push_back((self.clock, Parcel::Message(message)));
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
