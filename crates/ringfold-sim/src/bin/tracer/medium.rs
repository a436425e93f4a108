//! Frames and messages over TCP: one link per member, and slots that are buffers of our own.

use crate::link::Link;
use crate::memory::Memory;
use ringfold_plan::medium::{Medium, SlotId, Ticket};
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{EpochId, PeerId};
use ringfold_proto::link_message::LinkMessage;
use std::collections::{BTreeMap, HashMap};

/// All links of this peer.
#[derive(Default)]
pub struct TcpMedium {
    pub links: BTreeMap<PeerId, Link>,
    slots: HashMap<SlotId, Vec<u8>>,
    tickets: u64,
    /// Puts that have left, and that the executor has not been told of.
    pub flushed: Vec<Ticket>,
}

impl TcpMedium {
    /// A frame goes into its slot.
    pub fn land(&mut self, slot: SlotId, payload: Vec<u8>) {
        self.slots.insert(slot, payload);
    }

    /// Sends what the connections take; the links that broke in doing so.
    pub fn flush(&mut self) -> Vec<PeerId> {
        let flushed = &mut self.flushed;
        let broken =
            |(peer, link): (&PeerId, &mut Link)| link.socket.flush(flushed).is_err().then_some(*peer);
        self.links.iter_mut().filter_map(broken).collect()
    }

    /// A link is given up, and with it its slots and what was not sent. Says whether there was one.
    pub fn unlink(&mut self, peer: PeerId) -> bool {
        self.slots.retain(|slot, _| slot.from != peer);
        let link = self.links.remove(&peer);
        link.map(|mut link| self.flushed.extend(link.socket.unsent())).is_some()
    }

    /// An epoch is over: nobody will read its slots.
    pub fn retire(&mut self, epoch: EpochId) {
        self.slots.retain(|slot, _| slot.epoch != epoch);
    }
}

impl Medium for TcpMedium {
    type Workspace = Memory;

    fn put(&mut self, to: PeerId, header: &DataHeader, payload: Vec<u8>) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        match self.links.get_mut(&to) {
            Some(link) => link.put(header, payload, ticket),
            None => self.flushed.push(ticket),
        }
        ticket
    }

    /// Nothing is to be done: payloads are copies, so what waits to be sent holds no memory of the user's.
    /// And it must be sent, since the receiver gives eager slots back only after they were filled.
    fn cancel(&mut self, _ticket: Ticket) {}

    fn send(&mut self, to: PeerId, message: LinkMessage) {
        if let Some(link) = self.links.get_mut(&to) {
            link.say(&message);
        }
    }

    fn frame(&self, slot: SlotId) -> &[u8] {
        self.slots.get(&slot).map_or(&[], Vec::as_slice)
    }

    fn release(&mut self, slot: SlotId) {
        self.slots.remove(&slot);
    }
}
