//! Fetches of shared state, from one holder after the other.

use super::{SimEvent, Simulation};
use ringfold_proto::id::CallId;
use ringfold_proto::shared_state::Assignment;
use std::time::Duration;

impl Simulation {
    pub(super) fn begin_sync(&mut self, peer: usize, call: CallId, number: u64, assignment: Assignment) {
        let fetches = !assignment.fetch.is_empty();
        self.peers[peer].syncing = Some((call, number, assignment));
        if fetches {
            let delay = self.network.latency();
            self.after(delay, SimEvent::Fetch { peer, call, tries: 0 });
        }
    }

    pub(super) fn fetch(&mut self, peer: usize, call: CallId, tries: usize) {
        let Some((current, number, assignment)) = self.peers[peer].syncing.clone() else { return };
        if current != call {
            return;
        }
        let sources = &assignment.sources;
        if sources.is_empty() || tries > 6 * sources.len() {
            return self.peers[peer].machine.handle_fetched(call, number, false);
        }
        let source = sources.get(tries % sources.len()).and_then(|s| self.by_id.get(s)).copied();
        let Some(source) = source.filter(|s| self.serves(peer, *s)) else {
            return self.after(Duration::from_millis(60), SimEvent::Fetch { peer, call, tries: tries + 1 });
        };
        let held = self.peers[source].program.contents.clone();
        let fits = |hash: u128, entry: u32| held.get(entry as usize) == Some(&hash);
        if assignment.fetch.iter().all(|item| fits(item.hash, item.entry)) {
            for item in &assignment.fetch {
                self.peers[peer].program.contents[item.entry as usize] = item.hash;
            }
            self.peers[peer].machine.handle_fetched(call, number, true);
        } else {
            self.after(Duration::from_millis(60), SimEvent::Fetch { peer, call, tries: tries + 1 });
        }
    }

    /// Whether a source can be reached, and is still in the sync.
    fn serves(&self, peer: usize, source: usize) -> bool {
        self.answers(peer, source) && self.peers[source].syncing.is_some()
    }
}
