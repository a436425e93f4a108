//! One direction of a link's memory, as it lies in the segment.
//!
//! A page of words, the ring of records, the cells. All of it may be written by the other process at any time,
//! whatever it has promised: words are read as atomics and checked, all else is copied out before it is looked at, or
//! is payload, which nobody interprets.

use crate::limits::{SHARED_CELL_BYTES, SHARED_CELLS, SHARED_RING_BYTES};
use crate::segment::Segment;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const RING_AT: usize = PAGE_BYTES;
const CELLS_AT: usize = RING_AT + SHARED_RING_BYTES;
const WAY_BYTES: usize = CELLS_AT + SHARED_CELLS * SHARED_CELL_BYTES;

/// A segment holds two directions, behind a page of its own.
pub(super) const SEGMENT_BYTES: usize = PAGE_BYTES + 2 * WAY_BYTES;

/// Where the layout is told, and what stands there: another layout has another number.
const LAYOUT_AT: usize = Segment::RESERVED_BYTES;
const LAYOUT: u64 = 0x5246_4c31 << 32 | (SHARED_CELL_BYTES + SHARED_CELLS) as u64;

/// One direction.
#[derive(Clone, Debug)]
pub(super) struct Way {
    segment: Arc<Segment>,
    at: usize,
}

/// Words that the two ends tell each other. Each has cache lines of its own.
#[derive(Clone, Copy)]
pub(super) enum Word {
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
pub(super) fn lay_out(segment: Segment) -> io::Result<(Way, Way)> {
    let ways = ways(segment)?;
    ways.0.layout().store(LAYOUT, Ordering::Release);
    Ok(ways)
}

/// The two directions in a segment that someone else made: the one that its maker writes first.
pub(super) fn find(segment: Segment) -> io::Result<(Way, Way)> {
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
    pub(super) fn word(&self, word: Word) -> &AtomicU64 {
        self.atomic(self.at + word as usize)
    }

    fn layout(&self) -> &AtomicU64 {
        self.atomic(LAYOUT_AT)
    }

    fn atomic(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.segment.len());
        // SAFETY: it lies within the segment, which is mapped for as long as we hold it, and is aligned, since the
        // segment begins with a page. It is only ever used as an atomic.
        unsafe { self.segment.base().add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Writes into the ring. The bytes must not go beyond its end.
    pub(super) fn write_ring(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= SHARED_RING_BYTES);
        // SAFETY: the place lies within the segment, and not where `bytes` are.
        unsafe { self.copy_in(RING_AT + at, bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes out of the ring.
    pub(super) fn read_ring(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= SHARED_RING_BYTES);
        self.copy_out(RING_AT + at, into);
    }

    /// Writes into cells, from the start of the first one on.
    ///
    /// # Safety
    /// `bytes` of them from `from` on can be read.
    pub(super) unsafe fn write_cells(&self, first: usize, from: *const u8, bytes: usize) {
        assert!(first * SHARED_CELL_BYTES + bytes <= SHARED_CELLS * SHARED_CELL_BYTES);
        // SAFETY: the place lies within the segment; the rest is the caller's promise.
        unsafe { self.copy_in(CELLS_AT + first * SHARED_CELL_BYTES, from, bytes) };
    }

    /// Copies bytes out of cells, from the start of the first one on.
    pub(super) fn read_cells(&self, first: usize, into: &mut [u8]) {
        assert!(first * SHARED_CELL_BYTES + into.len() <= SHARED_CELLS * SHARED_CELL_BYTES);
        self.copy_out(CELLS_AT + first * SHARED_CELL_BYTES, into);
    }

    /// Bytes in cells, from the start of the first one on. For payloads only: a writer that breaks its promise and
    /// writes them meanwhile spoils them, and nothing else depends on them.
    pub(super) fn cells(&self, first: usize, bytes: usize) -> &[u8] {
        assert!(first * SHARED_CELL_BYTES + bytes <= SHARED_CELLS * SHARED_CELL_BYTES);
        let at = self.at + CELLS_AT + first * SHARED_CELL_BYTES;
        // SAFETY: it lies within the segment, and stays mapped while we are borrowed. The other end has given the
        // cells to us and does not write them; if it does, the kernels that read them compute with other numbers.
        unsafe { core::slice::from_raw_parts(self.segment.base().add(at).as_ptr(), bytes) }
    }

    /// # Safety
    /// The place lies within this direction, and `from` can be read and lies elsewhere.
    unsafe fn copy_in(&self, at: usize, from: *const u8, bytes: usize) {
        // SAFETY: by the caller's promise. The reader is told of the bytes afterwards, by an atomic.
        unsafe {
            core::ptr::copy_nonoverlapping(from, self.segment.base().add(self.at + at).as_ptr(), bytes);
        }
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) {
        // SAFETY: the callers have checked that the place lies within this direction. What the other end writes
        // meanwhile, against its promise, comes out as some bytes or others.
        unsafe {
            let from = self.segment.base().add(self.at + at).as_ptr();
            core::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
    }
}
