//! The ring of records: one writer, one reader.
//!
//! A record is a prefix and a body: a frame's head with a small payload, or a message; or it says in which cells the
//! payload lies. Records begin at cache lines and never go around the ring's end: what is left there is skipped.

use super::cells::Run;
use super::way::{Way, Word};
use crate::limits::{SHARED_INLINE_BYTES_MAX, SHARED_RING_BYTES};
use crate::memory::Lease;
use core::sync::atomic::Ordering;
use ringfold_proto::frame::DATA_HEAD_BYTES;
use std::io;

/// Bytes of a body at most.
pub(crate) const BODY_BYTES_MAX: usize = DATA_HEAD_BYTES + SHARED_INLINE_BYTES_MAX;

/// Records begin at multiples of this.
const LINE_BYTES: usize = 64;

/// In place of the length of a body: the rest of the ring is skipped.
const SKIP: u32 = u32::MAX;

/// What precedes a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Prefix {
    body_bytes: u32,
    /// Bytes in cells.
    cell_bytes: u32,
    first: u16,
    count: u16,
}

impl Prefix {
    const BYTES: usize = 16;

    fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.cell_bytes.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.first.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = bytes;
        Self {
            body_bytes: u32::from_le_bytes([a, b, c, d]),
            cell_bytes: u32::from_le_bytes([e, f, g, h]),
            first: u16::from_le_bytes([i, j]),
            count: u16::from_le_bytes([k, l]),
        }
    }
}

/// Where bytes lie that are to be sent. They may be someone else's, so they are only ever copied.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    start: *const u8,
    bytes: usize,
    owner: core::marker::PhantomData<&'a u8>,
}

impl<'a> From<&'a Lease> for Source<'a> {
    fn from(lease: &'a Lease) -> Self {
        Self { start: lease.start(), bytes: lease.len(), owner: core::marker::PhantomData }
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), bytes: bytes.len(), owner: core::marker::PhantomData }
    }
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct Outlet {
    way: Way,
    head: u64,
    /// As far as we know.
    tail: u64,
    /// Cells that we may fill.
    free: u64,
}

impl Outlet {
    pub(crate) fn new(way: Way) -> Self {
        Self { way, head: 0, tail: 0, free: u64::MAX }
    }

    /// The direction that it writes.
    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Sends a body with what belongs to it in cells. Says whether there was room; if not, nothing has happened.
    pub(crate) fn put(&mut self, body: &[u8], in_cells: Source<'_>) -> io::Result<bool> {
        if in_cells.bytes == 0 {
            return self.push(body, None, 0);
        }
        self.collect()?;
        let Some(run) = Run::find(self.free, in_cells.bytes) else { return Ok(false) };
        if !self.has_room(body.len())? {
            return Ok(false);
        }
        let cells = self.way.cells(run.first, in_cells.bytes);
        // SAFETY: a source is made of what can be read while it is borrowed, and lies elsewhere. The reader is told of the
        // cells afterwards, by an atomic.
        unsafe { core::ptr::copy_nonoverlapping(in_cells.start, cells.as_ptr(), in_cells.bytes) };
        self.free &= !run.mask();
        self.push(body, Some(run), in_cells.bytes)
    }

    /// Whether the other end has made room since we last looked.
    pub(crate) fn has_news(&self) -> bool {
        self.way.word(Word::Returned).load(Ordering::Acquire) != 0
            || self.way.word(Word::Tail).load(Ordering::Acquire) != self.tail
    }

    /// Takes note of the room that the other end has made.
    pub(crate) fn refresh(&mut self) -> io::Result<()> {
        self.collect()?;
        self.look()
    }

    /// Takes back the cells that were emptied.
    fn collect(&mut self) -> io::Result<()> {
        let word = self.way.word(Word::Returned);
        if word.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let returned = word.swap(0, Ordering::Acquire);
        if returned & self.free != 0 {
            return Err(broken("a cell was given back that was not lent"));
        }
        self.free |= returned;
        Ok(())
    }

    fn push(&mut self, body: &[u8], run: Option<Run>, cell_bytes: usize) -> io::Result<bool> {
        assert!(body.len() <= BODY_BYTES_MAX);
        if !self.has_room(body.len())? {
            return Ok(false);
        }
        let at = self.head as usize % SHARED_RING_BYTES;
        let skipped = skipped(at, body.len());
        if skipped > 0 {
            let skip = Prefix { body_bytes: SKIP, cell_bytes: 0, first: 0, count: 0 };
            self.way.ring(at, Prefix::BYTES).copy_from(&skip.encode());
        }
        let at = (at + skipped) % SHARED_RING_BYTES;
        let run = run.unwrap_or(Run { first: 0, count: 0 });
        let prefix = Prefix {
            body_bytes: body.len() as u32,
            cell_bytes: cell_bytes as u32,
            first: run.first as u16,
            count: run.count as u16,
        };
        self.way.ring(at, Prefix::BYTES).copy_from(&prefix.encode());
        self.way.ring(at + Prefix::BYTES, body.len()).copy_from(body);
        self.head += (skipped + record_bytes(body.len())) as u64;
        self.way.word(Word::Head).store(self.head, Ordering::Release);
        Ok(true)
    }

