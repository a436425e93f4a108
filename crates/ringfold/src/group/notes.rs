//! What other ranks have told this one beside all operations, until someone asks for it.

use ringfold_proto::id::{CallId, Rank};
use std::collections::VecDeque;

/// Notes of one rank that are kept, at most; older ones give way.
const NOTES_MAX: usize = 1024;

/// Notes, and those who wait for them. Of several on one topic the last one counts.
#[derive(Default)]
pub(super) struct Notes {
    kept: VecDeque<Note>,
    awaited: Vec<(CallId, Rank, u64)>,
}

struct Note {
    from: Rank,
    topic: u64,
    text: String,
}

impl Notes {
    /// Someone told something. The calls that waited for it have ended.
    pub(super) fn keep(&mut self, from: Rank, topic: u64, text: String) -> Vec<CallId> {
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

    /// Whether a rank told something about a topic.
    pub(super) fn has(&self, from: Rank, topic: u64) -> bool {
        self.kept.iter().any(|note| (note.from, note.topic) == (from, topic))
    }

    /// What a rank told last about a topic.
    pub(super) fn take(&mut self, from: Rank, topic: u64) -> Option<String> {
        let at = self.kept.iter().position(|note| (note.from, note.topic) == (from, topic))?;
        self.kept.remove(at).map(|note| note.text)
    }

    /// A call waits for a note.
    pub(super) fn wait(&mut self, call: CallId, from: Rank, topic: u64) {
        self.awaited.push((call, from, topic));
    }

    /// It waits no longer.
    pub(super) fn forget(&mut self, call: CallId) {
        self.awaited.retain(|(awaited, ..)| *awaited != call);
    }

    /// Nothing more will come: the calls that wait.
    pub(super) fn end(&mut self) -> impl Iterator<Item = CallId> + use<'_> {
        self.awaited.drain(..).map(|(call, ..)| call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_note_on_a_topic_counts_and_wakes_whoever_waits_for_it() {
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
    fn a_rank_that_tells_too_much_loses_its_own_oldest_notes() {
        let mut notes = Notes::default();
        notes.keep(Rank(2), 0, "quiet".into());
        for topic in 0..2 * NOTES_MAX as u64 {
            notes.keep(Rank(1), topic, "loud".into());
        }
        assert_eq!(notes.kept.len(), NOTES_MAX + 1);
        assert!(notes.take(Rank(2), 0).is_some() && notes.take(Rank(1), 0).is_none());
    }
}
