//! What precedes a frame of a channel: 32 bytes, little-endian.
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
pub enum Head {
    /// Bytes for a segment.
    Put { place: u64, segment: SegmentId, offset: u64, bytes: u32 },
    /// Signals on a channel.
    Signal { place: u64, channel: u32, count: u64 },
    /// An aligned word of a segment; its value follows.
    Word { place: u64, segment: SegmentId, offset: u64 },
    /// Whoever reads this tells that everything before it is where it belongs.
    Ask { place: u64, number: u64 },
    /// Everything before that question is where it belongs. It has no place in the order of the other direction.
    Answer { number: u64 },
    /// Nothing follows, and nothing is wrong.
    Goodbye { place: u64 },
    /// The connection is given up. It has no place in the order, because it waits for nothing.
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

    /// As it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (kind, length, numbers) = match *self {
            Self::Put { place, segment, offset, bytes } => (1, bytes, [place, segment.0, offset]),
            Self::Signal { place, channel, count } => (2, 0, [place, u64::from(channel), count]),
            Self::Abort { bytes } => (3, bytes, [0; 3]),
            Self::Word { place, segment, offset } => (4, Self::WORD_BYTES as u32, [place, segment.0, offset]),
            Self::Ask { place, number } => (5, 0, [place, number, 0]),
            Self::Answer { number } => (6, 0, [0, number, 0]),
            Self::Goodbye { place } => (7, 0, [place, 0, 0]),
        };
        zerocopy::transmute!(Layout { kind: [kind, 0, 0, 0], length, numbers })
    }

    /// From its bytes, if they are within the bounds.
    pub fn decode(head: &[u8; Self::BYTES]) -> Option<Self> {
        let Layout { kind, length, numbers: [place, a, b] } = zerocopy::transmute!(*head);
        let is_within = |max: usize| usize::try_from(length).is_ok_and(|length| length <= max);
        match kind {
            [1, 0, 0, 0] if is_within(limits::CHANNEL_FRAME_BYTES_MAX) => {
                Some(Self::Put { place, segment: SegmentId(a), offset: b, bytes: length })
            }
            [2, 0, 0, 0] if length == 0 => {
                Some(Self::Signal { place, channel: u32::try_from(a).ok()?, count: b })
            }
            [3, 0, 0, 0] if is_within(limits::ABORT_REASON_BYTES_MAX) => Some(Self::Abort { bytes: length }),
            [4, 0, 0, 0] if length as usize == Self::WORD_BYTES => {
                Some(Self::Word { place, segment: SegmentId(a), offset: b })
            }
            [5, 0, 0, 0] if length == 0 => Some(Self::Ask { place, number: a }),
            [6, 0, 0, 0] if length == 0 => Some(Self::Answer { number: a }),
            [7, 0, 0, 0] if length == 0 => Some(Self::Goodbye { place }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_their_way_and_others_are_no_heads() {
        let put = Head::Put { place: 7, segment: SegmentId(u64::MAX), offset: 1 << 40, bytes: 262_144 };
        let word = Head::Word { place: 9, segment: SegmentId(5), offset: 8 };
        let signal = Head::Signal { place: 8, channel: 3, count: 9 };
        let talk = [
            Head::Ask { place: 1, number: 2 },
            Head::Answer { number: u64::MAX },
            Head::Goodbye { place: 3 },
        ];
        for head in [put, signal, Head::Abort { bytes: 100 }, word].into_iter().chain(talk) {
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
