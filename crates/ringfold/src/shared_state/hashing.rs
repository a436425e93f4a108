//! Hashing a state at memory speed: all cores, also for one huge tensor.

use parking_lot::Mutex;
use ringfold_kernels::{LEAF_BYTES, LeafHash, leaf_hash, root_hash, tree_hash};
use std::thread;

/// Threads that hash at once; more do not make the memory faster.
const THREADS_MAX: usize = 16;

/// Leaves that a thread takes at a time.
const TASK_LEAVES: usize = 16;

/// Bytes per thread below which starting one costs more than it saves.
const THREAD_BYTES_MIN: usize = 4 << 20;

/// What each tensor's bytes hash to: the values of [`tree_hash`].
pub(crate) fn hash_all(tensors: &[&[u8]]) -> Vec<u128> {
    let bytes: usize = tensors.iter().map(|t| t.len()).sum();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS_MAX).min(bytes / THREAD_BYTES_MIN);
    if threads < 2 {
        return tensors.iter().map(|t| tree_hash(t).0).collect();
    }
    let no_leaves = |t: &&[u8]| vec![LeafHash(0); t.len().div_ceil(LEAF_BYTES)];
    let mut leaves: Vec<Vec<LeafHash>> = tensors.iter().map(no_leaves).collect();
    let tasks = tensors
        .iter()
        .zip(&mut leaves)
        .flat_map(|(t, l)| t.chunks(TASK_LEAVES * LEAF_BYTES).zip(l.chunks_mut(TASK_LEAVES)));
    let tasks = Mutex::new(tasks);
    let work = || {
        // The lock must be free again while a task is done.
        let next = || tasks.lock().next();
        while let Some((data, leaves)) = next() {
            for (leaf, hash) in data.chunks(LEAF_BYTES).zip(leaves) {
                *hash = leaf_hash(leaf);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where no thread can be had, the others do its part.
            let _ = thread::Builder::new().name("ringfold-hash".into()).spawn_scoped(scope, work);
        }
        work();
    });
    tensors.iter().zip(&leaves).map(|(t, l)| root_hash(l, t.len() as u64).0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_find_the_value_of_one() {
        let data: Vec<u8> =
            (0..20_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let sizes =
            [0, 1, 17, LEAF_BYTES - 1, LEAF_BYTES, LEAF_BYTES + 1, 16 * LEAF_BYTES, 16 * LEAF_BYTES + 5];
        let mut tensors: Vec<&[u8]> = sizes.iter().map(|s| &data[..*s]).collect();
        for more in [&data[3..9_000_001], &data[7..], &[]] {
            tensors.push(more);
            let want: Vec<_> = tensors.iter().map(|t| tree_hash(t).0).collect();
            assert_eq!(hash_all(&tensors), want);
        }
        assert_eq!(hash_all(&[]), [0_u128; 0]);
    }

    #[test]
    fn many_small_tensors_find_the_value_of_one() {
        let data = vec![5; 30 << 20];
        let tensors: Vec<&[u8]> = data.chunks(3001).collect();
        let want: Vec<_> = tensors.iter().map(|t| tree_hash(t).0).collect();
        assert_eq!(hash_all(&tensors), want);
    }
}
