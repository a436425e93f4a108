//! The puts that are not flushed, and the links.

use super::link::Link;
use crate::medium::Ticket;
use foldhash::HashMap;
use ringfold_proto::id::{OpId, PeerId};
use ringfold_proto::time::Time;
use std::collections::BTreeMap;

/// A put that is not flushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightPut {
    pub(super) op: OpId,
    /// The operation's lane.
    pub(super) lane: usize,
    pub(super) peer: PeerId,
    /// The number of its link.
    pub(super) link: u64,
}

/// All links, and the puts in flight on them.
#[derive(Debug, Default)]
pub(super) struct InFlightPuts {
    /// Sorted, so that runs are deterministic.
    pub(super) links: BTreeMap<PeerId, Link>,
    by_ticket: HashMap<Ticket, InFlightPut>,
    links_made: u64,
}

impl InFlightPuts {
    /// Adds a link.
    pub(super) fn link_up(&mut self, now: Time, peer: PeerId) {
        self.links_made += 1;
        self.links.insert(peer, Link::new(self.links_made, now));
    }

    /// Records a put.
    pub(super) fn begin(&mut self, now: Time, ticket: Ticket, op: OpId, lane: usize, peer: PeerId) {
        let link = self.links.get_mut(&peer).map_or(0, |link| {
            link.put(now);
            link.number
        });
        self.by_ticket.insert(ticket, InFlightPut { op, lane, peer, link });
    }

    /// Removes a flushed put.
    pub(super) fn end(&mut self, now: Time, ticket: Ticket) -> Option<InFlightPut> {
        let put = self.by_ticket.remove(&ticket)?;
        if let Some(link) = self.links.get_mut(&put.peer)
            && link.number == put.link
        {
            link.flushed(now);
        }
        Some(put)
    }
}
