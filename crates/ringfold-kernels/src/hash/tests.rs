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
