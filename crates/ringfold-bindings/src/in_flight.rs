//! Which tags of a communicator are in flight, and the operations that nobody has awaited.

use crate::result::Failure;
use parking_lot::Mutex;
use ringfold::Work;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The tags of one communicator.
#[derive(Default)]
pub struct InFlight {
    tags: Mutex<HashMap<u64, Slot>>,
}

enum Slot {
    /// Some thread is at it: it launches it, waits for it, or runs it to its end.
    Busy,
    /// Launched, and nobody has asked how it went.
    Launched(Box<Work>),
}

/// Tags that are taken for as long as this lives.
pub struct Taken<'a> {
    in_flight: &'a InFlight,
    tags: Vec<u64>,
}

impl InFlight {
    /// Takes all of these tags, or none if one of them is in flight or occurs twice.
    pub fn take(&self, tags: impl IntoIterator<Item = u64>) -> Result<Taken<'_>, Failure> {
        let mut taken = Taken { in_flight: self, tags: Vec::new() };
        for tag in tags {
            match self.tags.lock().entry(tag) {
                Entry::Vacant(free) => {
                    free.insert(Slot::Busy);
                }
                Entry::Occupied(_) => {
                    return Err(Failure::argument(format!(
                        "tag {tag} is already in flight, or has not been awaited"
                    )));
                }
            }
            taken.tags.push(tag);
        }
        Ok(taken)
    }

    /// The operation that was launched under this tag, unless someone awaits it already.
    pub fn claim(&self, tag: u64) -> Option<(Work, Taken<'_>)> {
        let mut tags = self.tags.lock();
        let slot = tags.get_mut(&tag)?;
        match core::mem::replace(slot, Slot::Busy) {
            Slot::Launched(work) => Some((*work, Taken { in_flight: self, tags: vec![tag] })),
            Slot::Busy => None,
        }
    }

    /// Whether what was launched under this tag has ended; so has what is not in flight any more.
    pub fn is_done(&self, tag: u64) -> bool {
        match self.tags.lock().get(&tag) {
            Some(Slot::Launched(work)) => work.is_done(),
            Some(Slot::Busy) => false,
            None => true,
        }
    }

    /// How many were launched and not awaited, finished or not.
    pub fn unawaited(&self) -> usize {
        self.tags.lock().values().filter(|slot| matches!(slot, Slot::Launched(_))).count()
    }

    /// All that were launched and not awaited; they are nobody's from now on.
    pub fn abandon(&self) -> Vec<Work> {
        let launched = |_: &u64, slot: &mut Slot| matches!(slot, Slot::Launched(_));
        let abandoned: Vec<_> = self.tags.lock().extract_if(launched).collect();
        let work = |(_, slot)| match slot {
            Slot::Launched(work) => Some(*work),
            Slot::Busy => None,
        };
        abandoned.into_iter().filter_map(work).collect()
    }
}

impl Taken<'_> {
    /// The tag stays in flight until the work is claimed and has ended.
    pub fn launched(mut self, work: Work) {
        if let Some(tag) = self.tags.pop() {
            self.in_flight.tags.lock().insert(tag, Slot::Launched(Box::new(work)));
        }
    }
}

impl Drop for Taken<'_> {
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
    fn a_tag_is_free_again_when_its_holder_is_gone() {
        let in_flight = InFlight::default();
        let taken = in_flight.take([1, 2]).unwrap();
        assert!(in_flight.take([2]).is_err());
        assert!(in_flight.claim(1).is_none(), "nothing was launched");
        assert_eq!(in_flight.unawaited(), 0);
        drop(taken);
        assert!(in_flight.take([2]).is_ok());
    }

    #[test]
    fn all_tags_are_taken_or_none() {
        let in_flight = InFlight::default();
        assert!(in_flight.take([7, 8, 7]).is_err());
        assert!(in_flight.take([7, 8]).is_ok());
    }
}
