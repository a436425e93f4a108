//! Things that a process opens once, and closes when the last one is done with them.

use core::hash::Hash;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Where each thing is open, and for how many. Opening and closing may take long: one thing never waits for another.
pub(crate) struct OpenTable<K> {
    slots: Mutex<HashMap<K, Arc<Mutex<Slot>>>>,
}

#[derive(Default)]
struct Slot {
    address: u64,
    uses: usize,
}

impl<K: Eq + Hash + Clone> OpenTable<K> {
    pub(crate) fn new() -> Self {
        Self { slots: Mutex::default() }
    }

    /// Where the thing is, for one more; it is opened if it is not open.
    pub(crate) fn open<E>(&self, key: &K, open: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        let slot = self.slots.lock().entry(key.clone()).or_default().clone();
        let mut opened = slot.lock();
        if opened.uses == 0 {
            match open() {
                Ok(address) => opened.address = address,
                Err(error) => {
                    drop(opened);
                    self.tidy(key, &slot);
                    return Err(error);
                }
            }
        }
        opened.uses += 1;
        Ok(opened.address)
    }

    /// One is done with it; it is closed after the last. Whoever opens it meanwhile waits until it is closed.
    pub(crate) fn close(&self, key: &K, close: impl FnOnce(u64)) {
        let Some(slot) = self.slots.lock().get(key).cloned() else { return };
        let mut opened = slot.lock();
        opened.uses = opened.uses.saturating_sub(1);
        if opened.uses == 0 {
            close(opened.address);
            drop(opened);
            self.tidy(key, &slot);
        }
    }

    /// Forgets the slot, unless somebody has it.
    fn tidy(&self, key: &K, slot: &Arc<Mutex<Slot>>) {
        let mut slots = self.slots.lock();
        // Ours, and the table's. Others get it from the table alone, which is locked.
        if Arc::strong_count(slot) == 2 && slot.lock().uses == 0 {
            slots.remove(key);
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
    fn a_thing_is_opened_once_and_closed_with_its_last_user() {
        let table = OpenTable::new();
        assert_eq!((open(&table, 1, 10), open(&table, 1, 11)), (10, 10));
        table.close(&1, |_| panic!("somebody has it"));
        let mut closed = 0;
        table.close(&1, |address| closed = address);
        assert_eq!((closed, open(&table, 1, 12)), (10, 12));
        assert_eq!(table.open(&2, || Err("no")), Err("no"));
        assert_eq!(table.slots.lock().len(), 1);
    }

    #[test]
    fn closing_takes_its_time_and_holds_up_nobody_but_who_opens_the_same_thing() {
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
            let (told, heard) = channel();
            scope.spawn(move || told.send(open(table, 1, 11)).unwrap());
            assert!(heard.recv_timeout(Duration::from_millis(50)).is_err());
            go.send(()).unwrap();
            assert_eq!(heard.recv_timeout(LONG).unwrap(), 11, "it was closed, and is opened again");
        });
        table.close(&1, |_| {});
        table.close(&2, |_| {});
        assert!(table.slots.lock().is_empty());
    }
}
