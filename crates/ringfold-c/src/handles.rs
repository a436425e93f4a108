//! Handles for C: pointers that are ids and never dereferenced, so that an invalid one is an error, not undefined
//! behaviour.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The distance of ids; their remainder distinguishes kinds.
const STRIDE: usize = 16;

/// The first id, greater than numbers that a program might pass by mistake.
const FIRST: usize = 1 << 16;

/// All live handles of one kind. Ids are not reused.
pub(crate) struct Handles<T> {
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    live: BTreeMap<usize, Arc<T>>,
    next: usize,
}

impl<T> Handles<T> {
    /// The handles of a kind, which is the remainder of their ids.
    pub const fn new(kind: usize) -> Self {
        assert!(kind < STRIDE);
        Self { inner: Mutex::new(Inner { live: BTreeMap::new(), next: FIRST + kind }) }
    }

    /// Creates a handle for a value.
    pub fn issue<H>(&self, value: T) -> *mut H {
        let mut inner = self.inner.lock();
        let id = inner.next;
        inner.next += STRIDE;
        inner.live.insert(id, Arc::new(value));
        core::ptr::without_provenance_mut(id)
    }

    /// The value of a handle.
    pub fn find<H>(&self, handle: *const H) -> Option<Arc<T>> {
        self.inner.lock().live.get(&handle.addr()).cloned()
    }

    /// Invalidates a handle and returns its value.
    pub fn retire<H>(&self, handle: *const H) -> Option<Arc<T>> {
        self.inner.lock().live.remove(&handle.addr())
    }
}

/// Waits until no call of another thread uses the value, and drops it. After a timeout the last of them drops it; then it
/// returns false.
pub(crate) fn drop_last<T>(value: Arc<T>) -> bool {
    drop_last_within(value, Duration::from_secs(10))
}

fn drop_last_within<T>(value: Arc<T>, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    while Arc::strong_count(&value) > 1 {
        if Instant::now() >= deadline {
            tracing::warn!("a destroyed handle is still used by calls of other threads after {timeout:?}");
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_handle_stays_invalid() {
        let handles = Handles::new(0);
        let first: *mut u8 = handles.issue("first");
        assert_eq!(handles.find(first).as_deref(), Some(&"first"));
        assert!(handles.retire(first).is_some());
        let second: *mut u8 = handles.issue("second");
        assert!(handles.find(first).is_none() && handles.retire(first).is_none());
        assert_eq!(handles.find(second).as_deref(), Some(&"second"));
        assert!(handles.find(core::ptr::null::<u8>()).is_none());
    }

    #[test]
    fn a_value_that_another_call_uses_is_reported() {
        let value = Arc::new(1);
        let used = value.clone();
        assert!(!drop_last_within(value, Duration::from_millis(1)));
        assert!(drop_last_within(used, Duration::from_secs(60)));
    }

    #[test]
    fn handles_of_another_kind_are_invalid() {
        let (numbers, words) = (Handles::new(0), Handles::new(8));
        let number: *mut u8 = numbers.issue(1);
        let word: *mut u8 = words.issue("one");
        assert!(numbers.find(word).is_none() && words.find(number).is_none());
    }
}
