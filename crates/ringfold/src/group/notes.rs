//! Notes: short texts that ranks send to each other independently of operations.

use super::core::Core;
use super::{Group, TransferTag};
use crate::Error;
use crate::error::invalid;
use ringfold_proto::id::{CallId, Rank};
use ringfold_proto::limits::TEXT_BYTES_MAX;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The maximum number of notes kept per sender; the oldest are dropped.
const NOTES_MAX: usize = 1024;

/// The first topic with a listener; one of the reserved ones.
const LISTENED_TOPICS: u64 = 0xffff << 48;

/// Received notes, and calls that wait for notes. A new note replaces an older one on its topic.
#[derive(Default)]
pub(super) struct Notes {
    kept: VecDeque<Note>,
    awaited: Vec<(CallId, Rank, u64)>,
    listeners: Vec<(u64, NoteListener)>,
}

/// Called with the sender and the text of each note on its topic, in order. Must not block.
pub(crate) type NoteListener = Box<dyn Fn(usize, String) + Send>;

struct Note {
    from: Rank,
    topic: u64,
    text: String,
}

impl Notes {
    /// Stores a note, and returns the calls that waited for it.
    pub(super) fn keep(&mut self, from: Rank, topic: u64, text: String) -> Vec<CallId> {
        if let Some((_, listener)) = self.listeners.iter().find(|(heard, _)| *heard == topic) {
            listener(from.index(), text);
            return Vec::new();
        }
        self.kept.retain(|note| (note.from, note.topic) != (from, topic));
        if self.kept.iter().filter(|note| note.from == from).count() >= NOTES_MAX
            && let Some(oldest) = self.kept.iter().position(|note| note.from == from)
        {
            self.kept.remove(oldest);
        }
        self.kept.push_back(Note { from, topic, text });
        let is_it = |awaited: &mut (CallId, Rank, u64)| (awaited.1, awaited.2) == (from, topic);
        self.awaited.extract_if(.., is_it).map(|(call, ..)| call).collect()
    }

    /// Passes all notes on a new topic to a listener. Ranks that call this in the same order get the same topics.
    pub(super) fn listen(&mut self, listener: NoteListener) -> u64 {
        let topic = LISTENED_TOPICS + self.listeners.len() as u64;
        self.listeners.push((topic, listener));
        topic
    }

    pub(super) fn has(&self, from: Rank, topic: u64) -> bool {
        self.kept.iter().any(|note| (note.from, note.topic) == (from, topic))
    }

    pub(super) fn take(&mut self, from: Rank, topic: u64) -> Option<String> {
        let at = self.kept.iter().position(|note| (note.from, note.topic) == (from, topic))?;
        self.kept.remove(at).map(|note| note.text)
    }

    pub(super) fn wait(&mut self, call: CallId, from: Rank, topic: u64) {
        self.awaited.push((call, from, topic));
    }

    pub(super) fn forget(&mut self, call: CallId) {
        self.awaited.retain(|(awaited, ..)| *awaited != call);
    }

    pub(super) fn end(&mut self) -> impl Iterator<Item = CallId> + use<'_> {
        self.awaited.drain(..).map(|(call, ..)| call)
    }
}

