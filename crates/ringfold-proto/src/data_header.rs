//! The header of a data frame: a fixed layout of 72 bytes, little-endian.

use crate::descriptor::mix;
use crate::id::{EpochId, GroupId, Incarnation, OpId, Seq, Tag};
use crate::limits;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header of a data frame, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataHeader {
    /// The operation that the bytes belong to.
    pub op: OpId,
    /// The fingerprint of the operation as the sender knows it.
    pub fingerprint: u64,
    /// Counts the frames of this operation from this sender to this receiver.
    pub chunk: u32,
    /// The position of the first element in the whole.
    pub offset: u64,
    /// Payload bytes that follow.
    pub length: u32,
    /// The receiver's slot for the payload.
    pub slot: u16,
    /// Whether the slot needs no grant.
    pub eager: bool,
    /// The checksum of the frame, if the operation checks payloads ([`frame_checksum`]).
    pub checksum: Option<u32>,
}

/// The checksum of a frame: of its payload's checksum, and of the place in the operation that the payload is for.
///
/// A payload's checksum is the low half of the low 64 bits of its XXH3-128, combined with the high half by exclusive or.
pub fn frame_checksum(op: OpId, fingerprint: u64, chunk: u32, payload: u32) -> u32 {
    let parts = [op.tag.0, op.seq.0, u64::from(chunk), u64::from(payload)];
    parts.into_iter().fold(fingerprint, mix) as u32
}

/// Why a data header is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidHeader {
    /// Too few bytes.
    #[error("invalid data header of {0} bytes: must be {need}", need = DataHeader::BYTES)]
    Length(usize),
    /// Unknown flags.
    #[error("unknown data flags {0:#06x}")]
    Flags(u16),
    /// The payload exceeds the limit.
    #[error("payload of {0} bytes exceeds the limit of {max}", max = limits::PAYLOAD_BYTES_MAX)]
    TooLong(u32),
}

const EAGER: u16 = 1;
const CHECKSUM: u16 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    group: U32,
    slot: U16,
    flags: U16,
    incarnation: U64,
    counter: U64,
    tag: U64,
    seq: U64,
    fingerprint: U64,
    chunk: U32,
    length: U32,
    offset: U64,
    checksum: U32,
    reserved: U32,
}

impl DataHeader {
    /// The size on the wire.
    pub const BYTES: usize = size_of::<Layout>();

    /// Encodes the header.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let flags = if self.eager { EAGER } else { 0 } | if self.checksum.is_some() { CHECKSUM } else { 0 };
        let layout = Layout {
            group: self.op.epoch.group.0.into(),
            slot: self.slot.into(),
            flags: flags.into(),
            incarnation: self.op.epoch.incarnation.0.into(),
            counter: self.op.epoch.counter.into(),
            tag: self.op.tag.0.into(),
            seq: self.op.seq.0.into(),
            fingerprint: self.fingerprint.into(),
            chunk: self.chunk.into(),
            length: self.length.into(),
            offset: self.offset.into(),
            checksum: self.checksum.unwrap_or(0).into(),
            reserved: 0.into(),
        };
        zerocopy::transmute!(layout)
    }

    /// Decodes the first [`Self::BYTES`] of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidHeader> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| InvalidHeader::Length(bytes.len()))?;
        let flags = layout.flags.get();
        if flags & !(EAGER | CHECKSUM) != 0 {
            return Err(InvalidHeader::Flags(flags));
        }
        let length = layout.length.get();
        if length as usize > limits::PAYLOAD_BYTES_MAX {
            return Err(InvalidHeader::TooLong(length));
        }
        let epoch = EpochId {
            group: GroupId(layout.group.get()),
            incarnation: Incarnation(layout.incarnation.get()),
            counter: layout.counter.get(),
        };
        Ok(Self {
            op: OpId { epoch, tag: Tag(layout.tag.get()), seq: Seq(layout.seq.get()) },
            fingerprint: layout.fingerprint.get(),
            chunk: layout.chunk.get(),
            offset: layout.offset.get(),
            length,
            slot: layout.slot.get(),
            eager: flags & EAGER != 0,
            checksum: (flags & CHECKSUM != 0).then(|| layout.checksum.get()),
        })
    }
}
