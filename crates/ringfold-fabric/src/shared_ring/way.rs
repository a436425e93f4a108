//! One direction of a link's memory, as it lies in the segment.
//!
//! A page of words, the ring of records, the cells. All of it may be written by the other process at any time,
//! whatever it has promised: words are read as atomics and checked, all else is copied out before it is looked at, or
//! is payload, which nobody interprets.

use crate::limits::{SHARED_CELL_BYTES, SHARED_CELLS, SHARED_RING_BYTES};
use crate::segment::Segment;
use crate::shared_bytes::SharedBytes;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const RING_AT: usize = PAGE_BYTES;
const CELLS_AT: usize = RING_AT + SHARED_RING_BYTES;
const WAY_BYTES: usize = CELLS_AT + SHARED_CELLS * SHARED_CELL_BYTES;

/// A segment holds two directions, behind a page of its own.
pub(crate) const SEGMENT_BYTES: usize = PAGE_BYTES + 2 * WAY_BYTES;

/// Where the layout is told, and what stands there: another layout has another number.
const LAYOUT_AT: usize = Segment::RESERVED_BYTES;
const LAYOUT: u64 = 0x5246_4c31 << 32 | (SHARED_CELL_BYTES + SHARED_CELLS) as u64;

/// One direction.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    segment: Arc<Segment>,
    at: usize,
}

/// Words that the two ends tell each other. Each has cache lines of its own.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    /// Bytes that were ever written to the ring; the writer's.
    Head = 0,
    /// Bytes of them that were read; the reader's.
    Tail = 128,
    /// Cells that were emptied and that the writer has not taken note of.
    Returned = 256,
    /// What the reader of this direction is to be woken for, if it sleeps.
    Bell = 384,
}

/// Two directions in a new segment: the one that its maker writes first.
pub(crate) fn lay_out(segment: Segment) -> io::Result<(Way, Way)> {
    let ways = ways(segment)?;
    ways.0.layout().store(LAYOUT, Ordering::Release);
    Ok(ways)
}

/// The two directions in a segment that someone else made: the one that its maker writes first.
pub(crate) fn find(segment: Segment) -> io::Result<(Way, Way)> {
    let ways = ways(segment)?;
    if ways.0.layout().load(Ordering::Acquire) != LAYOUT {
        return Err(io::Error::other("its memory is laid out in another way"));
    }
    Ok(ways)
}

fn ways(segment: Segment) -> io::Result<(Way, Way)> {
    if segment.len() != SEGMENT_BYTES {
        return Err(io::Error::other("its memory has another size"));
    }
    let segment = Arc::new(segment);
    let second = PAGE_BYTES + WAY_BYTES;
    Ok((Way { segment: segment.clone(), at: PAGE_BYTES }, Way { segment, at: second }))
}

impl Way {
    pub(crate) fn word(&self, word: Word) -> &AtomicU64 {
        self.segment.bytes().word(self.at + word as usize)
    }

    fn layout(&self) -> &AtomicU64 {
        self.segment.bytes().word(LAYOUT_AT)
    }

    /// Some bytes of the ring, which must not go beyond its end.
    pub(crate) fn ring(&self, at: usize, bytes: usize) -> SharedBytes<'_> {
        self.part(RING_AT, SHARED_RING_BYTES).part(at..at + bytes)
    }

    /// So many bytes from the start of a cell on.
    pub(crate) fn cells(&self, first: usize, bytes: usize) -> SharedBytes<'_> {
        let at = first * SHARED_CELL_BYTES;
        self.part(CELLS_AT, SHARED_CELLS * SHARED_CELL_BYTES).part(at..at + bytes)
    }

    fn part(&self, at: usize, bytes: usize) -> SharedBytes<'_> {
        self.segment.bytes().part(self.at + at..self.at + at + bytes)
    }
}
