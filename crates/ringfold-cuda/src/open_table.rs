//! Reference counts of resources that a process opens once.

use core::hash::Hash;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The address and reference count of each open resource.
///
/// Opening and closing may take long; operations on different resources do not wait for each other.
pub(crate) struct OpenTable<K> {
    entries: Mutex<HashMap<K, Arc<Mutex<OpenEntry>>>>,
}

#[derive(Default)]
struct OpenEntry {
    address: u64,
    uses: usize,
}

impl<K: Eq + Hash + Clone> OpenTable<K> {
    pub(crate) fn new() -> Self {
        Self { entries: Mutex::default() }
    }

    /// Adds a reference to a resource, opens it if it is not open, and returns its address.
    pub(crate) fn open<E>(&self, key: &K, open: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        let entry = self.entries.lock().entry(key.clone()).or_default().clone();
        let mut opened = entry.lock();
        if opened.uses == 0 {
            match open() {
                Ok(address) => opened.address = address,
                Err(error) => {
                    drop(opened);
                    self.remove_unused(key, &entry);
                    return Err(error);
                }
            }
        }
        opened.uses += 1;
        Ok(opened.address)
    }

    /// Drops a reference, and closes the resource after the last one. Opening it meanwhile waits for the close.
    pub(crate) fn close(&self, key: &K, close: impl FnOnce(u64)) {
        let Some(entry) = self.entries.lock().get(key).cloned() else { return };
        let mut opened = entry.lock();
        opened.uses = opened.uses.saturating_sub(1);
        if opened.uses == 0 {
            close(opened.address);
            drop(opened);
            self.remove_unused(key, &entry);
        }
    }

    fn remove_unused(&self, key: &K, entry: &Arc<Mutex<OpenEntry>>) {
        let mut entries = self.entries.lock();
        // The caller's reference and the table's. New references come only from the table, which is locked.
        if Arc::strong_count(entry) == 2 && entry.lock().uses == 0 {
            entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
