//! Frames on a byte stream. Encoding and decoding do no I/O.
//!
//! ```text
//!  control connection   length u32 │ message                               length ≤ CONTROL_BYTES_MAX
//!  data connection      kind u8 │ flags u8 │ reserved u16 │ length u32 │ …
//!                         kind 1: … = DataHeader (72 bytes) and its payload, which is never buffered here
//!                         kind 2: … = LinkMessage                          length ≤ LINK_MESSAGE_BYTES_MAX
//! ```
//!
//! Lengths count the bytes after the prefix. Decoders consume bytes from the front of a slice, up to the end of the item
//! that they return. They buffer at most one frame, and grow with the bytes that have arrived, never with a claimed
//! length. After an error they return that error for ever, because the stream cannot be resynchronized.

use crate::bounded::{Bounded, LimitExceeded};
use crate::data_header::{DataHeader, InvalidHeader};
use crate::decode_budget::{Budgeted, DecodeBudget};
use crate::limits;
use crate::link_message::LinkMessage;
use crate::message::Numbered;
use core::marker::PhantomData;
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a frame is invalid, or a message cannot be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub enum FrameError {
    /// The frame is too long. For a message that does not fit, `bytes` is a lower bound.
    #[error("frame of {bytes} bytes exceeds the limit of {max}")]
    TooLong { bytes: usize, max: usize },
    #[error("unknown frame kind {0}")]
    Kind(u8),
    #[error("unknown frame flags {0:#04x}")]
    Flags(u8),
    #[error("invalid data header: {0}")]
    Header(InvalidHeader),
    /// The lengths in a data frame and in its header differ.
    #[error("invalid data frame: payload of {frame} bytes, but its header says {header}")]
    PayloadLength { frame: usize, header: usize },
    /// The bytes are not a message.
    #[error("invalid or unknown message")]
    Malformed,
    #[error("invalid frame: {bytes} bytes follow the message")]
    Trailing { bytes: usize },
    /// The lists of the message need too much memory.
    #[error("invalid message: its lists exceed {max} bytes, or their frame")]
    TooLarge { max: usize },
    /// The message exceeds a limit.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
}

/// Encodes a control message as a frame.
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

/// Appends a control message to `out` as a frame. An error leaves `out` unchanged.
pub fn encode_control_into<T: Serialize + Bounded>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    encode_into(message, &[], out)
}

/// A message that is encoded once and sent on many sessions, on each with its own numbers.
#[derive(Debug)]
pub struct SharedMessage<M> {
    message: M,
    body: Vec<u8>,
}

impl<M: Serialize + PartialEq> SharedMessage<M>
where
    Numbered<M>: Bounded,
{
    /// Encodes the message.
    ///
    /// ```
    /// use ringfold_proto::frame::{SharedMessage, encode_control};
    /// use ringfold_proto::message::{Numbered, ToPeer};
    ///
    /// let shared = SharedMessage::new(ToPeer::Demoted)?;
    /// let message = Numbered { number: 300, acknowledged: 7, message: ToPeer::Demoted };
    /// assert!(shared.is(&message.message));
    /// assert_eq!(shared.encode(300, 7)?, encode_control(&message)?);
    /// # Ok::<(), ringfold_proto::frame::FrameError>(())
    /// ```
    pub fn new(message: M) -> Result<Self, FrameError> {
        let numbered = Numbered { number: 0, acknowledged: 0, message };
        let mut body = encode_control(&numbered)?;
        // Each of the two numbers takes a byte.
        body.drain(..CONTROL_PREFIX_BYTES + 2);
        Ok(Self { message: numbered.message, body })
    }

    /// Whether it is this message.
    pub fn is(&self, message: &M) -> bool {
        self.message == *message
    }

    /// The frame with these numbers, as [`encode_control`] would encode it.
    pub fn encode(&self, number: u64, acknowledged: u64) -> Result<Vec<u8>, FrameError> {
        let numbers = postcard::to_allocvec(&(number, acknowledged)).map_err(|_| FrameError::Malformed)?;
        let (bytes, max) = (numbers.len() + self.body.len(), Numbered::<M>::BYTES_MAX);
        let length = u32::try_from(bytes).ok().filter(|_| bytes <= max);
        let length = length.ok_or(FrameError::TooLong { bytes, max })?;
        Ok([&length.to_le_bytes()[..], &numbers, &self.body].concat())
    }
}

/// Encodes a message for a data connection as a frame.
pub fn encode_link(message: &LinkMessage) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::new();
    encode_link_into(message, &mut out)?;
    Ok(out)
}

