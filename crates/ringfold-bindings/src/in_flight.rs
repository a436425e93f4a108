//! The tags of a communicator that are in flight, and the operations that were not awaited.

use crate::result::CallError;
use parking_lot::Mutex;
use ringfold::Work;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The tags in flight of one communicator.
#[derive(Default)]
pub struct InFlight {
    tags: Mutex<HashMap<u64, TagState>>,
}

enum TagState {
    /// A thread launches the operation, waits for it, or runs it.
    Busy,
    /// The operation was launched and not awaited.
    Launched(Box<Work>),
}

/// Reserves tags until it is dropped.
pub struct TagReservation<'a> {
    in_flight: &'a InFlight,
    tags: Vec<u64>,
}

impl InFlight {
    /// Reserves all of these tags, or none if one of them is in flight or occurs twice.
    pub fn reserve(&self, tags: impl IntoIterator<Item = u64>) -> Result<TagReservation<'_>, CallError> {
        let mut reservation = TagReservation { in_flight: self, tags: Vec::new() };
        for tag in tags {
            match self.tags.lock().entry(tag) {
                Entry::Vacant(free) => {
                    free.insert(TagState::Busy);
                }
                Entry::Occupied(_) => {
                    return Err(CallError::invalid_argument(format!(
                        "tag {tag} is in flight: wait for its operation first"
                    )));
                }
            }
            reservation.tags.push(tag);
        }
        Ok(reservation)
    }

    /// Takes the operation that was launched under this tag; `None` if another thread waits for it.
    pub fn take_launched(&self, tag: u64) -> Option<(Work, TagReservation<'_>)> {
        let mut tags = self.tags.lock();
        let state = tags.get_mut(&tag)?;
        match core::mem::replace(state, TagState::Busy) {
            TagState::Launched(work) => Some((*work, TagReservation { in_flight: self, tags: vec![tag] })),
            TagState::Busy => None,
        }
    }

    /// Whether no operation of this tag is running.
    pub fn is_done(&self, tag: u64) -> bool {
        match self.tags.lock().get(&tag) {
            Some(TagState::Launched(work)) => work.is_done(),
            Some(TagState::Busy) => false,
            None => true,
        }
    }

    /// Counts the operations that were launched and not awaited, finished or not.
    pub fn count_unawaited(&self) -> usize {
        self.tags.lock().values().filter(|state| matches!(state, TagState::Launched(_))).count()
    }

    /// Removes and returns all operations that were launched and not awaited.
    pub fn take_unawaited(&self) -> Vec<Work> {
        let launched = |_: &u64, state: &mut TagState| matches!(state, TagState::Launched(_));
        let work = |(_, state)| if let TagState::Launched(work) = state { Some(*work) } else { None };
        self.tags.lock().extract_if(launched).filter_map(work).collect()
    }
}

impl TagReservation<'_> {
    /// Keeps the tag in flight for this operation, until it is taken and has ended.
    pub fn keep(mut self, work: Work) {
        if let Some(tag) = self.tags.pop() {
            self.in_flight.tags.lock().insert(tag, TagState::Launched(Box::new(work)));
        }
    }
}

impl Drop for TagReservation<'_> {
    fn drop(&mut self) {
        let mut tags = self.in_flight.tags.lock();
        for tag in &self.tags {
            tags.remove(tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_free_again_when_its_reservation_is_dropped() {
        let in_flight = InFlight::default();
        let reservation = in_flight.reserve([1, 2]).unwrap();
        assert!(in_flight.reserve([2]).is_err());
        assert!(in_flight.take_launched(1).is_none(), "nothing was launched");
        assert_eq!(in_flight.count_unawaited(), 0);
        drop(reservation);
        assert!(in_flight.reserve([2]).is_ok());
    }

    #[test]
    fn all_tags_are_reserved_or_none() {
        let in_flight = InFlight::default();
        assert!(in_flight.reserve([7, 8, 7]).is_err());
        assert!(in_flight.reserve([7, 8]).is_ok());
    }
}
