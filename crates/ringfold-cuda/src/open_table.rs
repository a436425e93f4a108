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

    /// Removes the entry unless it is in use.
    fn remove_unused(&self, key: &K, entry: &Arc<Mutex<OpenEntry>>) {
        let mut entries = self.entries.lock();
        // The caller's reference and the table's. New references come only from the table, which is locked.
        if Arc::strong_count(entry) == 2 && entry.lock().uses == 0 {
            entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(20);

    fn open(table: &OpenTable<u8>, key: u8, address: u64) -> u64 {
        table.open::<()>(&key, || Ok(address)).unwrap()
    }

    #[test]
    fn a_resource_is_opened_once_and_closed_with_its_last_reference() {
        let table = OpenTable::new();
        assert_eq!((open(&table, 1, 10), open(&table, 1, 11)), (10, 10));
        table.close(&1, |_| panic!("it is in use"));
        let mut closed = 0;
        table.close(&1, |address| closed = address);
        assert_eq!((closed, open(&table, 1, 12)), (10, 12));
        assert_eq!(table.open(&2, || Err("no")), Err("no"));
        assert_eq!(table.entries.lock().len(), 1);
    }

    #[test]
    fn a_slow_close_delays_only_openers_of_the_same_resource() {
        let table = OpenTable::new();
        assert_eq!(open(&table, 1, 10), 10);
        let (begun, begins) = channel();
        let (go, gate) = channel::<()>();
        std::thread::scope(|scope| {
            let table = &table;
            scope.spawn(move || {
                table.close(&1, |_| {
                    begun.send(()).unwrap();
                    let _ = gate.recv_timeout(LONG);
                });
            });
            begins.recv_timeout(LONG).unwrap();
            assert_eq!(open(table, 2, 20), 20);
            let (sender, receiver) = channel();
            scope.spawn(move || sender.send(open(table, 1, 11)).unwrap());
            assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
            go.send(()).unwrap();
            assert_eq!(receiver.recv_timeout(LONG).unwrap(), 11, "it was closed, and is opened again");
        });
        table.close(&1, |_| {});
        table.close(&2, |_| {});
        assert!(table.entries.lock().is_empty());
    }
}
