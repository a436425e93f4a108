//! Messages and data on a byte stream: bounded frames, encoded and decoded without reading or writing
//! anything.
//!
//! ```text
//!  control connection   length u32 │ message                               length ≤ CONTROL_BYTES_MAX
//!  data connection      kind u8 │ flags u8 │ reserved u16 │ length u32 │ …
//!                         kind 1: … = DataHeader (72 bytes) and its payload, which is never buffered here
//!                         kind 2: … = LinkMessage                          length ≤ LINK_MESSAGE_BYTES_MAX
//! ```
//!
//! Lengths count what follows the prefix. Decoders take bytes off the front of a slice, and leave what
//! lies behind the item that they return. They hold at most one frame, grow only with bytes that have
//! arrived (never with a length that was claimed), and repeat an error for ever: a stream whose frames
//! are broken can't be trusted to have others.

use crate::bounded::{Bounded, Excess};
use crate::data_header::{BadHeader, DataHeader};
use crate::frugal::{Budget, Frugal};
use crate::limits;
use crate::link_message::LinkMessage;
use core::marker::PhantomData;
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why bytes are not frames, or a message can't be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The frame is longer than it may be.
    #[error("a frame of {bytes} bytes exceeds the bound of {max}")]
    TooLong {
        /// What it has, or claims to have. A message that did not fit has at least this many.
        bytes: usize,
        /// What it may have.
        max: usize,
    },
    /// The kind of frame is none that this version knows.
    #[error("frames of kind {0} are not known")]
    Kind(u8),
    /// A flag that this version does not know.
    #[error("unknown frame flags {0:#04x}")]
    Flags(u8),
    /// The header of a data frame makes no sense.
    #[error("bad data header: {0}")]
    Header(BadHeader),
    /// A data frame and its header disagree about the payload.
    #[error("a data frame has {frame} bytes of payload, but its header says {header}")]
    PayloadLength {
        /// What the frame says.
        frame: usize,
        /// What its header says.
        header: usize,
    },
    /// The bytes are not a message.
    #[error("a frame does not hold a message that this version knows")]
    Malformed,
    /// There is a message, and something behind it.
    #[error("{bytes} bytes follow the message in its frame")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// The message would take up too much memory.
    #[error("a message claims lists that exceed the bound of {max} bytes, or the frame that they are in")]
    TooLarge {
        /// What its lists may take up.
        max: usize,
    },
    /// The message exceeds one of its own bounds.
    #[error(transparent)]
    Excess(#[from] Excess),
}

/// A control message as a frame.
///
/// ```
/// use ringfold_proto::frame::{ControlDecoder, encode_control};
/// use ringfold_proto::message::{Numbered, ToMaster};
///
/// let message = Numbered { number: 1, acknowledged: 0, message: ToMaster::Leave };
/// let frame = encode_control(&message)?;
/// let mut decoder = ControlDecoder::<Numbered<ToMaster>>::default();
/// let (mut early, mut late) = frame.split_at(3);
/// assert_eq!(decoder.next_message(&mut early)?, None);
/// assert_eq!(decoder.next_message(&mut late)?, Some(message));
/// # Ok::<(), ringfold_proto::frame::FrameError>(())
/// ```
pub fn encode_control<T: Serialize + Bounded>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::new();
    encode_control_into(message, &mut out)?;
    Ok(out)
}

/// Appends a control message to `out` as a frame. After an error `out` is as it was.
pub fn encode_control_into<T: Serialize + Bounded>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    encode_into(message, &[], out)
}

/// A message for a data connection as a frame.
pub fn encode_link(message: &LinkMessage) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::new();
    encode_link_into(message, &mut out)?;
    Ok(out)
}

/// Appends a message for a data connection to `out` as a frame. After an error `out` is as it was.
pub fn encode_link_into(message: &LinkMessage, out: &mut Vec<u8>) -> Result<(), FrameError> {
    encode_into(message, &[MESSAGE, 0, 0, 0], out)
}