    /// Whether the ring has room for such a body.
    fn has_room(&mut self, body_bytes: usize) -> io::Result<bool> {
        let at = self.head as usize % SHARED_RING_BYTES;
        let end = self.head + (skipped(at, body_bytes) + record_bytes(body_bytes)) as u64;
        if end - self.tail <= SHARED_RING_BYTES as u64 {
            return Ok(true);
        }
        self.look()?;
        Ok(end - self.tail <= SHARED_RING_BYTES as u64)
    }

    /// Looks how far the reader is.
    fn look(&mut self) -> io::Result<()> {
        let tail = self.way.word(Word::Tail).load(Ordering::Acquire);
        if tail < self.tail || tail > self.head {
            return Err(broken("more was read than there was to read"));
        }
        self.tail = tail;
        Ok(())
    }
}

/// What a record brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Bytes of the body.
    pub(crate) body_bytes: usize,
    /// Cells that belong to it, and how many bytes are in them.
    pub(crate) cells: Option<(Run, usize)>,
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Inlet {
    way: Way,
    /// As far as we know.
    head: u64,
    tail: u64,
}

impl Inlet {
    pub(crate) fn new(way: Way) -> Self {
        Self { way, head: 0, tail: 0 }
    }

    /// The direction that it reads.
    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Whether there is a record that was not taken.
    pub(crate) fn has_records(&self) -> bool {
        self.head != self.tail || self.way.word(Word::Head).load(Ordering::Acquire) != self.tail
    }

    /// Copies the next record's body out, if there is one.
    pub(crate) fn pop(&mut self, body: &mut [u8; BODY_BYTES_MAX]) -> io::Result<Option<Record>> {
        // Skipping leads to the start of the ring, so this goes around twice at most.
        loop {
            if self.head == self.tail && !self.look()? {
                return Ok(None);
            }
            let at = self.tail as usize % SHARED_RING_BYTES;
            let mut prefix = [0; Prefix::BYTES];
            self.way.ring(at, Prefix::BYTES).copy_to(&mut prefix);
            let prefix = Prefix::decode(prefix);
            if prefix.body_bytes == SKIP {
                if at == 0 {
                    return Err(broken("it skips all of it"));
                }
                self.advance(SHARED_RING_BYTES - at)?;
                continue;
            }
            let body_bytes = prefix.body_bytes as usize;
            if body_bytes > BODY_BYTES_MAX || skipped(at, body_bytes) > 0 {
                return Err(broken("a record is too long"));
            }
            self.way.ring(at + Prefix::BYTES, body_bytes).copy_to(&mut body[..body_bytes]);
            self.advance(record_bytes(body_bytes))?;
            let cells = match (prefix.cell_bytes, prefix.count) {
                (0, 0) => None,
                (bytes, count) => {
                    let run = Run::named(usize::from(prefix.first), usize::from(count));
                    Some((
                        run.ok_or_else(|| broken("a record names cells that are not there"))?,
                        bytes as usize,
                    ))
                }
            };
            return Ok(Some(Record { body_bytes, cells }));
        }
    }

    /// Looks whether the writer is further. Says whether there is anything.
    fn look(&mut self) -> io::Result<bool> {
        let head = self.way.word(Word::Head).load(Ordering::Acquire);
        let is_sound = head >= self.tail
            && head - self.tail <= SHARED_RING_BYTES as u64
            && head.is_multiple_of(LINE_BYTES as u64);
        if !is_sound {
            return Err(broken("its counts make no sense"));
        }
        self.head = head;
        Ok(self.head != self.tail)
    }

    fn advance(&mut self, bytes: usize) -> io::Result<()> {
        if bytes as u64 > self.head - self.tail {
            return Err(broken("a record is incomplete"));
        }
        self.tail += bytes as u64;
        self.way.word(Word::Tail).store(self.tail, Ordering::Release);
        Ok(())
    }
}

/// Bytes that a record takes.
fn record_bytes(body_bytes: usize) -> usize {
    (Prefix::BYTES + body_bytes).next_multiple_of(LINE_BYTES)
}

/// Bytes that are left unused at the end of the ring if a record does not fit there.
fn skipped(at: usize, body_bytes: usize) -> usize {
    let left = SHARED_RING_BYTES - at;
    if record_bytes(body_bytes) > left { left } else { 0 }
}

fn broken(why: &str) -> io::Error {
    io::Error::other(format!("the other end has broken the shared ring: {why}"))
}
