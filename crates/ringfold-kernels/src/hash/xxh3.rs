//! XXH3-128 of more than 240 bytes, by its published specification.
//!
//! `twox-hash` computes the same, but for data in memory only at a third of a core's read speed, since it does not
//! prefetch. It is used for shorter inputs, and the tests compare the two.

use crate::isa::Isa;
use crate::level::{Kernel, Level};

/// The shortest input of this algorithm; XXH3 hashes shorter ones differently.
pub(super) const LONG_MIN: usize = 241;

/// XXH3-128 with seed zero.
///
/// # Panics
/// If there are fewer than [`LONG_MIN`] bytes, or if this machine does not have the level.
pub(super) fn hash(level: Level, data: &[u8]) -> u128 {
    assert!(data.len() >= LONG_MIN, "XXH3 hashes short inputs differently");
    let lanes = level.run(Accumulate { data });
    let bytes = data.len() as u64;
    let low = merge(&lanes, 11, bytes.wrapping_mul(PRIME64_1));
    let high = merge(&lanes, SECRET.len() - STRIPE - 11, !bytes.wrapping_mul(PRIME64_2));
    u128::from(high) << 64 | u128::from(low)
}

/// Bytes that are mixed at once: eight lanes of eight.
const STRIPE: usize = 64;
/// Stripes between scramblings: each uses the secret at the next multiple of eight bytes.
const BLOCK_STRIPES: usize = (SECRET.len() - STRIPE) / 8;

const PRIME32_1: u64 = 0x9e37_79b1;
const PRIME32_2: u64 = 0x85eb_ca77;
const PRIME32_3: u64 = 0xc2b2_ae3d;
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME64_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME64_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME64_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME64_5: u64 = 0x27d4_eb2f_1656_67c5;
const PRIME_AVALANCHE: u64 = 0x1656_6791_9e37_79f9;

/// The default secret of XXH3.
#[rustfmt::skip]
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb,
    0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
    0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// The loop over all bytes.
struct Accumulate<'a> {
    data: &'a [u8],
}

impl Kernel for Accumulate<'_> {
    type Output = [u64; 8];

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) -> [u64; 8] {
        let mut lanes =
            [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];
        let (stripes, _) = self.data.as_chunks::<STRIPE>();
        // The last stripe, whole or partial, is mixed separately.
        let stripes = &stripes[..(self.data.len() - 1) / STRIPE];
        let (blocks, rest) = stripes.as_chunks::<BLOCK_STRIPES>();
        for block in blocks {
            for (i, stripe) in block.iter().enumerate() {
                prefetch(stripe);
                mix(&mut lanes, stripe, &words(8 * i));
            }
            scramble(&mut lanes);
        }
        for (i, stripe) in rest.iter().enumerate() {
            mix(&mut lanes, stripe, &words(8 * i));
        }
        let last = self.data.last_chunk().expect("the data is longer than a stripe");
        mix(&mut lanes, last, &words(SECRET.len() - STRIPE - 7));
        lanes
    }
}

/// Prefetches memory some stripes ahead, which may be beyond the data.
#[inline(always)]
fn prefetch(_stripe: &[u8; STRIPE]) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        /// About what a core can have in flight.
        const AHEAD_BYTES: usize = 2048;
        // SAFETY: a prefetch of an address that cannot be read does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(_stripe.as_ptr().wrapping_add(AHEAD_BYTES).cast()) };
    }
}

#[inline(always)]
fn mix(lanes: &mut [u64; 8], stripe: &[u8; STRIPE], secret: &[u64; 8]) {
    let (input, _) = stripe.as_chunks::<8>();
    for i in 0..8 {
        let value = u64::from_le_bytes(input[i]);
        let neighbour = u64::from_le_bytes(input[i ^ 1]);
        let keyed = value ^ secret[i];
        let product = (keyed & 0xffff_ffff).wrapping_mul(keyed >> 32);
        lanes[i] = lanes[i].wrapping_add(neighbour).wrapping_add(product);
    }
}

#[inline(always)]
fn scramble(lanes: &mut [u64; 8]) {
    let secret = words(SECRET.len() - STRIPE);
    for i in 0..8 {
        lanes[i] = (lanes[i] ^ (lanes[i] >> 47) ^ secret[i]).wrapping_mul(PRIME32_1);
    }
}

fn merge(lanes: &[u64; 8], secret: usize, start: u64) -> u64 {
    let secret = words(secret);
    let mut hash = start;
    for i in (0..8).step_by(2) {
        let product = u128::from(lanes[i] ^ secret[i]) * u128::from(lanes[i + 1] ^ secret[i + 1]);
        hash = hash.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    hash ^= hash >> 37;
    hash = hash.wrapping_mul(PRIME_AVALANCHE);
    hash ^ (hash >> 32)
}

/// Eight words of the secret.
#[inline(always)]
fn words(begin: usize) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(SECRET[begin..begin + STRIPE].as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}