/// What precedes the payload of a data frame. The payload itself goes from where it lies to the socket.
///
/// ```
/// use ringfold_proto::data_header::DataHeader;
/// use ringfold_proto::frame::{LinkDecoder, LinkItem, encode_data_head};
/// use ringfold_proto::id::OpId;
///
/// let header = DataHeader {
///     op: OpId::default(), fingerprint: 1, chunk: 0, offset: 0, length: 4, slot: 2, eager: true, checksum: None,
/// };
/// let stream = [&encode_data_head(&header)?[..], b"data"].concat();
/// let (mut bytes, mut decoder) = (&stream[..], LinkDecoder::default());
/// assert_eq!(decoder.next_item(&mut bytes)?, Some(LinkItem::Data(header)));
/// assert_eq!(decoder.payload_bytes(), 4);
/// assert_eq!(decoder.take_payload(&mut bytes), b"data");
/// # Ok::<(), ringfold_proto::frame::FrameError>(())
/// ```
pub fn encode_data_head(header: &DataHeader) -> Result<[u8; DATA_HEAD_BYTES], FrameError> {
    let length = header.length as usize;
    if length > limits::PAYLOAD_BYTES_MAX {
        return Err(FrameError::TooLong { bytes: length, max: limits::PAYLOAD_BYTES_MAX });
    }
    let mut head = [0; DATA_HEAD_BYTES];
    head[0] = DATA;
    // The bound keeps this far below 4 GiB.
    head[4..8].copy_from_slice(&((DataHeader::BYTES + length) as u32).to_le_bytes());
    head[LINK_PREFIX_BYTES..].copy_from_slice(&header.encode());
    Ok(head)
}

/// Bytes before the payload of a data frame: prefix and header.
pub const DATA_HEAD_BYTES: usize = LINK_PREFIX_BYTES + DataHeader::BYTES;

/// Bytes of the prefix of a frame on a data connection.
pub const LINK_PREFIX_BYTES: usize = 8;

const CONTROL_PREFIX_BYTES: usize = 4;
const DATA: u8 = 1;
const MESSAGE: u8 = 2;

/// Turns the bytes of a control connection back into messages.
#[derive(Debug)]
pub struct ControlDecoder<T> {
    partial: Partial,
    broken: Option<FrameError>,
    message: PhantomData<fn() -> T>,
}

impl<T> Default for ControlDecoder<T> {
    fn default() -> Self {
        Self { partial: Partial::default(), broken: None, message: PhantomData }
    }
}

impl<T: DeserializeOwned + Bounded> ControlDecoder<T> {
    /// Takes bytes off the front of `input` until there is a message, or nothing left to take.
    /// To be called until it returns `None`.
    pub fn next_message(&mut self, input: &mut &[u8]) -> Result<Option<T>, FrameError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let message = self.decode_next(input);
        self.broken = message.as_ref().err().copied();
        message
    }

    /// Bytes of an incomplete frame that are held. A stream that ends with some was cut off.
    pub fn held_bytes(&self) -> usize {
        self.partial.bytes.len()
    }

    fn decode_next(&mut self, input: &mut &[u8]) -> Result<Option<T>, FrameError> {
        let Some(prefix) = self.partial.collect(input, CONTROL_PREFIX_BYTES) else { return Ok(None) };
        let length = length_of(prefix.first_chunk().expect("the prefix was collected"), T::BYTES_MAX)?;
        let Some(frame) = self.partial.collect(input, CONTROL_PREFIX_BYTES + length) else {
            return Ok(None);
        };
        let message = decode_message(&frame[CONTROL_PREFIX_BYTES..])?;
        self.partial.finish(input, CONTROL_PREFIX_BYTES + length);
        Ok(Some(message))
    }
}

/// What a data connection carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkItem {
    /// A data frame: this many bytes of payload follow, and are the caller's to take.
    Data(DataHeader),
    /// A message.
    Message(LinkMessage),
}

/// Turns the bytes of a data connection back into headers and messages. Payloads pass it by: after
/// [`LinkItem::Data`] the caller takes the payload from what was read already
/// ([`Self::take_payload`]), and reads the rest straight to where it belongs ([`Self::skip_payload`]).
#[derive(Debug, Default)]
pub struct LinkDecoder {
    partial: Partial,
    payload_left: usize,
    broken: Option<FrameError>,
}

