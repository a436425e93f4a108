//! The head of a frame of a channel: 32 bytes, little-endian.
//!
//! ```text
//!  kind u8 │ reserved 3 │ length u32 │ place u64 │ a u64 │ b u64
//!    1 put     length of payload        its order   segment  offset
//!    2 signal  0                        its order   channel  how many
//!    3 abort   length of the reason     0           0        0
//!    4 word    8: its value             its order   segment  offset
//!    5 ask     0                        its order   number   0
//!    6 answer  0                        0           number   0
//!    7 goodbye 0                        its order   0        0
//! ```

use super::segment::SegmentId;
use crate::limits;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A frame without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its position in the order of its direction. Answers and aborts have none: they wait for nothing.
    pub place: u64,
    /// The rest.
    pub body: Body,
}

/// The kinds of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// Bytes for a segment.
    Put { segment: SegmentId, offset: u64, bytes: u32 },
    /// Signals on a channel.
    Signal { channel: u32, count: u64 },
    /// An aligned word of a segment; its value follows.
    Word { segment: SegmentId, offset: u64 },
    /// Asks for an answer when everything before it is in place.
    Ask { number: u64 },
    /// Everything before that question is in place.
    Answer { number: u64 },
    /// Nothing follows, and nothing is wrong.
    Goodbye,
    /// The connection is aborted; the reason follows.
    Abort { bytes: u32 },
}

/// The layout of a head: kind and three reserved bytes, length, and what depends on the kind.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Layout {
    kind: [u8; 4],
    length: u32,
    numbers: [u64; 3],
}

impl Head {
    /// Bytes of a word.
    pub const WORD_BYTES: usize = 8;

    /// Bytes of a head.
    pub const BYTES: usize = size_of::<Layout>();

    /// Its bytes on the wire.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (kind, length, a, b) = match self.body {
            Body::Put { segment, offset, bytes } => (1, bytes, segment.0, offset),
            Body::Signal { channel, count } => (2, 0, u64::from(channel), count),
            Body::Abort { bytes } => (3, bytes, 0, 0),
            Body::Word { segment, offset } => (4, Self::WORD_BYTES as u32, segment.0, offset),
            Body::Ask { number } => (5, 0, number, 0),
            Body::Answer { number } => (6, 0, number, 0),
            Body::Goodbye => (7, 0, 0, 0),
        };
        zerocopy::transmute!(Layout { kind: [kind, 0, 0, 0], length, numbers: [self.place, a, b] })
    }

    /// From its bytes, if they are valid.
    pub fn decode(head: &[u8; Self::BYTES]) -> Option<Self> {
        let Layout { kind, length, numbers: [place, a, b] } = zerocopy::transmute!(*head);
        let is_within = |max: usize| usize::try_from(length).is_ok_and(|length| length <= max);
        let body = match kind {
            [1, 0, 0, 0] if is_within(limits::CHANNEL_FRAME_BYTES_MAX) => {
                Body::Put { segment: SegmentId(a), offset: b, bytes: length }
            }
            [2, 0, 0, 0] if length == 0 => Body::Signal { channel: u32::try_from(a).ok()?, count: b },
            [3, 0, 0, 0] if is_within(limits::ABORT_REASON_BYTES_MAX) => Body::Abort { bytes: length },
            [4, 0, 0, 0] if length as usize == Self::WORD_BYTES => {
                Body::Word { segment: SegmentId(a), offset: b }
            }
            [5, 0, 0, 0] if length == 0 => Body::Ask { number: a },
            [6, 0, 0, 0] if length == 0 => Body::Answer { number: a },
            [7, 0, 0, 0] if length == 0 => Body::Goodbye,
            _ => return None,
        };
        Some(Self { place, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_decoded_and_invalid_ones_rejected() {
        let put = Head {
            place: 7,
            body: Body::Put { segment: SegmentId(u64::MAX), offset: 1 << 40, bytes: 262_144 },
        };
        let word = Head { place: 9, body: Body::Word { segment: SegmentId(5), offset: 8 } };
        let bare = [
            Body::Signal { channel: 3, count: 9 },
            Body::Ask { number: 2 },
            Body::Answer { number: u64::MAX },
            Body::Goodbye,
            Body::Abort { bytes: 100 },
        ];
        let bare = bare.into_iter().map(|body| Head { place: 8, body });
        for head in [put, word].into_iter().chain(bare) {
            assert_eq!(Head::decode(&head.encode()), Some(head));
        }
        let mut long = put.encode();
        long[4..8].copy_from_slice(&262_145u32.to_le_bytes());
        assert_eq!(Head::decode(&long), None);
        let mut wide = word.encode();
        wide[4] = 16;
        assert_eq!(Head::decode(&wide), None);
        for kind in [0, 4, 8, 255] {
            assert_eq!(Head::decode(&[kind; 32]), None);
        }
    }
}
