//! Cells in which payloads travel.

use super::way::{Way, Word};
use crate::limits::{SHARED_CELL_BYTES, SHARED_CELLS};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

/// Cells in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl Run {
    /// How many cells so many bytes take.
    pub(crate) fn cells_for(bytes: usize) -> usize {
        bytes.div_ceil(SHARED_CELL_BYTES)
    }

    /// The first free cells of which there are enough in a row. The first ones are used most, and stay warm.
    pub(crate) fn find(free: u64, bytes: usize) -> Option<Self> {
        let count = Self::cells_for(bytes);
        if count == 0 || count > SHARED_CELLS {
            return None;
        }
        // A bit is left where it and as many as are needed behind it are set.
        let starts = (1..count).fold(free, |starts, shift| starts & free >> shift);
        (starts != 0).then(|| Self { first: starts.trailing_zeros() as usize, count })
    }

    /// As a header names it, if there are such cells.
    pub(crate) fn named(first: usize, count: usize) -> Option<Self> {
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
pub(crate) struct Tenancy {
    way: Way,
    /// Cells that we were given and have not given back.
    held: AtomicU64,
    /// Some were given back since it was last asked.
    has_returned: AtomicBool,
}

impl Tenancy {
    pub(crate) fn new(way: Way) -> Self {
        Self { way, held: AtomicU64::new(0), has_returned: AtomicBool::new(false) }
    }

    /// The other end gives us cells. None may be ours already.
    pub(crate) fn take(self: &Arc<Self>, run: Run, bytes: usize) -> io::Result<Cells> {
        if Run::cells_for(bytes) != run.count {
            return Err(io::Error::other("a payload does not fit its cells"));
        }
        if self.held.fetch_or(run.mask(), Ordering::Relaxed) & run.mask() != 0 {
            return Err(io::Error::other("a cell was filled that had not been given back"));
        }
        Ok(Cells { of: self.clone(), run, bytes })
    }

    /// Whether cells were given back since it was last asked.
    pub(crate) fn take_returned(&self) -> bool {
        self.has_returned.load(Ordering::Relaxed) && self.has_returned.swap(false, Ordering::Relaxed)
    }
}

/// A payload that lies where its sender has put it. It goes back when this is dropped.
#[derive(Debug)]
pub struct Cells {
    of: Arc<Tenancy>,
    run: Run,
    bytes: usize,
}

impl Cells {
    /// The payload. Its sender does not write it any more, if it keeps to the protocol; nothing may be decided by it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the sender has handed the cells over, and this process never writes cells of this direction.
        unsafe { self.of.way.cells(self.run.first, self.bytes).assume_unwritten() }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Copies it out.
    pub(crate) fn read(&self, into: &mut [u8]) {
        self.of.way.cells(self.run.first, self.bytes).copy_to(into);
    }

    /// The cell behind its last one.
    pub(crate) fn end(&self) -> usize {
        self.run.first + self.run.count
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        let mask = self.run.mask();
        self.of.held.fetch_and(!mask, Ordering::Relaxed);
        // What we have read is read before the writer can know that it may write again.
        self.of.way.word(Word::Returned).fetch_or(mask, Ordering::Release);
        self.of.has_returned.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_where_they_fit_and_nowhere_else() {
        let find = |free, cells: usize| Run::find(free, cells * SHARED_CELL_BYTES).map(|run| run.first);
        assert_eq!(find(u64::MAX, 64), Some(0));
        assert_eq!(find(u64::MAX, 65), None);
        assert_eq!(find(0, 1), None);
        assert_eq!(find(1 << 63, 1), Some(63));
        assert_eq!(find(1 << 63, 2), None);
        assert_eq!(find(0b1011_0111_0000, 3), Some(4));
        assert_eq!(find(0x5555_5555_5555_5555, 2), None);
        assert_eq!(Run::find(u64::MAX, SHARED_CELL_BYTES + 1), Some(Run { first: 0, count: 2 }));
    }

    #[test]
    fn only_runs_that_exist_can_be_named() {
        assert_eq!(Run::named(0, 64).map(Run::mask), Some(u64::MAX));
        assert_eq!(Run::named(63, 1).map(Run::mask), Some(1 << 63));
        assert_eq!(Run::named(4, 2).map(Run::mask), Some(0b11_0000));
        for (first, count) in [(0, 0), (63, 2), (64, 1), (0, 65), (usize::MAX, 1), (1, usize::MAX)] {
            assert_eq!(Run::named(first, count), None);
        }
    }
}
