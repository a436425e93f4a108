//! Tensor hashes: trees of XXH3-128, whose parts can be computed and checked separately.
//!
//! The bytes are split into leaves of [`LEAF_BYTES`], the last of which may be shorter; empty data has no leaf. A leaf's
//! hash is XXH3-128 of its bytes. The tree's hash is XXH3-128 of the leaf hashes, each as 16 bytes little-endian, followed
//! by the number of bytes as 8 bytes little-endian. The seed is zero.
//!
//! The hash detects differences and broken transfers; it is not cryptographic.

mod xxh3;

use crate::level::Level;
use core::fmt;
use twox_hash::XxHash3_128;

/// Bytes of a leaf.
pub const LEAF_BYTES: usize = 64 * 1024;

/// The hash of a leaf of up to [`LEAF_BYTES`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafHash(pub u128);

/// The hash of a whole tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeHash(pub u128);

/// Hashes a tensor.
///
/// ```
/// use ringfold_kernels::{LEAF_BYTES, leaf_hash, root_hash, tree_hash};
///
/// let data = vec![7; 3 * LEAF_BYTES + 1];
/// // Leaves may be hashed by several threads.
/// let leaves: Vec<_> = data.chunks(LEAF_BYTES).map(leaf_hash).collect();
/// assert_eq!(root_hash(&leaves, data.len() as u64), tree_hash(&data));
/// ```
pub fn tree_hash(data: &[u8]) -> TreeHash {
    let mut root = XxHash3_128::new();
    for leaf in data.chunks(LEAF_BYTES) {
        root.write(&leaf_hash(leaf).0.to_le_bytes());
    }
    finish(root, data.len() as u64)
}

/// Hashes one leaf.
///
/// # Panics
/// If it is longer than [`LEAF_BYTES`].
pub fn leaf_hash(leaf: &[u8]) -> LeafHash {
    assert!(leaf.len() <= LEAF_BYTES, "invalid leaf of {} bytes", leaf.len());
    LeafHash(xxh3_128(Level::detect(), leaf))
}

fn xxh3_128(level: Level, data: &[u8]) -> u128 {
    if data.len() < xxh3::LONG_MIN { XxHash3_128::oneshot(data) } else { xxh3::hash(level, data) }
}

/// Computes the tree's hash from its leaf hashes, in order.
///
/// # Panics
/// If the number of leaves does not match `total_bytes`.
pub fn root_hash(leaves: &[LeafHash], total_bytes: u64) -> TreeHash {
    assert_eq!(
        leaves.len() as u64,
        total_bytes.div_ceil(LEAF_BYTES as u64),
        "wrong number of leaves for {total_bytes} bytes"
    );
    let mut root = XxHash3_128::new();
    for leaf in leaves {
        root.write(&leaf.0.to_le_bytes());
    }
    finish(root, total_bytes)
}

fn finish(mut root: XxHash3_128, total_bytes: u64) -> TreeHash {
    root.write(&total_bytes.to_le_bytes());
    TreeHash(root.finish_128())
}

impl fmt::Debug for LeafHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeafHash({:032x})", self.0)
    }
}

impl fmt::Debug for TreeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TreeHash({:032x})", self.0)
    }
}

impl fmt::Display for TreeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_equals_xxh3_128_at_all_relevant_lengths() {
        let data: Vec<u8> = (0..LEAF_BYTES + 64).map(|i| ((i * i) >> 5) as u8).collect();
        for level in Level::available() {
            for len in (0..5000).chain((5000..LEAF_BYTES).step_by(1009)).chain([LEAF_BYTES - 1, LEAF_BYTES]) {
                let data = &data[len % 64..][..len];
                assert_eq!(xxh3_128(level, data), XxHash3_128::oneshot(data), "{level}, {len} bytes");
            }
        }
    }

    /// Published values of XXH3-128 with seed zero.
    #[test]
    fn leaves_are_hashed_by_xxh3_128() {
        assert_eq!(leaf_hash(b"").0, 0x99aa06d3014798d86001c324468d497f);
        assert_eq!(tree_hash(b"").0, XxHash3_128::oneshot(&0_u64.to_le_bytes()));
    }

    #[test]
    fn the_tree_hash_covers_the_leaves_and_the_length() {
        for len in [1, LEAF_BYTES - 1, LEAF_BYTES, LEAF_BYTES + 1, 5 * LEAF_BYTES + 17] {
            let data: Vec<u8> = (0..len).map(|i| ((i * 31) >> 3) as u8).collect();
            let mut bytes = Vec::new();
            for leaf in data.chunks(LEAF_BYTES) {
                bytes.extend_from_slice(&XxHash3_128::oneshot(leaf).to_le_bytes());
            }
            bytes.extend_from_slice(&(len as u64).to_le_bytes());
            assert_eq!(tree_hash(&data).0, XxHash3_128::oneshot(&bytes));
            let leaves: Vec<_> = data.chunks(LEAF_BYTES).map(leaf_hash).collect();
            assert_eq!(tree_hash(&data), root_hash(&leaves, len as u64));
        }
    }

    #[test]
    fn one_changed_bit_changes_its_leaf_and_the_root() {
        let mut data = vec![0; 2 * LEAF_BYTES];
        let before = (tree_hash(&data), leaf_hash(&data[..LEAF_BYTES]), leaf_hash(&data[LEAF_BYTES..]));
        data[LEAF_BYTES + 5] ^= 1;
        assert_ne!(tree_hash(&data), before.0);
        assert_eq!(leaf_hash(&data[..LEAF_BYTES]), before.1);
        assert_ne!(leaf_hash(&data[LEAF_BYTES..]), before.2);
    }

    #[test]
    fn trailing_zeros_change_the_hash() {
        assert_ne!(tree_hash(&[0; 10]), tree_hash(&[0; 11]));
        assert_ne!(tree_hash(&vec![0; LEAF_BYTES]), tree_hash(&vec![0; LEAF_BYTES + 1]));
    }

    #[test]
    #[should_panic(expected = "wrong number of leaves")]
    fn a_missing_leaf_panics() {
        root_hash(&[], 1);
    }
}