/// Appends a message for a data connection to `out` as a frame. An error leaves `out` unchanged.
pub fn encode_link_into(message: &LinkMessage, out: &mut Vec<u8>) -> Result<(), FrameError> {
    encode_into(message, &[MESSAGE, 0, 0, 0], out)
}

/// Encodes the head of a data frame. The payload is sent from its own memory.
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
    // Far below 4 GiB by the limit above.
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

/// Decodes the messages of a control connection.
#[derive(Debug)]
pub struct ControlDecoder<T> {
    buffer: FrameBuffer,
    broken: Option<FrameError>,
    message_bytes: usize,
    message: PhantomData<fn() -> T>,
}

impl<T> Default for ControlDecoder<T> {
    fn default() -> Self {
        Self { buffer: FrameBuffer::default(), broken: None, message_bytes: 0, message: PhantomData }
    }
}

impl<T: DeserializeOwned + Bounded> ControlDecoder<T> {
    /// Consumes bytes of `input` up to the end of the next message. Call it until it returns `None`.
    pub fn next_message(&mut self, input: &mut &[u8]) -> Result<Option<T>, FrameError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let message = self.decode_next(input);
        self.broken = message.as_ref().err().copied();
        message
    }

    /// Buffered bytes of an incomplete frame. If a stream ends with some, it was truncated.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// Bytes of memory that the last message takes at most.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    fn decode_next(&mut self, input: &mut &[u8]) -> Result<Option<T>, FrameError> {
        let Some(prefix) = self.buffer.collect(input, CONTROL_PREFIX_BYTES) else { return Ok(None) };
        let length = decode_length(prefix.first_chunk().expect("the prefix was collected"), T::BYTES_MAX)?;
        let Some(frame) = self.buffer.collect(input, CONTROL_PREFIX_BYTES + length) else {
            return Ok(None);
        };
        let (message, list_bytes) = decode_message(&frame[CONTROL_PREFIX_BYTES..])?;
        // Texts are not longer than the frame.
        self.message_bytes = length + list_bytes;
        self.buffer.finish(input, CONTROL_PREFIX_BYTES + length);
        Ok(Some(message))
    }
}

/// An item of a data connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkItem {
    /// A data frame; the caller reads the payload that follows.
    Data(DataHeader),
    /// A message.
    Message(LinkMessage),
}

/// Decodes the headers and messages of a data connection.
///
/// It does not buffer payloads: after [`LinkItem::Data`] the caller takes the part that was already read
/// ([`Self::take_payload`]), and reads the rest to its destination ([`Self::skip_payload`]).
#[derive(Debug, Default)]
pub struct LinkDecoder {
    buffer: FrameBuffer,
    payload_left: usize,
    broken: Option<FrameError>,
}

impl LinkDecoder {
    /// Consumes bytes of `input` up to the end of the next item.
    ///
    /// # Panics
    /// If the payload of the last data frame was not taken.
    pub fn next_item(&mut self, input: &mut &[u8]) -> Result<Option<LinkItem>, FrameError> {
        assert_eq!(self.payload_left, 0, "the payload must be taken before the next frame");
        if let Some(error) = self.broken {
            return Err(error);
        }
        let item = self.decode_next(input);
        self.broken = item.as_ref().err().copied();
        item
    }

    /// Least number of bytes until the next item. A caller that reads exactly as many reads no byte of a payload, and
    /// never waits for bytes that are not sent.
    pub fn wanted_bytes(&self) -> usize {
        let prefix = self.buffer.bytes.first_chunk();
        let frame = prefix.and_then(|p| LinkPrefix::decode(p).ok()).map_or(0, |p| p.buffered());
        LINK_PREFIX_BYTES.max(frame).saturating_sub(self.buffer.bytes.len())
    }

    /// Bytes of the last payload that were not taken yet.
    pub fn payload_bytes(&self) -> usize {
        self.payload_left
    }

