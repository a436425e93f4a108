//! The seeded random number generator, the only source of randomness.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// The seed of all random choices. The same seed gives the same tours on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seed(pub u64);

/// A random number generator.
#[derive(Clone, Debug)]
pub(crate) struct SeededRng {
    stream: ChaCha8Rng,
}

impl SeededRng {
    pub(crate) fn of(seed: Seed) -> Self {
        Self { stream: ChaCha8Rng::seed_from_u64(seed.0) }
    }

    /// A number below the bound, which must not be zero. The bias is less than one in a million for the bounds here.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u64::from(self.stream.next_u32()) * bound as u64) >> 32) as usize
    }

    /// The numbers below the bound in random order.
    pub(crate) fn order(&mut self, bound: usize) -> Vec<u16> {
        let mut order: Vec<u16> = (0..bound as u16).collect();
        for at in (1..bound).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}
