//! What happens next, from a seed.

use crate::tally::mix;

/// A row of numbers that looks random and is the same for the same seed.
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// A number below the bound.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = mix(self.0);
        ((self.0 >> 16) % bound.max(1) as u64) as usize
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
