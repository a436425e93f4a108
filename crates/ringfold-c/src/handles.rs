//! The handles that C holds: pointers that are names and are never followed, so that a stale one or garbage is
//! an error and not undefined behaviour.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names are this far apart, so that those of different kinds can be told from each other.
const STRIDE: usize = 16;

/// No name is as small as a number that a program might pass by mistake.
const FIRST: usize = 1 << 16;

/// All live handles of one kind. A name is never given out twice.
pub(crate) struct Handles<T> {
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    live: BTreeMap<usize, Arc<T>>,
    next: usize,
}

impl<T> Handles<T> {
    /// Handles whose names have this remainder by the stride; each kind has one of its own.
    pub const fn new(kind: usize) -> Self {
        assert!(kind < STRIDE);
        Self { inner: Mutex::new(Inner { live: BTreeMap::new(), next: FIRST + kind }) }
    }

    /// A new handle for this.
    pub fn issue<H>(&self, what: T) -> *mut H {
        let mut inner = self.inner.lock();
        let name = inner.next;
        inner.next += STRIDE;
        inner.live.insert(name, Arc::new(what));
        core::ptr::without_provenance_mut(name)
    }

    /// What the handle stands for, if it does.
    pub fn find<H>(&self, handle: *const H) -> Option<Arc<T>> {
        self.inner.lock().live.get(&handle.addr()).cloned()
    }

    /// The same, and the handle stands for nothing from now on.
    pub fn retire<H>(&self, handle: *const H) -> Option<Arc<T>> {
        self.inner.lock().live.remove(&handle.addr())
    }
}

/// Drops what a handle stood for once the calls of other threads have let go of it, or after a while without
/// waiting for them; then the last of them drops it.
pub(crate) fn drop_last<T>(what: Arc<T>) {
    const PATIENCE: Duration = Duration::from_secs(10);
    let deadline = Instant::now() + PATIENCE;
    while Arc::strong_count(&what) > 1 {
        if Instant::now() >= deadline {
            tracing::warn!("calls of other threads still use what was destroyed");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_handle_is_never_known_again() {
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
    fn kinds_are_told_from_each_other() {
        let (numbers, words) = (Handles::new(0), Handles::new(8));
        let number: *mut u8 = numbers.issue(1);
        let word: *mut u8 = words.issue("one");
        assert!(numbers.find(word).is_none() && words.find(number).is_none());
    }
}
