//! The only source of randomness: a stream that a seed decides.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Decides every random choice of a solver. The same seed gives the same tours on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seed(pub u64);

/// Random choices in the order in which they are asked for.
#[derive(Clone, Debug)]
pub(crate) struct Chance {
    stream: ChaCha8Rng,
}

impl Chance {
    pub(crate) fn of(seed: Seed) -> Self {
        Self { stream: ChaCha8Rng::seed_from_u64(seed.0) }
    }

    /// A number below the bound, which is not zero. The bias is below one in a million for the bounds
    /// that occur here, and does no harm.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u64::from(self.stream.next_u32()) * bound as u64) >> 32) as usize
    }

    /// The numbers below the bound in some order.
    pub(crate) fn order(&mut self, bound: usize) -> Vec<u16> {
        let mut order: Vec<u16> = (0..bound as u16).collect();
        for at in (1..bound).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}
