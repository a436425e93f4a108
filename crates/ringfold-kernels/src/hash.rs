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

/// The checksum of a payload: the low 64 bits of its XXH3-128, of which one half is combined with the other by exclusive or.
pub fn checksum(data: &[u8]) -> u32 {
    let hash = xxh3_128(Level::detect(), data) as u64;
    (hash >> 32) as u32 ^ hash as u32
}

/// The digest of a result: the low 64 bits of its XXH3-128.
pub fn digest(data: &[u8]) -> u64 {
    xxh3_128(Level::detect(), data) as u64
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
mod tests;
