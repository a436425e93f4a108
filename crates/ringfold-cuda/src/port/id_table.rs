//! An append-only table with lock-free lookup.

use parking_lot::Mutex;
use std::sync::OnceLock;

/// Values numbered in the order of insertion. None is ever removed.
pub(crate) struct IdTable<T> {
    slots: Box<[OnceLock<T>]>,
    count: Mutex<usize>,
}

impl<T> IdTable<T> {
    /// Creates a table with this capacity.
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| OnceLock::new()).collect(), count: Mutex::new(0) }
    }

    /// Adds a value, and returns its number. None if the table is full.
    pub(crate) fn add(&self, value: T) -> Option<usize> {
        let mut count = self.count.lock();
        let number = *count;
        self.slots.get(number)?.set(value).ok()?;
        *count += 1;
        Some(number)
    }

    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.slots.get(number)?.get()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map_while(OnceLock::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbered_until_the_table_is_full() {
        let table = IdTable::new(2);
        assert_eq!((table.add('a'), table.get(0), table.get(1)), (Some(0), Some(&'a'), None));
        assert_eq!((table.add('b'), table.add('c')), (Some(1), None));
        assert_eq!((table.get(1), table.get(2)), (Some(&'b'), None));
        assert_eq!(table.iter().collect::<String>(), "ab");
    }
}
