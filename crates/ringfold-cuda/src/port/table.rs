//! What a proxy knows by number: more may come while its thread looks things up, without a lock.

use parking_lot::Mutex;
use std::sync::OnceLock;

/// Things that are numbered in the order in which they came. None ever goes.
pub(crate) struct Table<T> {
    places: Box<[OnceLock<T>]>,
    taken: Mutex<usize>,
}

impl<T> Table<T> {
    /// With room for so many.
    pub(crate) fn new(places: usize) -> Self {
        Self { places: (0..places).map(|_| OnceLock::new()).collect(), taken: Mutex::new(0) }
    }

    /// Adds one, and says its number. None if there is no room.
    pub(crate) fn add(&self, thing: T) -> Option<usize> {
        let mut taken = self.taken.lock();
        let number = *taken;
        self.places.get(number)?.set(thing).ok()?;
        *taken += 1;
        Some(number)
    }

    /// The one with this number.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.places.get(number)?.get()
    }

    /// All that are there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().map_while(OnceLock::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_numbered_until_there_is_no_room() {
        let table = Table::new(2);
        assert_eq!((table.add('a'), table.get(0), table.get(1)), (Some(0), Some(&'a'), None));
        assert_eq!((table.add('b'), table.add('c')), (Some(1), None));
        assert_eq!((table.get(1), table.get(2)), (Some(&'b'), None));
        assert_eq!(table.iter().collect::<String>(), "ab");
    }
}
