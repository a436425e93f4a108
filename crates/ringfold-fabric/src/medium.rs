//! The links of a peer, as the executor's medium.

use crate::connection::close_all;
use crate::link::{Arrival, Link};
use crate::memory::Lease;
use crate::poller::Token;
use crate::shared_link::SharedLink;
use crate::slots::{SlotBuffer, SlotPool};
use core::marker::PhantomData;
use foldhash::HashMap;
use ringfold_plan::executor::FrameDecision;
use ringfold_plan::medium::{Medium, SlotId, Ticket};
use ringfold_plan::workspace::Workspace;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{EpochId, PeerId};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::network::Path;
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

/// All links of this peer.
#[derive(Debug)]
pub struct LinkMedium<W> {
    links: BTreeMap<PeerId, Link>,
    by_token: HashMap<Token, PeerId>,
    /// Peers whose link goes through shared memory.
    shared: Vec<PeerId>,
    slots: HashMap<SlotId, SlotBuffer>,
    pool: SlotPool,
    tickets: u64,
    /// Puts that have left, and were not reported to the executor.
    flushed: Vec<Ticket>,
    workspace: PhantomData<fn(W)>,
}

impl<W> Default for LinkMedium<W> {
    fn default() -> Self {
        Self::new(SlotPool::default())
    }
}

impl<W> LinkMedium<W> {
    /// Without links. Payloads are received into memory of this pool.
    pub fn new(pool: SlotPool) -> Self {
        Self {
            links: BTreeMap::new(),
            by_token: HashMap::default(),
            shared: Vec::new(),
            slots: HashMap::default(),
            pool,
            tickets: 0,
            flushed: Vec::new(),
            workspace: PhantomData,
        }
    }

    /// Adds the link with a peer. It replaces the one that there was.
    pub fn add(&mut self, peer: PeerId, link: Link) {
        self.remove(peer);
        self.by_token.extend(link.tokens().map(|token| (token, peer)));
        if link.is_shared() {
            self.shared.push(peer);
        }
        self.links.insert(peer, link);
    }

    /// Whether there is a link with a peer.
    pub fn has(&self, peer: PeerId) -> bool {
        self.links.contains_key(&peer)
    }

    /// Whose link a socket belongs to.
    pub fn peer_of(&self, token: Token) -> Option<PeerId> {
        self.by_token.get(&token).copied()
    }

    /// How many links go through shared memory.
    pub fn shared_count(&self) -> usize {
        self.shared.len()
    }

    /// Whether all of them do.
    pub fn is_all_shared(&self) -> bool {
        self.shared.len() == self.links.len()
    }

    /// How many links stay on this host, through shared memory or sockets.
    pub fn local_count(&self) -> usize {
        self.links.values().filter(|link| link.is_local()).count()
    }

    /// Whether the link to a peer stays on this host.
    pub fn is_local(&self, peer: PeerId) -> bool {
        self.links.get(&peer).is_some_and(Link::is_local)
    }

    /// What is known of the network between this peer and another one.
    pub fn measure(&self, peer: PeerId) -> Path {
        let (round_trip, rate) = self.links.get(&peer).map_or((None, None), Link::measure);
        let number = |value: u128| u32::try_from(value).unwrap_or(u32::MAX);
        Path {
            round_trip_us: round_trip.map_or(0, |time| number(time.as_micros().max(1))),
            kib_per_s: rate.map_or(0, |rate| number(u128::from(rate / 1024).max(1))),
        }
    }

