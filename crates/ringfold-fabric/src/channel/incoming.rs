//! Frames of one stream as they come in. Payloads go straight to where they belong if it is their turn.

use super::segment::{SegmentId, Segments};
use super::wire::Head;
use crate::connection::Connection;
use crate::order::Order;
use crate::slots::{SlotBuffer, SlotPool};
use std::io;

/// Why a connection can't go on.
#[derive(Debug)]
pub enum Trouble {
    /// A stream of it has come to its end.
    Ended,
    /// It is broken.
    Lost(String),
    /// The other end did what it may not do.
    Violation(String),
    /// The other end gave it up.
    Aborted(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Ended,
            io::ErrorKind::InvalidData => Self::Violation(error.to_string()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

/// A frame that is complete.
pub enum Whole {
    /// A put that is where it belongs.
    Placed(u64),
    /// A put that came before its turn.
    Held(u64, Held),
    /// Signals.
    Signal { place: u64, channel: u32, count: u64 },
    /// A question.
    Ask { place: u64, number: u64 },
    /// The answer to one of ours.
    Answer { number: u64 },
    /// The other end leaves.
    Goodbye { place: u64 },
}

/// A put that has to wait for others, or that can't be read to its place.
#[derive(Debug)]
pub struct Held {
    pub segment: SegmentId,
    pub offset: u64,
    pub payload: SlotBuffer,
    /// Whether it is a word, which is set at once.
    pub is_word: bool,
}

/// What is being read.
#[derive(Debug)]
pub enum Incoming {
    /// The next head.
    Head,
    /// A put.
    Put(IncomingPut),
    /// The reason of an abort.
    Reason { bytes: usize, text: Vec<u8> },
}

/// A put of which some bytes are here.
#[derive(Debug)]
pub struct IncomingPut {
    place: u64,
    segment: SegmentId,
    offset: u64,
    bytes: usize,
    have: usize,
    /// Where it is kept if it is not its turn, or can't be read to its place.
    held: Option<SlotBuffer>,
    is_word: bool,
}

impl Incoming {
    /// Reads what has arrived. The next frame, if it is complete.
    pub fn next<T>(
        &mut self,
        socket: &mut Connection,
        order: &Order<T>,
        segments: &Segments,
        pool: &mut SlotPool,
    ) -> Result<Option<Whole>, Trouble> {
        loop {
            match self {
                Self::Head => match take_head(socket) {
                    Some(head) => {
                        let head =
                            Head::decode(&head).ok_or_else(|| Trouble::Violation("no frame".into()))?;
                        match head {
                            Head::Signal { place, channel, count } => {
                                return Ok(Some(Whole::Signal { place, channel, count }));
                            }
                            Head::Ask { place, number } => return Ok(Some(Whole::Ask { place, number })),
                            Head::Answer { number } => return Ok(Some(Whole::Answer { number })),
                            Head::Goodbye { place } => return Ok(Some(Whole::Goodbye { place })),
                            head => *self = Self::begin(head, order, segments, pool)?,
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
                        return Err(Trouble::Aborted(String::from_utf8_lossy(text).into_owned()));
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
    ) -> Result<Self, Trouble> {
        match head {
            Head::Put { place, segment, offset, bytes } => {
                let bytes = bytes as usize;
                let is_direct = segments.check(segment, offset, bytes).map_err(Trouble::Violation)?;
                let held = (!is_direct || !order.is_due(place)).then(|| pool.take(bytes));
                Ok(Self::Put(IncomingPut { place, segment, offset, bytes, have: 0, held, is_word: false }))
            }
            Head::Word { place, segment, offset } => {
                let bytes = Head::WORD_BYTES;
                segments.check(segment, offset, bytes).map_err(Trouble::Violation)?;
                let held = Some(pool.take(bytes));
                Ok(Self::Put(IncomingPut { place, segment, offset, bytes, have: 0, held, is_word: true }))
            }
            Head::Abort { bytes } => Ok(Self::Reason { bytes: bytes as usize, text: Vec::new() }),
            Head::Signal { .. } | Head::Ask { .. } | Head::Answer { .. } | Head::Goodbye { .. } => {
                Ok(Self::Head)
            }
        }
    }
}

impl IncomingPut {
    /// Reads what has arrived. Says whether it is complete.
    fn advance(&mut self, socket: &mut Connection, segments: &Segments) -> Result<bool, Trouble> {
        while self.have < self.bytes {
            let left = self.bytes - self.have;
            let read = match &mut self.held {
                Some(held) => receive(socket, &mut held.as_mut_slice()[self.have..])?,
                // The segment is looked up each time: nothing may hold it while the other end takes its time.
                None => segments
                    .write(self.segment, self.offset + self.have as u64, left, |place| receive(socket, place))
                    .map_err(Trouble::Violation)??,
            };
            if read == 0 {
                return Ok(false);
            }
            self.have += read;
        }
        Ok(true)
    }

    fn whole(self) -> Whole {
        match self.held {
            None => Whole::Placed(self.place),
            Some(payload) => {
                let Self { segment, offset, is_word, .. } = self;
                Whole::Held(self.place, Held { segment, offset, payload, is_word })
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

/// Takes what was read before, or reads. Says how many bytes there were.
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