impl LinkDecoder {
    /// Takes bytes off the front of `input` until there is an item, or nothing left to take.
    ///
    /// # Panics
    /// If the payload of the last data frame was not taken: the caller would take payload for frames.
    pub fn next_item(&mut self, input: &mut &[u8]) -> Result<Option<LinkItem>, FrameError> {
        assert_eq!(self.payload_left, 0, "the payload is to be taken before the next frame");
        if let Some(error) = self.broken {
            return Err(error);
        }
        let item = self.decode_next(input);
        self.broken = item.as_ref().err().copied();
        item
    }

    /// Bytes that must at least arrive before there is another item. One who reads exactly as many reads
    /// no byte of a payload, and never waits for bytes that nobody sends.
    pub fn wanted_bytes(&self) -> usize {
        let prefix = self.partial.bytes.first_chunk();
        let frame = prefix.and_then(|p| LinkPrefix::decode(p).ok()).map_or(0, |p| p.buffered());
        LINK_PREFIX_BYTES.max(frame).saturating_sub(self.partial.bytes.len())
    }

    /// Bytes of the last data frame's payload that were not taken yet.
    pub fn payload_bytes(&self) -> usize {
        self.payload_left
    }

    /// Takes what there is of the payload off the front of `input`.
    pub fn take_payload<'i>(&mut self, input: &mut &'i [u8]) -> &'i [u8] {
        let (payload, rest) = input.split_at(input.len().min(self.payload_left));
        *input = rest;
        self.payload_left -= payload.len();
        payload
    }

    /// The caller has read that many bytes of the payload from the stream itself.
    ///
    /// # Panics
    /// If the payload has fewer bytes left: the caller has read into the next frame.
    pub fn skip_payload(&mut self, bytes: usize) {
        self.payload_left = self.payload_left.checked_sub(bytes).expect("more was read than the payload");
    }

    /// Bytes of an incomplete frame that are held. A stream that ends with some was cut off.
    pub fn held_bytes(&self) -> usize {
        self.partial.bytes.len()
    }

    fn decode_next(&mut self, input: &mut &[u8]) -> Result<Option<LinkItem>, FrameError> {
        let Some(prefix) = self.partial.collect(input, LINK_PREFIX_BYTES) else { return Ok(None) };
        let prefix = LinkPrefix::decode(prefix.first_chunk().expect("the prefix was collected"))?;
        let Some(frame) = self.partial.collect(input, prefix.buffered()) else { return Ok(None) };
        let body = &frame[LINK_PREFIX_BYTES..];
        let item = match prefix {
            LinkPrefix::Message { .. } => LinkItem::Message(decode_message(body)?),
            LinkPrefix::Data { payload } => {
                let header = DataHeader::decode(body).map_err(FrameError::Header)?;
                if header.length as usize != payload {
                    return Err(FrameError::PayloadLength { frame: payload, header: header.length as usize });
                }
                self.payload_left = payload;
                LinkItem::Data(header)
            }
        };
        self.partial.finish(input, prefix.buffered());
        Ok(Some(item))
    }
}

/// The prefix of a frame on a data connection, checked.
#[derive(Clone, Copy)]
enum LinkPrefix {
    Data { payload: usize },
    Message { length: usize },
}

impl LinkPrefix {
    fn decode(&[kind, flags, _, _, length @ ..]: &[u8; LINK_PREFIX_BYTES]) -> Result<Self, FrameError> {
        let data_max = DataHeader::BYTES + limits::PAYLOAD_BYTES_MAX;
        match kind {
            DATA | MESSAGE if flags != 0 => Err(FrameError::Flags(flags)),
            DATA => {
                let length = length_of(&length, data_max)?;
                let payload = length.checked_sub(DataHeader::BYTES);
                let payload = payload.ok_or(FrameError::Header(BadHeader::Length(length)))?;
                Ok(Self::Data { payload })
            }
            MESSAGE => Ok(Self::Message { length: length_of(&length, LinkMessage::BYTES_MAX)? }),
            _ => Err(FrameError::Kind(kind)),
        }
    }

