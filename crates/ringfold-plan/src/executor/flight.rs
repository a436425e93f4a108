//! Puts that may still read our memory.

use super::link::Link;
use crate::medium::Ticket;
use ringfold_proto::id::{OpId, PeerId};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, HashMap};

/// Whose put it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) op: OpId,
    /// The operation's lane.
    pub(super) lane: usize,
    pub(super) peer: PeerId,
    /// The life of the link that it was made on.
    pub(super) life: u64,
}

/// All links, and what is in flight on them.
#[derive(Debug, Default)]
pub(super) struct Flights {
    /// In an order that is the same in every run, since messages follow from looking at them in turn.
    pub(super) links: BTreeMap<PeerId, Link>,
    by_ticket: HashMap<Ticket, Flight>,
    lives: u64,
}

impl Flights {
    /// A link was made.
    pub(super) fn link_up(&mut self, now: Time, peer: PeerId) {
        self.lives += 1;
        self.links.insert(peer, Link::new(self.lives, now));
    }

    /// A put was made.
    pub(super) fn begin(&mut self, now: Time, ticket: Ticket, op: OpId, lane: usize, peer: PeerId) {
        let life = match self.links.get_mut(&peer) {
            Some(link) => {
                link.put(now);
                link.life
            }
            None => 0,
        };
        self.by_ticket.insert(ticket, Flight { op, lane, peer, life });
    }

    /// A put has left our memory.
    pub(super) fn end(&mut self, now: Time, ticket: Ticket) -> Option<Flight> {
        let flight = self.by_ticket.remove(&ticket)?;
        if let Some(link) = self.links.get_mut(&flight.peer)
            && link.life == flight.life
        {
            link.flushed(now);
        }
        Some(flight)
    }
}
