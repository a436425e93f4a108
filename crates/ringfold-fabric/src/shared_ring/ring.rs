//! The ring of records: one writer, one reader.
//!
//! A record is a prefix and a body: a message, or a frame's header with a small payload. The prefix names the cells of
//! a larger payload. Records begin at cache lines and do not wrap around: the rest at the ring's end is skipped.

use super::cells::CellRange;
use super::direction::{LinkDirection, Word};
use crate::limits::{SHARED_INLINE_BYTES_MAX, SHARED_RING_BYTES};
use crate::memory::Lease;
use core::sync::atomic::Ordering;
use ringfold_proto::frame::DATA_HEAD_BYTES;
use std::io;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The size of the largest body.
pub(crate) const BODY_BYTES_MAX: usize = DATA_HEAD_BYTES + SHARED_INLINE_BYTES_MAX;

/// Records begin at multiples of this.
const LINE_BYTES: usize = 64;

/// In place of the length of a body: the rest of the ring is skipped.
const SKIP: u32 = u32::MAX;

/// What precedes a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Prefix {
    body_bytes: u32,
    /// Bytes in cells.
    cell_bytes: u32,
    first: u16,
    count: u16,
    reserved: u32,
}

impl Prefix {
    const BYTES: usize = size_of::<Self>();
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct RingWriter {
    direction: LinkDirection,
    head: u64,
    /// As last read.
    tail: u64,
    /// Cells that may be filled.
    free: u64,
}

impl RingWriter {
    pub(crate) fn new(direction: LinkDirection) -> Self {
        Self { direction, head: 0, tail: 0, free: u64::MAX }
    }

    pub(crate) fn direction(&self) -> &LinkDirection {
        &self.direction
    }

    /// Sends a record, with a payload in cells if there is one. False if there is no room; then nothing has happened.
    pub(crate) fn put(&mut self, body: &[u8], payload: Option<&Lease>) -> io::Result<bool> {
        let Some(payload) = payload else { return self.push(body, None, 0) };
        self.collect()?;
        let Some(range) = CellRange::find(self.free, payload.len()) else { return Ok(false) };
        if !self.has_room(body.len())? {
            return Ok(false);
        }
        payload.copy_to(self.direction.cells(range.first, payload.len()));
        self.free &= !range.mask();
        self.push(body, Some(range), payload.len())
    }

    /// Whether the other end has made room since the last refresh.
    pub(crate) fn has_news(&self) -> bool {
        self.direction.word(Word::Returned).load(Ordering::Acquire) != 0
            || self.direction.word(Word::Tail).load(Ordering::Acquire) != self.tail
    }

    /// Reads how much room the other end has made.
    pub(crate) fn refresh(&mut self) -> io::Result<()> {
        self.collect()?;
        self.read_tail()
    }

    /// Takes the cells that were released.
    fn collect(&mut self) -> io::Result<()> {
        let word = self.direction.word(Word::Returned);
        if word.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let returned = word.swap(0, Ordering::Acquire);
        if returned & self.free != 0 {
            return Err(broken("a cell was released that was not in use"));
        }
        self.free |= returned;
        Ok(())
    }

    fn push(&mut self, body: &[u8], range: Option<CellRange>, cell_bytes: usize) -> io::Result<bool> {
        assert!(body.len() <= BODY_BYTES_MAX);
        if !self.has_room(body.len())? {
            return Ok(false);
        }
        let at = self.head as usize % SHARED_RING_BYTES;
        let skipped = skipped(at, body.len());
        if skipped > 0 {
            let skip = Prefix { body_bytes: SKIP, ..Prefix::default() };
            self.direction.ring(at, Prefix::BYTES).copy_from(skip.as_bytes());
        }
        let at = (at + skipped) % SHARED_RING_BYTES;
        let range = range.unwrap_or(CellRange { first: 0, count: 0 });
        let prefix = Prefix {
            body_bytes: body.len() as u32,
            cell_bytes: cell_bytes as u32,
            first: range.first as u16,
            count: range.count as u16,
            reserved: 0,
        };
        self.direction.ring(at, Prefix::BYTES).copy_from(prefix.as_bytes());
        self.direction.ring(at + Prefix::BYTES, body.len()).copy_from(body);
        self.head += (skipped + record_bytes(body.len())) as u64;
        self.direction.word(Word::Head).store(self.head, Ordering::Release);
        Ok(true)
    }