    /// Takes the part of the payload that is in `input`.
    pub fn take_payload<'i>(&mut self, input: &mut &'i [u8]) -> &'i [u8] {
        let (payload, rest) = input.split_at(input.len().min(self.payload_left));
        *input = rest;
        self.payload_left -= payload.len();
        payload
    }

    /// Notes that the caller has read bytes of the payload from the stream.
    ///
    /// # Panics
    /// If the payload has fewer bytes left.
    pub fn skip_payload(&mut self, bytes: usize) {
        self.payload_left = self.payload_left.checked_sub(bytes).expect("more was read than the payload");
    }

    /// Buffered bytes of an incomplete frame. If a stream ends with some, it was truncated.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.bytes.len()
    }

    fn decode_next(&mut self, input: &mut &[u8]) -> Result<Option<LinkItem>, FrameError> {
        let Some(prefix) = self.buffer.collect(input, LINK_PREFIX_BYTES) else { return Ok(None) };
        let prefix = LinkPrefix::decode(prefix.first_chunk().expect("the prefix was collected"))?;
        let Some(frame) = self.buffer.collect(input, prefix.buffered()) else { return Ok(None) };
        let body = &frame[LINK_PREFIX_BYTES..];
        let item = match prefix {
            LinkPrefix::Message { .. } => LinkItem::Message(decode_message(body)?.0),
            LinkPrefix::Data { payload } => {
                let header = DataHeader::decode(body).map_err(FrameError::Header)?;
                if header.length as usize != payload {
                    return Err(FrameError::PayloadLength { frame: payload, header: header.length as usize });
                }
                self.payload_left = payload;
                LinkItem::Data(header)
            }
        };
        self.buffer.finish(input, prefix.buffered());
        Ok(Some(item))
    }
}

/// A valid prefix of a frame on a data connection.
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
                let length = decode_length(&length, data_max)?;
                let payload = length.checked_sub(DataHeader::BYTES);
                let payload = payload.ok_or(FrameError::Header(InvalidHeader::Length(length)))?;
                Ok(Self::Data { payload })
            }
            MESSAGE => Ok(Self::Message { length: decode_length(&length, LinkMessage::BYTES_MAX)? }),
            _ => Err(FrameError::Kind(kind)),
        }
    }

    /// Bytes of the frame that are buffered: all but the payload.
    fn buffered(self) -> usize {
        match self {
            Self::Data { .. } => DATA_HEAD_BYTES,
            Self::Message { length } => LINK_PREFIX_BYTES + length,
        }
    }
}

/// The bytes of an incomplete frame. Frames that arrive in one piece are not copied.
#[derive(Debug, Default)]
struct FrameBuffer {
    bytes: Vec<u8>,
}

impl FrameBuffer {
    /// The first `need` bytes of the frame, or `None` after consuming all of `input`.
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

    /// Drops the frame of `length` bytes, which is either all in `input` or all buffered here.
    fn finish(&mut self, input: &mut &[u8], length: usize) {
        if self.bytes.is_empty() {
            *input = &input[length..];
        }
        self.bytes.clear();
        self.bytes.shrink_to(limits::FRAME_BUFFER_KEPT_BYTES_MAX);
    }

    /// Reserves space for `more` bytes: twice what has arrived, but at most the whole frame.
    fn reserve(&mut self, more: usize, need: usize) {
        let len = self.bytes.len() + more;
        if len > self.bytes.capacity() {
            let capacity = (2 * len).min(need).max(len);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
    }
}

/// Decodes a length and checks its limit.
fn decode_length(bytes: &[u8; 4], max: usize) -> Result<usize, FrameError> {
    let bytes = u32::from_le_bytes(*bytes) as usize;
    if bytes <= max { Ok(bytes) } else { Err(FrameError::TooLong { bytes, max }) }
}

/// Returns the message, and the bytes of memory of its lists.
fn decode_message<T: DeserializeOwned + Bounded>(body: &[u8]) -> Result<(T, usize), FrameError> {
    let mut budget = DecodeBudget::new(T::DECODED_BYTES_MAX);
    let mut deserializer = postcard::Deserializer::from_bytes(body);
    let message = T::deserialize(Budgeted::new(&mut deserializer, &mut budget)).map_err(|_| {
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
    Ok((message, T::DECODED_BYTES_MAX - budget.left_bytes))
}

/// Appends `start`, the length and the message. An error leaves `out` unchanged.
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
    let body = FrameWriter { end_max: body_at + T::BYTES_MAX, out };
    match postcard::serialize_with_flavor(message, body) {
        Ok(()) => {
            let length = (out.len() - body_at) as u32;
            out[length_at..body_at].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        // Only the limit can fail: postcard supports all types in messages.
        Err(_) => {
            out.truncate(before);
            Err(FrameError::TooLong { bytes: T::BYTES_MAX + 1, max: T::BYTES_MAX })
        }
    }
}

/// Appends to a buffer, up to a limit.
struct FrameWriter<'o> {
    out: &'o mut Vec<u8>,
    end_max: usize,
}

impl Flavor for FrameWriter<'_> {
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
