//! All randomness of a run, from its seed.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A stream of chances. Two streams of one seed with different names are independent, so that a change
/// in one part of the simulator does not shift what another part draws.
#[derive(Clone, Debug)]
pub struct Chance(ChaCha8Rng);

impl Chance {
    /// The stream of this name.
    pub fn new(seed: u64, name: &str) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        for (i, byte) in name.bytes().enumerate() {
            bytes[8 + i % 24] ^= byte.rotate_left(i as u32 / 24);
        }
        Self(ChaCha8Rng::from_seed(bytes))
    }

    /// A number from `low` to below `high`; `low` if there is none.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        if high <= low { low } else { low + self.0.next_u64() % (high - low) }
    }

    /// True in so many of a thousand cases.
    pub fn per_mille(&mut self, share: u64) -> bool {
        self.between(0, 1000) < share
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.between(0, of.len() as u64) as usize)
    }

    /// In another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.between(0, i as u64 + 1) as usize);
        }
    }

    /// 128 bits.
    pub fn bits128(&mut self) -> u128 {
        u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64())
    }

    /// 32 bytes.
    pub fn bytes32(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
