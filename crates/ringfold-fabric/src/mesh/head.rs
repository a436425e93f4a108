//! The first bytes of each stream of a link, and of connections for shared state and probes.

use crate::limits;
use crate::segment::Ticket;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Tells the acceptor which stream of which link a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamHead {
    /// A random number of the link.
    pub link: u64,
    /// The index of the stream.
    pub index: u16,
    /// The number of streams.
    pub count: u16,
    /// Shared memory that is offered instead of the stream. Only for a link of one stream.
    pub offer: Option<Ticket>,
    /// Whether the link is stream 1 alone, by QUIC, and stream 0 shows only whether the other process lives.
    pub is_guarded: bool,
}

/// The answer of an acceptor that has opened the offered memory.
pub const ACCEPTED: u8 = 1;

/// The answer of one that has not; then the stream is the link.
pub const DECLINED: u8 = 0;

/// The flag of a head with an offer of shared memory.
const OFFERS: u8 = 1;

/// The flag of a guarded link.
const GUARDED: u8 = 2;

/// The layout of a head. The ticket follows if there is an offer.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Layout {
    link: u64,
    index: u16,
    count: u16,
    /// [`OFFERS`] and [`GUARDED`].
    flags: u8,
    reserved: [u8; 3],
}

impl StreamHead {
    /// The bytes of a head without an offer.
    pub const BYTES: usize = size_of::<Layout>();

    /// The only stream of a connection.
    pub fn single(link: u64) -> Self {
        Self { link, index: 0, count: 1, offer: None, is_guarded: false }
    }

    /// The TCP connection (0) or the QUIC connection (1) of a guarded pair.
    pub fn guarded(link: u64, index: u16) -> Self {
        Self { link, index, count: 2, offer: None, is_guarded: true }
    }

    /// Its bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let Self { link, index, count, offer, is_guarded } = *self;
        let flags = if offer.is_some() { OFFERS } else { 0 } | if is_guarded { GUARDED } else { 0 };
        let layout = Layout { link, index, count, flags, reserved: [0; 3] };
        let mut bytes = layout.as_bytes().to_vec();
        bytes.extend(offer.iter().flat_map(Ticket::encode));
        bytes
    }

    /// Takes a head off the front of `input`, if it is complete.
    pub fn take(input: &mut &[u8]) -> Option<Result<Self, &'static str>> {
        let (Layout { link, index, count, flags, .. }, mut rest) = Layout::read_from_prefix(input).ok()?;
        let mut offer = None;
        if flags & OFFERS != 0 {
            let (ticket, behind) = rest.split_first_chunk()?;
            // Tickets of other kinds are unsupported.
            offer =
                Some(Ticket::decode(ticket).unwrap_or(Ticket { pid: 0, fd: 0, bytes: 0, nonce: [0; 16] }));
            rest = behind;
        }
        *input = rest;
        let is_guarded = flags & GUARDED != 0;
        let is_valid = index < count
            && count <= limits::STREAMS_MAX
            && (count == 1 || offer.is_none())
            && (count == 2 || !is_guarded);
        Some(if is_valid {
            Ok(Self { link, index, count, offer, is_guarded })
        } else {
            Err("invalid stream head")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_decoded_and_invalid_ones_rejected() {
        let bare = StreamHead { link: 7 << 40, index: 2, count: 3, offer: None, is_guarded: false };
        let ticket = Ticket { pid: 1, fd: 2, bytes: 3, nonce: [4; 16] };
        let offering = StreamHead { link: 7, index: 0, count: 1, offer: Some(ticket), is_guarded: false };
        let guarded = StreamHead { index: 1, count: 2, is_guarded: true, ..bare };
        for head in [bare, offering, guarded] {
            let bytes = head.encode();
            for length in 0..bytes.len() {
                assert!(StreamHead::take(&mut &bytes[..length]).is_none(), "{length}");
            }
            let followed = [bytes, vec![9]].concat();
            let mut input = &followed[..];
            assert_eq!((StreamHead::take(&mut input), input), (Some(Ok(head)), &[9][..]));
        }
        for wrong in [
            StreamHead { index: 3, ..bare },
            StreamHead { count: limits::STREAMS_MAX + 1, ..bare },
            StreamHead { count: 2, ..offering },
            StreamHead { count: 3, ..guarded },
        ] {
            assert!(matches!(StreamHead::take(&mut &wrong.encode()[..]), Some(Err(_))), "{wrong:?}");
        }
    }
}
