//! What each stream of a link begins with.

use crate::limits;
use crate::segment::Ticket;

/// What the dialler of a link says on each of its streams: which link, which stream, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamHead {
    /// A number that the dialler chose for the link.
    pub link: u64,
    /// Which stream.
    pub index: u16,
    /// Of how many.
    pub count: u16,
    /// Shared memory that is offered in its place. Only where there is one stream.
    pub offer: Option<Ticket>,
}

/// What the acceptor answers to an offer: it has opened the memory.
pub const ACCEPTED: u8 = 1;

/// Or it can't, or will not; then the stream itself is the link.
pub const DECLINED: u8 = 0;

impl StreamHead {
    const BYTES: usize = 16;
    const OFFERS: u8 = 1;

    /// As it travels: three reserved bytes follow the flag, and the ticket if there is one.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES + Ticket::BYTES);
        bytes.extend(self.link.to_le_bytes());
        bytes.extend(self.index.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend([if self.offer.is_some() { Self::OFFERS } else { 0 }, 0, 0, 0]);
        bytes.extend(self.offer.iter().flat_map(Ticket::encode));
        bytes
    }

    /// Takes a head off the front of `input`, if all of it is here.
    pub fn take(input: &mut &[u8]) -> Option<Result<Self, &'static str>> {
        let (head, mut rest) = input.split_first_chunk::<{ Self::BYTES }>()?;
        let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let (index, count) = (number(8), number(10));
        let link = u64::from_le_bytes(*head.first_chunk()?);
        let mut offer = None;
        if head[12] & Self::OFFERS != 0 {
            let (ticket, behind) = rest.split_first_chunk()?;
            // A ticket of another kind is one that can't be used.
            offer =
                Some(Ticket::decode(ticket).unwrap_or(Ticket { pid: 0, fd: 0, bytes: 0, nonce: [0; 16] }));
            rest = behind;
        }
        *input = rest;
        let is_sound = index < count && count <= limits::STREAMS_MAX && (count == 1 || offer.is_none());
        Some(if is_sound { Ok(Self { link, index, count, offer }) } else { Err("invalid stream head") })
    }
}
