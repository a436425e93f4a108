//! Incoming frames of one stream. A payload is read directly into its segment if it is its turn.

use super::segment::{SegmentId, Segments};
use super::wire::{Body, Head};
use crate::connection::Connection;
use crate::order::Order;
use crate::slots::{SlotBuffer, SlotPool};
use std::io;

/// Why a connection ends.
#[derive(Debug)]
pub enum ConnectionEnd {
    /// A stream has ended.
    Ended,
    /// It is broken.
    Lost(String),
    /// The other end violated the protocol.
    Violation(String),
    /// The other end aborted it.
    Aborted(String),
}

impl From<io::Error> for ConnectionEnd {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Ended,
            io::ErrorKind::InvalidData => Self::Violation(error.to_string()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

/// A frame that is complete.
pub enum CompleteFrame {
    /// A put that is in its segment.
    Placed(u64),
    /// A put that has to wait for others.
    HeldPut(u64, HeldPut),
    /// A frame without payload.
    Bare(Head),
}

/// A put that waits for earlier ones, or cannot be read into its segment directly.
#[derive(Debug)]
pub struct HeldPut {
    pub segment: SegmentId,
    pub offset: u64,
    pub payload: SlotBuffer,
    /// Whether it is a word, which is set at once.
    pub is_word: bool,
}

/// The state of reading.
#[derive(Debug)]
pub enum Incoming {
    /// Before a head.
    Head,
    /// Within a put.
    Put(IncomingPut),
    /// Within the reason of an abort.
    Reason { bytes: usize, text: Vec<u8> },
}

/// A put that is not complete.
#[derive(Debug)]
pub struct IncomingPut {
    place: u64,
    segment: SegmentId,
    offset: u64,
    bytes: usize,
    have: usize,
    /// Its buffer, if it is not its turn or it cannot be read into its segment directly.
    held: Option<SlotBuffer>,
    is_word: bool,
}

impl Incoming {
    /// Reads what has arrived. Returns the next frame if it is complete.
    pub fn next<T>(
        &mut self,
        socket: &mut Connection,
        order: &Order<T>,
        segments: &Segments,
        pool: &mut SlotPool,
    ) -> Result<Option<CompleteFrame>, ConnectionEnd> {
        loop {
            match self {
                Self::Head => match take_head(socket) {
                    Some(head) => {
                        let invalid = || ConnectionEnd::Violation("invalid frame".into());
                        let head = Head::decode(&head).ok_or_else(invalid)?;
                        match Self::begin(head, order, segments, pool)? {
                            Self::Head => return Ok(Some(CompleteFrame::Bare(head))),
                            begun => *self = begun,
                        }
                    }
                    None if socket.fill()? => {}
                    None => return Ok(None),
                },
                Self::Put(put) => {
                    if !put.advance(socket, segments)? {
                        return Ok(None);
                    }
                    if let Self::Put(put) = core::mem::replace(self, Self::Head) {
                        return Ok(Some(put.whole()));
                    }
                }
                Self::Reason { bytes, text } => {
                    if text.len() == *bytes {
                        return Err(ConnectionEnd::Aborted(String::from_utf8_lossy(text).into_owned()));
                    }
                    let have = text.len();
                    text.resize(*bytes, 0);
                    let read = receive(socket, &mut text[have..])?;
                    text.truncate(have + read);
                    if read == 0 {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn begin<T>(
        head: Head,
        order: &Order<T>,
        segments: &Segments,
        pool: &mut SlotPool,
    ) -> Result<Self, ConnectionEnd> {
        let place = head.place;
        match head.body {
            Body::Put { segment, offset, bytes } => {
                let bytes = bytes as usize;
                let is_direct = segments.check(segment, offset, bytes).map_err(ConnectionEnd::Violation)?;
                let held = (!is_direct || !order.is_due(place)).then(|| pool.take(bytes));
                Ok(Self::Put(IncomingPut { place, segment, offset, bytes, have: 0, held, is_word: false }))
            }
            Body::Word { segment, offset } => {
                let bytes = Head::WORD_BYTES;
                segments.check(segment, offset, bytes).map_err(ConnectionEnd::Violation)?;
                let held = Some(pool.take(bytes));
                Ok(Self::Put(IncomingPut { place, segment, offset, bytes, have: 0, held, is_word: true }))
            }
            Body::Abort { bytes } => Ok(Self::Reason { bytes: bytes as usize, text: Vec::new() }),
            Body::Signal { .. } | Body::Ask { .. } | Body::Answer { .. } | Body::Goodbye => Ok(Self::Head),
        }
    }
}

impl IncomingPut {
    /// Reads what has arrived. Returns whether the put is complete.
    fn advance(&mut self, socket: &mut Connection, segments: &Segments) -> Result<bool, ConnectionEnd> {
        while self.have < self.bytes {
            let left = self.bytes - self.have;
            let read = match &mut self.held {
                Some(held) => receive(socket, &mut held.as_mut_slice()[self.have..])?,
                // The segment is looked up each time, so that it is not held while the rest is on its way.
                None => segments
                    .write(self.segment, self.offset + self.have as u64, left, |place| receive(socket, place))
                    .map_err(ConnectionEnd::Violation)??,
            };
            if read == 0 {
                return Ok(false);
            }
            self.have += read;
        }
        Ok(true)
    }

    fn whole(self) -> CompleteFrame {
        match self.held {
            None => CompleteFrame::Placed(self.place),
            Some(payload) => {
                let Self { segment, offset, is_word, .. } = self;
                CompleteFrame::HeldPut(self.place, HeldPut { segment, offset, payload, is_word })
            }
        }
    }
}

fn take_head(socket: &mut Connection) -> Option<[u8; Head::BYTES]> {
    socket.take(|input| {
        let (head, rest) = input.split_first_chunk::<{ Head::BYTES }>()?;
        *input = rest;
        Some(*head)
    })
}

/// Takes what was read before, or reads. Returns the number of bytes.
fn receive(socket: &mut Connection, place: &mut [u8]) -> io::Result<usize> {
    if !socket.has_input() {
        return socket.read_into(place);
    }
    Ok(socket.take(|input| {
        let (taken, rest) = input.split_at(input.len().min(place.len()));
        place[..taken.len()].copy_from_slice(taken);
        *input = rest;
        taken.len()
    }))
}
