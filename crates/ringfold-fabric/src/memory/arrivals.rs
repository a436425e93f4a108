//! Which pieces of a memory have been written, by a device that writes them in any order.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

/// The pieces of a memory, all of the same length but the last, and which of them have arrived.
#[derive(Debug)]
pub struct Arrivals {
    piece_bytes: usize,
    arrived: Box<[AtomicBool]>,
}

impl Arrivals {
    /// For so many bytes, none of which has arrived.
    ///
    /// # Panics
    /// If a piece has no bytes.
    pub fn new(bytes: usize, piece_bytes: usize) -> Self {
        assert!(piece_bytes > 0, "invalid length of a piece: must not be 0");
        let arrived = (0..bytes.div_ceil(piece_bytes)).map(|_| AtomicBool::new(false)).collect();
        Self { piece_bytes, arrived }
    }

    /// The number of pieces.
    pub fn pieces(&self) -> usize {
        self.arrived.len()
    }

    /// Records that a piece has arrived.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn add(&self, piece: usize) {
        self.arrived[piece].store(true, Ordering::Release);
    }

    /// Whether all these bytes have arrived.
    pub fn has(&self, range: Range<usize>) -> bool {
        range.is_empty() || {
            let (first, last) = (range.start / self.piece_bytes, (range.end - 1) / self.piece_bytes);
            self.arrived
                .get(first..=last)
                .is_some_and(|pieces| pieces.iter().all(|piece| piece.load(Ordering::Acquire)))
        }
    }
}
