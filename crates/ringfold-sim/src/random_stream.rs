//! The randomness of a run.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A stream of random numbers. Streams of one seed with different names are independent, so that a change in one part of
/// the simulator does not change the numbers of another.
#[derive(Clone, Debug)]
pub struct RandomStream(ChaCha8Rng);

impl RandomStream {
    pub fn new(seed: u64, name: &str) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        for (i, byte) in name.bytes().enumerate() {
            bytes[8 + i % 24] ^= byte.rotate_left(i as u32 / 24);
        }
        Self(ChaCha8Rng::from_seed(bytes))
    }

    /// A number from `low` to below `high`; `low` if the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        if high <= low { low } else { low + self.0.next_u64() % (high - low) }
    }

    /// True with this probability, in thousandths.
    pub fn with_probability(&mut self, per_mille: u64) -> bool {
        self.between(0, 1000) < per_mille
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.between(0, of.len() as u64) as usize)
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.between(0, i as u64 + 1) as usize);
        }
    }

    pub fn bits128(&mut self) -> u128 {
        u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64())
    }

    pub fn bytes32(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