    /// Whether the ring has room for such a body.
    fn has_room(&mut self, body_bytes: usize) -> io::Result<bool> {
        let at = self.head as usize % SHARED_RING_BYTES;
        let end = self.head + (skipped(at, body_bytes) + record_bytes(body_bytes)) as u64;
        if end - self.tail <= SHARED_RING_BYTES as u64 {
            return Ok(true);
        }
        self.read_tail()?;
        Ok(end - self.tail <= SHARED_RING_BYTES as u64)
    }

    fn read_tail(&mut self) -> io::Result<()> {
        let tail = self.direction.word(Word::Tail).load(Ordering::Acquire);
        if tail < self.tail || tail > self.head {
            return Err(broken("more was read than was written"));
        }
        self.tail = tail;
        Ok(())
    }
}

/// What a record holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Bytes of the body.
    pub(crate) body_bytes: usize,
    /// The cells of its payload, and the bytes in them.
    pub(crate) cells: Option<(CellRange, usize)>,
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct RingReader {
    direction: LinkDirection,
    /// As last read.
    head: u64,
    tail: u64,
}

impl RingReader {
    pub(crate) fn new(direction: LinkDirection) -> Self {
        Self { direction, head: 0, tail: 0 }
    }

    pub(crate) fn direction(&self) -> &LinkDirection {
        &self.direction
    }

    /// Whether there is a record that was not taken.
    pub(crate) fn has_records(&self) -> bool {
        self.head != self.tail || self.direction.word(Word::Head).load(Ordering::Acquire) != self.tail
    }

    /// Copies the next record's body out, if there is one.
    pub(crate) fn pop(&mut self, body: &mut [u8; BODY_BYTES_MAX]) -> io::Result<Option<Record>> {
        // A skip leads to the start of the ring, so there are two rounds at most.
        loop {
            if self.head == self.tail && !self.read_head()? {
                return Ok(None);
            }
            let at = self.tail as usize % SHARED_RING_BYTES;
            let mut prefix = Prefix::default();
            self.direction.ring(at, Prefix::BYTES).copy_to(prefix.as_mut_bytes());
            if prefix.body_bytes == SKIP {
                if at == 0 {
                    return Err(broken("a skip of the whole ring"));
                }
                self.advance(SHARED_RING_BYTES - at)?;
                continue;
            }
            let body_bytes = prefix.body_bytes as usize;
            if body_bytes > BODY_BYTES_MAX || skipped(at, body_bytes) > 0 {
                return Err(broken("a record is too long"));
            }
            self.direction.ring(at + Prefix::BYTES, body_bytes).copy_to(&mut body[..body_bytes]);
            self.advance(record_bytes(body_bytes))?;
            let cells = match (prefix.cell_bytes, prefix.count) {
                (0, 0) => None,
                (bytes, count) => {
                    let range = CellRange::checked(usize::from(prefix.first), usize::from(count));
                    Some((
                        range.ok_or_else(|| broken("a record names cells that do not exist"))?,
                        bytes as usize,
                    ))
                }
            };
            return Ok(Some(Record { body_bytes, cells }));
        }
    }

    /// Reads how much was written. Whether there is a record.
    fn read_head(&mut self) -> io::Result<bool> {
        let head = self.direction.word(Word::Head).load(Ordering::Acquire);
        let is_sound = head >= self.tail
            && head - self.tail <= SHARED_RING_BYTES as u64
            && head.is_multiple_of(LINE_BYTES as u64);
        if !is_sound {
            return Err(broken("invalid head"));
        }
        self.head = head;
        Ok(self.head != self.tail)
    }

    fn advance(&mut self, bytes: usize) -> io::Result<()> {
        if bytes as u64 > self.head - self.tail {
            return Err(broken("a record is incomplete"));
        }
        self.tail += bytes as u64;
        self.direction.word(Word::Tail).store(self.tail, Ordering::Release);
        Ok(())
    }
}

/// The size of a record.
fn record_bytes(body_bytes: usize) -> usize {
    (Prefix::BYTES + body_bytes).next_multiple_of(LINE_BYTES)
}

/// Bytes that are skipped at the end of the ring if a record does not fit there.
fn skipped(at: usize, body_bytes: usize) -> usize {
    let left = SHARED_RING_BYTES - at;
    if record_bytes(body_bytes) > left { left } else { 0 }
}

fn broken(why: &str) -> io::Error {
    io::Error::other(format!("invalid shared ring: {why}"))
}