    /// The peers with a link.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.links.keys().copied()
    }

    /// The poller reports a socket of a link.
    pub fn handle_ready(&mut self, peer: PeerId) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.handle_ready();
        }
    }

    /// Reads what has arrived on the only link, if there is one, without asking the poller. Returns the peer if there is
    /// something to take; none if only the poller can tell.
    pub fn look(&mut self) -> Option<Option<PeerId>> {
        let mut links = self.links.iter_mut();
        let (Some((peer, link)), None) = (links.next(), links.next()) else { return None };
        link.look().map(|is_there| is_there.then_some(*peer))
    }

    /// The links through shared memory on which something has happened. The poller does not report that.
    pub fn ready_shared(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.shared_links().filter(|(_, link)| link.is_ready()).map(|(peer, _)| peer)
    }

    /// From now on the poller reports what happens on links through shared memory. True if something has happened
    /// already: then no thread may sleep.
    pub fn prepare_sleep(&self) -> bool {
        // All are prepared, even if one is ready: a thread that is in the poller relies on it.
        self.shared_links().fold(false, |is_ready, (_, link)| link.prepare_sleep() | is_ready)
    }

    /// This thread polls the links again; the poller need not report them.
    pub fn cancel_sleep(&self) {
        self.shared_links().for_each(|(_, link)| link.cancel_sleep());
    }

    fn shared_links(&self) -> impl Iterator<Item = (PeerId, &SharedLink)> {
        self.shared.iter().filter_map(|peer| match self.links.get(peer)? {
            Link::Shared(link) => Some((*peer, &**link)),
            Link::Streams(_) => None,
        })
    }

    /// Drops a link, its slots and what was not sent. Returns whether there was one.
    pub fn remove(&mut self, peer: PeerId) -> bool {
        let was_there = self.detach(peer);
        if was_there {
            self.drop_slots(|slot| slot.from == peer);
        }
        was_there
    }

    /// As [`LinkMedium::remove`], but its slots stay: they hold what was sent before its end.
    pub fn detach(&mut self, peer: PeerId) -> bool {
        let Some(mut link) = self.links.remove(&peer) else { return false };
        for token in link.tokens() {
            self.by_token.remove(&token);
        }
        self.shared.retain(|other| *other != peer);
        link.drain_unsent(&mut self.flushed);
        true
    }

    /// Sends the rest on all links and closes them, by the deadline at the latest.
    pub fn close(&mut self, deadline: Instant) {
        self.by_token.clear();
        self.shared.clear();
        close_all(core::mem::take(&mut self.links).into_values(), deadline, Link::poll_closed);
    }

    /// Drops the slots of an epoch that is over.
    pub fn retire(&mut self, epoch: EpochId) {
        self.drop_slots(|slot| slot.epoch == epoch);
    }

    fn drop_slots(&mut self, is_over: impl Fn(&SlotId) -> bool) {
        for (_, buffer) in self.slots.extract_if(|slot, _| is_over(slot)) {
            self.pool.give_back(buffer);
        }
    }

    /// The next arrival on a link, if one is complete. A frame is then in its slot.
    pub fn next(
        &mut self,
        from: PeerId,
        judge: impl Fn(&DataHeader) -> FrameDecision,
    ) -> io::Result<Option<Received>> {
        let Some(link) = self.links.get_mut(&from) else { return Ok(None) };
        Ok(link.next(&mut self.pool, judge)?.map(|arrival| match arrival {
            Arrival::Frame(header, payload) => {
                let slot = SlotId { from, epoch: header.op.epoch, index: header.slot };
                if let Some(replaced) = self.slots.insert(slot, payload) {
                    self.pool.give_back(replaced);
                }
                Received::Frame(header)
            }
            Arrival::Discarded(header, payload) => {
                self.pool.give_back(payload);
                Received::Discarded(header)
            }
            Arrival::Message(message) => Received::Message(message),
        }))
    }

    /// The next flush also sends messages that could wait.
    pub fn flush_deferred(&mut self) {
        self.links.values_mut().for_each(Link::flush_deferred);
    }

    /// Sends what the connections take. Returns the links that broke.
    pub fn flush(&mut self) -> Vec<PeerId> {
        let flushed = &mut self.flushed;
        let broken = |(peer, link): (&PeerId, &mut Link)| link.flush(flushed).is_err().then_some(*peer);
        self.links.iter_mut().filter_map(broken).collect()
    }

    /// Whether a put has left and was not reported.
    pub fn has_flushed(&self) -> bool {
        !self.flushed.is_empty()
    }

    /// A put that has left and was not reported.
    pub fn next_flushed(&mut self) -> Option<Ticket> {
        self.flushed.pop()
    }
}

/// What arrived on a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// A frame is in its slot.
    Frame(DataHeader),
    /// A frame was discarded.
    Discarded(DataHeader),
    /// A message.
    Message(LinkMessage),
}

impl<W: Workspace<Payload = Lease, Frame = [u8]>> Medium for LinkMedium<W> {
    type Workspace = W;

    fn put(&mut self, to: PeerId, header: &DataHeader, payload: Lease) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        match self.links.get_mut(&to) {
            Some(link) => link.put(header, payload, ticket),
            None => self.flushed.push(ticket),
        }
        ticket
    }

    fn cancel(&mut self, ticket: Ticket) {
        if self.links.values_mut().any(|link| link.cancel(ticket)) {
            self.flushed.push(ticket);
        }
    }

    fn send(&mut self, to: PeerId, message: LinkMessage) {
        if let Some(link) = self.links.get_mut(&to) {
            if message.overtakes_data() {
                link.send_message_first(&message);
            } else {
                link.send_message(&message);
            }
        }
    }

    fn frame(&self, slot: SlotId) -> &[u8] {
        self.slots.get(&slot).map_or(&[], SlotBuffer::as_slice)
    }

    fn release(&mut self, slot: SlotId) {
        if let Some(buffer) = self.slots.remove(&slot) {
            self.pool.give_back(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Connection, Intake};
    use crate::limits;
    use crate::poller::Poller;
    use ringfold_proto::id::OpId;
    use ringfold_proto::limits::PAYLOAD_BYTES_MAX;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    #[test]
    fn links_whose_peers_do_not_read_are_closed_by_one_deadline() {
        const LINKS: u128 = 6;
        const FRAME: usize = PAYLOAD_BYTES_MAX;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let poller = Arc::new(Poller::new().unwrap());
        let mut medium = LinkMedium::<()>::default();
        let mut silent = Vec::new();
        for peer in 0..LINKS {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            silent.push(listener.accept().unwrap().0);
            let mut link = Link::new(vec![Connection::new(stream, &poller, Intake::Frames).unwrap()]);
            for chunk in 0..128 {
                let (op, length) = (OpId::default(), FRAME as u32);
                let header = DataHeader {
                    op,
                    fingerprint: 0,
                    chunk,
                    offset: 0,
                    length,
                    slot: 0,
                    eager: true,
                    checksum: None,
                };
                link.put(&header, Lease::from(vec![0; FRAME]), Ticket(0));
            }
            medium.add(PeerId(peer), link);
        }
        let began = Instant::now();
        medium.close(began + limits::FAREWELL_MAX);
        let took = began.elapsed();
        assert!(took >= limits::FAREWELL_MAX, "the peers read: {took:?}");
        assert!(took < limits::FAREWELL_MAX * LINKS as u32, "one after the other: {took:?}");
        assert!(medium.links.is_empty());
    }
}
