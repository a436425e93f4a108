//! One direction of a link's memory: a page of words, the ring of records, the cells.
//!
//! The other process may write all of it at any time. Words are atomics and are checked; all else is copied out before
//! it is decoded, or is payload, which is not interpreted.

use crate::limits::{SHARED_CELL_BYTES, SHARED_CELLS, SHARED_RING_BYTES};
use crate::segment::Segment;
use crate::shared_bytes::SharedBytes;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const RING_AT: usize = PAGE_BYTES;
const CELLS_AT: usize = RING_AT + SHARED_RING_BYTES;
const DIRECTION_BYTES: usize = CELLS_AT + SHARED_CELLS * SHARED_CELL_BYTES;

/// A segment holds two directions, behind a page of its own.
pub(crate) const SEGMENT_BYTES: usize = PAGE_BYTES + 2 * DIRECTION_BYTES;

/// Where the version of the layout is, and its value.
const LAYOUT_AT: usize = Segment::RESERVED_BYTES;
const LAYOUT: u64 = 0x5246_4c31 << 32 | (SHARED_CELL_BYTES + SHARED_CELLS) as u64;

/// One direction.
#[derive(Clone, Debug)]
pub(crate) struct LinkDirection {
    segment: Arc<Segment>,
    at: usize,
}

/// Words that the two ends exchange. Each has cache lines of its own.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    /// Bytes that were ever written to the ring; the writer's.
    Head = 0,
    /// Bytes of them that were read; the reader's.
    Tail = 128,
    /// Cells that were released, as bits; the writer clears them.
    Returned = 256,
    /// What the reader of this direction has to be woken for, if it sleeps.
    SleepMarks = 384,
}

/// The two directions in a new segment, first the one that its creator writes.
pub(crate) fn format_segment(segment: Segment) -> io::Result<(LinkDirection, LinkDirection)> {
    let directions = directions(segment)?;
    directions.0.layout().store(LAYOUT, Ordering::Release);
    Ok(directions)
}

/// The two directions in a segment of another process, first the one that its creator writes.
pub(crate) fn open_segment(segment: Segment) -> io::Result<(LinkDirection, LinkDirection)> {
    let directions = directions(segment)?;
    if directions.0.layout().load(Ordering::Acquire) != LAYOUT {
        return Err(io::Error::other("invalid link memory: unknown layout"));
    }
    Ok(directions)
}

fn directions(segment: Segment) -> io::Result<(LinkDirection, LinkDirection)> {
    if segment.len() != SEGMENT_BYTES {
        let why = format!("invalid link memory: {} bytes instead of {SEGMENT_BYTES}", segment.len());
        return Err(io::Error::other(why));
    }
    let segment = Arc::new(segment);
    let second = PAGE_BYTES + DIRECTION_BYTES;
    Ok((LinkDirection { segment: segment.clone(), at: PAGE_BYTES }, LinkDirection { segment, at: second }))
}

impl LinkDirection {
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

    /// Bytes from the start of a cell on.
    pub(crate) fn cells(&self, first: usize, bytes: usize) -> SharedBytes<'_> {
        let at = first * SHARED_CELL_BYTES;
        self.part(CELLS_AT, SHARED_CELLS * SHARED_CELL_BYTES).part(at..at + bytes)
    }

    fn part(&self, at: usize, bytes: usize) -> SharedBytes<'_> {
        self.segment.bytes().part(self.at + at..self.at + at + bytes)
    }
}
