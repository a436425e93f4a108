//! Cells that hold payloads.

use super::direction::{LinkDirection, Word};
use crate::limits::{SHARED_CELL_BYTES, SHARED_CELLS};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

/// Adjacent cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CellRange {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl CellRange {
    /// How many cells a payload takes.
    pub(crate) fn cells_for(bytes: usize) -> usize {
        bytes.div_ceil(SHARED_CELL_BYTES)
    }

    /// The first free cells that are enough. So the first ones are used most, and stay in the cache.
    pub(crate) fn find(free: u64, bytes: usize) -> Option<Self> {
        let count = Self::cells_for(bytes);
        if count == 0 || count > SHARED_CELLS {
            return None;
        }
        // A bit is left where it and enough bits behind it are set.
        let starts = (1..count).fold(free, |starts, shift| starts & free >> shift);
        (starts != 0).then(|| Self { first: starts.trailing_zeros() as usize, count })
    }

    /// The cells that a record names, if they exist.
    pub(crate) fn checked(first: usize, count: usize) -> Option<Self> {
        let is_within = (1..=SHARED_CELLS).contains(&count) && first <= SHARED_CELLS - count;
        is_within.then_some(Self { first, count })
    }

    /// Its cells as bits.
    pub(crate) fn mask(self) -> u64 {
        (u64::MAX >> (SHARED_CELLS - self.count)) << self.first
    }
}

/// The reader's side of the cells of one direction.
#[derive(Debug)]
pub(crate) struct CellTracker {
    direction: LinkDirection,
    /// Cells that were received and not released.
    held: AtomicU64,
    /// Some were released since the last check.
    has_returned: AtomicBool,
}

impl CellTracker {
    pub(crate) fn new(direction: LinkDirection) -> Self {
        Self { direction, held: AtomicU64::new(0), has_returned: AtomicBool::new(false) }
    }

    /// Takes cells that a record brought. None of them may be held already.
    pub(crate) fn take(self: &Arc<Self>, range: CellRange, bytes: usize) -> io::Result<Cells> {
        if CellRange::cells_for(bytes) != range.count {
            return Err(io::Error::other("invalid record: its payload does not fit its cells"));
        }
        if self.held.fetch_or(range.mask(), Ordering::Relaxed) & range.mask() != 0 {
            return Err(io::Error::other("invalid record: names a cell that was not released"));
        }
        Ok(Cells { of: self.clone(), range, bytes })
    }

    /// Whether cells were released since the last call.
    pub(crate) fn take_returned(&self) -> bool {
        self.has_returned.load(Ordering::Relaxed) && self.has_returned.swap(false, Ordering::Relaxed)
    }
}

/// A payload in the cells of its sender. Dropping it releases them.
#[derive(Debug)]
pub struct Cells {
    of: Arc<CellTracker>,
    range: CellRange,
    bytes: usize,
}

impl Cells {
    /// The payload. By the protocol its sender does not write it any more; nothing may be decided by it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the sender has sent the cells, and this process never writes cells of this direction.
        unsafe { self.of.direction.cells(self.range.first, self.bytes).assume_unwritten() }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Copies it out.
    pub(crate) fn read(&self, into: &mut [u8]) {
        self.of.direction.cells(self.range.first, self.bytes).copy_to(into);
    }

    /// The cell behind its last one.
    pub(crate) fn end(&self) -> usize {
        self.range.first + self.range.count
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        let mask = self.range.mask();
        self.of.held.fetch_and(!mask, Ordering::Relaxed);
        // All reads happen before the writer sees that it may write again.
        self.of.direction.word(Word::Returned).fetch_or(mask, Ordering::Release);
        self.of.has_returned.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_where_it_fits() {
        let find =
            |free, cells: usize| CellRange::find(free, cells * SHARED_CELL_BYTES).map(|range| range.first);
        assert_eq!(find(u64::MAX, 64), Some(0));
        assert_eq!(find(u64::MAX, 65), None);
        assert_eq!(find(0, 1), None);
        assert_eq!(find(1 << 63, 1), Some(63));
        assert_eq!(find(1 << 63, 2), None);
        assert_eq!(find(0b1011_0111_0000, 3), Some(4));
        assert_eq!(find(0x5555_5555_5555_5555, 2), None);
        assert_eq!(CellRange::find(u64::MAX, SHARED_CELL_BYTES + 1), Some(CellRange { first: 0, count: 2 }));
    }

    #[test]
    fn a_range_of_cells_that_do_not_exist_is_invalid() {
        assert_eq!(CellRange::checked(0, 64).map(CellRange::mask), Some(u64::MAX));
        assert_eq!(CellRange::checked(63, 1).map(CellRange::mask), Some(1 << 63));
        assert_eq!(CellRange::checked(4, 2).map(CellRange::mask), Some(0b11_0000));
        for (first, count) in [(0, 0), (63, 2), (64, 1), (0, 65), (usize::MAX, 1), (1, usize::MAX)] {
            assert_eq!(CellRange::checked(first, count), None);
        }
    }
}
