//! Hashes shared states with many threads, also while tensors are still being copied.

use crate::Error;
use core::ops::Range;
use parking_lot::Mutex;
use ringfold_kernels::{LEAF_BYTES, LeafHash, leaf_hash, root_hash, tree_hash};
use std::thread;

/// The maximum number of threads; memory bandwidth limits the use of more.
const THREADS_MAX: usize = 16;

/// Leaves that a thread takes at a time.
const TASK_LEAVES: usize = 16;

/// Bytes per thread below which starting one costs more than it saves.
const THREAD_BYTES_MIN: usize = 4 << 20;

/// The bytes of a tensor, which may still be arriving, in order.
pub(crate) trait TensorBytes: Sync {
    fn len(&self) -> usize;

    /// Whether all bytes are present. Such tensors are hashed first.
    fn is_complete(&self) -> bool;

    /// Waits until these bytes are present.
    fn wait_for(&self, range: Range<usize>) -> Result<&[u8], Error>;
}

/// The [`tree_hash`] of each tensor.
pub(crate) fn hash_all(tensors: &[&dyn TensorBytes]) -> Result<Vec<u128>, Error> {
    let bytes: usize = tensors.iter().map(|t| t.len()).sum();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS_MAX).min(bytes / THREAD_BYTES_MIN);
    if threads < 2 {
        return tensors.iter().map(|t| Ok(tree_hash(t.wait_for(0..t.len())?).0)).collect();
    }
    let no_leaves = |t: &&dyn TensorBytes| vec![LeafHash(0); t.len().div_ceil(LEAF_BYTES)];
    let mut leaves: Vec<Vec<LeafHash>> = tensors.iter().map(no_leaves).collect();
    let mut order: Vec<_> = tensors.iter().zip(&mut leaves).collect();
    order.sort_by_key(|(tensor, _)| !tensor.is_complete());
    let tasks = order.into_iter().flat_map(|(tensor, leaves)| {
        let starts = (0..).step_by(TASK_LEAVES * LEAF_BYTES);
        leaves.chunks_mut(TASK_LEAVES).zip(starts).map(move |(leaves, start)| (*tensor, start, leaves))
    });
    let (tasks, failure) = (Mutex::new(tasks), Mutex::new(None));
    let work = || {
        // Neither lock is held while a task runs.
        let next = || if failure.lock().is_some() { None } else { tasks.lock().next() };
        while let Some((tensor, start, leaves)) = next() {
            let end = (start + TASK_LEAVES * LEAF_BYTES).min(tensor.len());
            match tensor.wait_for(start..end) {
                Ok(data) => {
                    for (leaf, hash) in data.chunks(LEAF_BYTES).zip(leaves) {
                        *hash = leaf_hash(leaf);
                    }
                }
                Err(error) => *failure.lock() = Some(error),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If a thread does not start, the others do its part.
            let _ = thread::Builder::new().name("ringfold-hash".into()).spawn_scoped(scope, work);
        }
        work();
    });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(tensors.iter().zip(&leaves).map(|(t, l)| root_hash(l, t.len() as u64).0).collect()),
    }
}

#[cfg(test)]
impl TensorBytes for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn is_complete(&self) -> bool {
        true
    }

    fn wait_for(&self, range: Range<usize>) -> Result<&[u8], Error> {
        Ok(&self[range])
    }
}

/// As [`hash_all`], for complete tensors.
#[cfg(test)]
pub(crate) fn hash_slices(tensors: &[&[u8]]) -> Vec<u128> {
    hash_all(&tensors.iter().map(|t| t as &dyn TensorBytes).collect::<Vec<_>>()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use parking_lot::Condvar;

    #[test]
    fn many_threads_compute_the_hash_of_one_thread() {
        let data: Vec<u8> =
            (0..20_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let sizes =
            [0, 1, 17, LEAF_BYTES - 1, LEAF_BYTES, LEAF_BYTES + 1, 16 * LEAF_BYTES, 16 * LEAF_BYTES + 5];
        let mut tensors: Vec<&[u8]> = sizes.iter().map(|s| &data[..*s]).collect();
        for more in [&data[3..9_000_001], &data[7..], &[]] {
            tensors.push(more);
            let want: Vec<_> = tensors.iter().map(|t| tree_hash(t).0).collect();
            assert_eq!(hash_slices(&tensors), want);
        }
        assert_eq!(hash_slices(&[]), [0_u128; 0]);
    }

    #[test]
    fn many_small_tensors_have_the_hash_of_one_thread() {
        let data = vec![5; 30 << 20];
        let tensors: Vec<&[u8]> = data.chunks(3001).collect();
        let want: Vec<_> = tensors.iter().map(|t| tree_hash(t).0).collect();
        assert_eq!(hash_slices(&tensors), want);
    }

    /// Bytes that arrive, or fail to, when a test says so.
    struct Slow {
        data: Vec<u8>,
        here: Mutex<Result<usize, Error>>,
        more: Condvar,
    }

    impl Slow {
        fn new(data: Vec<u8>) -> Self {
            Self { data, here: Mutex::new(Ok(0)), more: Condvar::new() }
        }

        fn arrive(&self, here: Result<usize, Error>) {
            *self.here.lock() = here;
            self.more.notify_all();
        }
    }

    impl TensorBytes for Slow {
        fn len(&self) -> usize {
            self.data.len()
        }

        fn is_complete(&self) -> bool {
            false
        }

        fn wait_for(&self, range: Range<usize>) -> Result<&[u8], Error> {
            let mut here = self.here.lock();
            loop {
                match &*here {
                    Err(error) => return Err(error.clone()),
                    Ok(bytes) if *bytes >= range.end => return Ok(&self.data[range]),
                    Ok(_) => {
                        assert!(!self.more.wait_for(&mut here, Duration::from_secs(60)).timed_out());
                    }
                }
            }
        }
    }

    #[test]
    fn tensors_are_hashed_while_they_arrive_and_complete_ones_first() {
        let data: Vec<u8> = (0..24_000_000_u32).map(|i| (i.wrapping_mul(40_503) >> 8) as u8).collect();
        let (slow, here) = (Slow::new(data.clone()), data.as_slice());
        let want = tree_hash(&data).0;
        thread::scope(|scope| {
            scope.spawn(|| {
                for bytes in (0..data.len()).step_by(5_000_001).chain([data.len()]) {
                    slow.arrive(Ok(bytes));
                    thread::sleep(Duration::from_millis(2));
                }
            });
            assert_eq!(hash_all(&[&slow, &here, &slow]), Ok(vec![want; 3]));
        });
    }

    #[test]
    fn bytes_that_fail_to_arrive_fail_the_hash() {
        for bytes in [100, 24 << 20] {
            let slow = Slow::new(vec![7; bytes]);
            slow.arrive(Err(Error::System("the device was lost".into())));
            assert_eq!(hash_all(&[&slow]), Err(Error::System("the device was lost".into())));
        }
    }
}
