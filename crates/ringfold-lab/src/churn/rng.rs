//! A seeded random number generator.

use crate::contributions::mix;

/// Pseudo-random numbers from a seed.
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// A number below the bound.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = mix(self.0);
        ((self.0 >> 16) % bound.max(1) as u64) as usize
    }

    /// True once in `times` calls, on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