    /// Bytes of the frame that are held until they are complete.
    fn buffered(self) -> usize {
        match self {
            Self::Data { .. } => DATA_HEAD_BYTES,
            Self::Message { length } => LINK_PREFIX_BYTES + length,
        }
    }
}

/// The front of a frame, of which the rest has not arrived. Frames that arrive whole are never copied.
#[derive(Debug, Default)]
struct Partial {
    bytes: Vec<u8>,
}

impl Partial {
    /// The first `need` bytes of the frame, or `None` after having taken all of `input`.
    fn collect<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8], need: usize) -> Option<&'a [u8]> {
        let whole: &'i [u8] = input;
        if self.bytes.is_empty() && whole.len() >= need {
            return Some(&whole[..need]);
        }
        let missing = need.saturating_sub(self.bytes.len());
        let (taken, rest) = input.split_at(input.len().min(missing));
        self.reserve(taken.len(), need);
        self.bytes.extend_from_slice(taken);
        *input = rest;
        self.bytes.get(..need)
    }

    /// Forgets the frame of `length` bytes: it was either all in `input`, or all held here.
    fn finish(&mut self, input: &mut &[u8], length: usize) {
        if self.bytes.is_empty() {
            *input = &input[length..];
        }
        self.bytes.clear();
        self.bytes.shrink_to(limits::FRAME_BUFFER_KEPT_BYTES_MAX);
    }

    /// Room for `more` bytes: twice what has arrived, so that growing is cheap, but no more than the
    /// whole frame needs.
    fn reserve(&mut self, more: usize, need: usize) {
        let len = self.bytes.len() + more;
        if len > self.bytes.capacity() {
            let room = (2 * len).min(need).max(len);
            self.bytes.reserve_exact(room - self.bytes.len());
        }
    }
}

/// A length on the wire, if it is within the bound.
fn length_of(bytes: &[u8; 4], max: usize) -> Result<usize, FrameError> {
    let bytes = u32::from_le_bytes(*bytes) as usize;
    if bytes <= max { Ok(bytes) } else { Err(FrameError::TooLong { bytes, max }) }
}

fn decode_message<T: DeserializeOwned + Bounded>(body: &[u8]) -> Result<T, FrameError> {
    let mut budget = Budget::new(T::DECODED_BYTES_MAX);
    let mut deserializer = postcard::Deserializer::from_bytes(body);
    let message = T::deserialize(Frugal::new(&mut deserializer, &mut budget)).map_err(|_| {
        if budget.is_exceeded() {
            FrameError::TooLarge { max: T::DECODED_BYTES_MAX }
        } else {
            FrameError::Malformed
        }
    })?;
    let rest = deserializer.finalize().map_err(|_| FrameError::Malformed)?;
    if !rest.is_empty() {
        return Err(FrameError::Trailing { bytes: rest.len() });
    }
    message.check()?;
    Ok(message)
}

/// Appends `start`, the length and the message.
fn encode_into<T: Serialize + Bounded>(
    message: &T,
    start: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    message.check()?;
    let before = out.len();
    out.extend_from_slice(start);
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    let body_at = out.len();
    let body = Body { end_max: body_at + T::BYTES_MAX, out };
    match postcard::serialize_with_flavor(message, body) {
        Ok(()) => {
            let length = (out.len() - body_at) as u32;
            out[length_at..body_at].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        // Writing is the only thing that can fail: messages hold no type that postcard lacks.
        Err(_) => {
            out.truncate(before);
            Err(FrameError::TooLong { bytes: T::BYTES_MAX + 1, max: T::BYTES_MAX })
        }
    }
}

/// Where an encoded message goes: the end of a buffer, up to its bound.
struct Body<'o> {
    out: &'o mut Vec<u8>,
    end_max: usize,
}

impl Flavor for Body<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if self.out.len() + bytes.len() > self.end_max {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