impl Group {
    /// Sends a note to ranks, which keep it until [`Group::recv_note`].
    ///
    /// A newer note on the same topic replaces it. The text has at most 16 KiB. Topics from 2⁶³ on are reserved.
    pub fn send_note(&self, ranks: &[usize], topic: u64, text: &str) -> Result<(), Error> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(invalid!(
                "invalid note: {} bytes, at most {TEXT_BYTES_MAX} are supported",
                text.len()
            ));
        }
        let ranks: Vec<Rank> = ranks.iter().map(|rank| self.other(*rank)).collect::<Result<_, _>>()?;
        self.core().engine.with(|driver| driver.send_note(&ranks, topic, text))
    }

    /// Takes the last note of a rank on a topic, or waits for it. `None` after the timeout.
    pub fn recv_note(&self, from: usize, topic: u64, timeout: Duration) -> Result<Option<String>, Error> {
        let from = self.other(from)?;
        self.core().recv_note(from, topic, timeout)
    }

    /// A rank whose send with this tag has started, but is not received yet. Ignores empty sends.
    pub fn sender(&self, tag: TransferTag) -> Result<Option<usize>, Error> {
        self.core().engine.with(|driver| driver.sender(tag).map(Rank::index))
    }

    /// Opens a topic whose notes go to a listener: a collective call. Returns the topic.
    pub(crate) fn listen_to_notes(&self, listener: NoteListener) -> Result<u64, Error> {
        self.core().engine.with(|driver| driver.listen_to_notes(listener))
    }

    fn other(&self, rank: usize) -> Result<Rank, Error> {
        if rank < self.world() && rank != self.rank() {
            return Ok(Rank::from_index(rank));
        }
        Err(invalid!("invalid rank {rank}: must be another rank of 0 to {}", self.world() - 1))
    }
}

impl Core {
    /// Takes the last note of a rank on a topic, or waits for it.
    pub(super) fn recv_note(
        &self,
        from: Rank,
        topic: u64,
        timeout: Duration,
    ) -> Result<Option<String>, Error> {
        let note = self.engine.with(|driver| driver.take_note(from, topic))?;
        if note.is_some() || timeout.is_zero() {
            return Ok(note);
        }
        let call = self.engine.with_waiter(|driver| driver.await_note(from, topic))?;
        if self.engine.wait_until(call, Some(Instant::now() + timeout)).is_none() {
            self.engine.with(|driver| driver.forget_note(call))?;
            self.engine.abandon(call);
        }
        self.engine.with(|driver| driver.take_note(from, topic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_note_on_a_topic_is_kept_and_ends_the_waiting_call() {
        let mut notes = Notes::default();
        notes.wait(CallId(7), Rank(1), 5);
        assert!(notes.keep(Rank(2), 5, "other rank".into()).is_empty());
        assert!(notes.keep(Rank(1), 6, "other topic".into()).is_empty());
        assert_eq!(notes.keep(Rank(1), 5, "old".into()), [CallId(7)]);
        assert!(notes.keep(Rank(1), 5, "new".into()).is_empty());
        assert_eq!(notes.take(Rank(1), 5).as_deref(), Some("new"));
        assert_eq!(notes.take(Rank(1), 5), None);
        assert_eq!(notes.take(Rank(2), 5).as_deref(), Some("other rank"));
    }

    #[test]
    fn a_listener_gets_all_notes_on_its_topic_in_order() {
        let mut notes = Notes::default();
        let (heard, all) = std::sync::mpsc::channel();
        let topic = notes.listen(Box::new(move |from, text| heard.send((from, text)).unwrap()));
        let other = notes.listen(Box::new(|_, _| ()));
        assert_ne!(topic, other);
        for text in ["one", "two"] {
            assert!(notes.keep(Rank(1), topic, text.into()).is_empty());
        }
        notes.keep(Rank(1), topic - 1, "other topic".into());
        assert_eq!(all.try_iter().collect::<Vec<_>>(), [(1, "one".to_owned()), (1, "two".to_owned())]);
        assert!(notes.take(Rank(1), topic).is_none() && notes.take(Rank(1), topic - 1).is_some());
    }

    #[test]
    fn a_rank_with_too_many_notes_loses_its_own_oldest() {
        let mut notes = Notes::default();
        notes.keep(Rank(2), 0, "quiet".into());
        for topic in 0..2 * NOTES_MAX as u64 {
            notes.keep(Rank(1), topic, "loud".into());
        }
        assert_eq!(notes.kept.len(), NOTES_MAX + 1);
        assert!(notes.take(Rank(2), 0).is_some() && notes.take(Rank(1), 0).is_none());
    }
}
