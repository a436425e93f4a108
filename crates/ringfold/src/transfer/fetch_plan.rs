//! The state of a fetch without threads or sockets: missing parts, sources, outcome.

use super::deal::Pace;
use super::fetch::FetchOrder;
use super::limits::{SOURCES_MAX, STRAGGLE_FACTOR, STRAGGLE_MIN};
use super::part::Part;
use core::time::Duration;
use ringfold_kernels::{LEAF_BYTES, LeafHash, root_hash};
use ringfold_proto::id::PeerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// The state of one assignment.
pub(super) struct FetchPlan {
    /// By index; complete ones are removed.
    entries: BTreeMap<usize, EntryFetch>,
    /// Parts that wait to be fetched.
    queue: VecDeque<Part>,
    queued_bytes: u64,
    sources: Vec<Source>,
    /// Whether everything was fetched, once that is known.
    pub(super) outcome: Option<bool>,
    /// Parts of entries that are complete.
    right: Vec<Part>,
}

/// An entry that is not complete.
struct EntryFetch {
    key: String,
    target: u128,
    bytes: u64,
    parts: usize,
    arrived: Vec<Part>,
    /// After a wrong hash, one source sends it all, to find out which source is wrong.
    solo: Option<PeerId>,
    /// Sources that have sent it alone.
    tried: BTreeSet<PeerId>,
    /// The leaves and their senders when the hash was wrong for the first time.
    suspect: Vec<(LeafHash, PeerId)>,
}

struct Source {
    peer: PeerId,
    state: SourceState,
    /// The number of its worker; earlier ones stop.
    worker: u64,
    /// The part that is awaited: since when, and its bytes.
    awaited: Option<(Instant, u64)>,
    pace: Pace,
    /// Why fetching from it failed the last time.
    failure: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SourceState {
    /// Not yet needed.
    Reserve,
    /// A worker fetches from it.
    Active,
    /// Much slower than others; used again if they are all lost.
    Slow,
    /// Disconnected, lacks the content, or sent other content.
    Lost,
}

impl FetchPlan {
    pub(super) fn new(orders: Vec<FetchOrder>, sources: &[PeerId]) -> Self {
        let mut plan = Self {
            entries: BTreeMap::new(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            sources: Vec::new(),
            outcome: None,
            right: Vec::new(),
        };
        for &peer in sources {
            if plan.sources.iter().all(|s| s.peer != peer) {
                let state = SourceState::Reserve;
                plan.sources.push(Source {
                    peer,
                    state,
                    worker: 0,
                    awaited: None,
                    pace: Pace::default(),
                    failure: None,
                });
            }
        }
        for FetchOrder { entry, key, target, bytes, parts, .. } in orders {
            let (solo, tried, suspect) = (None, BTreeSet::new(), Vec::new());
            let fetch = EntryFetch {
                key,
                target,
                bytes,
                parts: parts.len(),
                arrived: Vec::new(),
                solo,
                tried,
                suspect,
            };
            plan.entries.insert(entry, fetch);
            let (there, missing): (Vec<_>, Vec<_>) = parts.into_iter().partition(|p| p.missing() == 0);
            missing.into_iter().for_each(|part| plan.push_back(part));
            // An empty entry is complete at once, or is not available.
            if there.is_empty() {
                plan.settle(entry);
            }
            there.into_iter().for_each(|part| plan.arrived(part));
        }
        plan.conclude();
        plan
    }

    /// The next part to request from a source that owes so many bytes, if it shall get another one.
    pub(super) fn take(&mut self, peer: PeerId, owed_bytes: u64) -> Option<Part> {
        if self.outcome.is_some() {
            return None;
        }
        let entries = &self.entries;
        let solo = |part: &Part| entries.get(&part.entry).map(|entry| entry.solo);
        let may = |part: &Part| solo(part).is_some_and(|solo| solo.is_none_or(|solo| solo == peer));
        let at = self.queue.iter().position(may)?;
        let part = self.queue[at].missing() as u64;
        let is_active = |s: &&Source| s.state == SourceState::Active && s.peer != peer;
        // What one source has to send alone is not shared with others.
        let others: Vec<_> = match solo(&self.queue[at]).flatten() {
            Some(_) => Vec::new(),
            None => self.sources.iter().filter(is_active).map(|s| s.pace).collect(),
        };
        let source = self.sources.iter_mut().find(|s| s.peer == peer)?;
        source.pace.owed = owed_bytes;
        if !source.pace.may_take(part, self.queued_bytes, &others) {
            return None;
        }
        source.pace.owed += part;
        self.queued_bytes -= part;
        self.queue.remove(at)
    }

    /// A source is connected: its round-trip time.
    pub(super) fn connected(&mut self, peer: PeerId, round_trip: Duration) {
        if let Some(source) = self.sources.iter_mut().find(|s| s.peer == peer) {
            source.pace.round_trip = round_trip;
        }
    }

    /// Fetching from a source failed. It may be tried again.
    pub(super) fn note_failure(&mut self, peer: PeerId, why: String) {
        if let Some(source) = self.sources.iter_mut().find(|s| s.peer == peer) {
            source.failure = Some(why);
        }
    }

    /// Returns parts that a source did not send completely.
    pub(super) fn give_back(&mut self, parts: impl DoubleEndedIterator<Item = Part>) {
        for part in parts.rev() {
            self.queued_bytes += part.missing() as u64;
            self.queue.push_front(part);
        }
    }

    /// A part is complete.
    pub(super) fn arrived(&mut self, part: Part) {
        let entry = part.entry;
        let Some(fetch) = self.entries.get_mut(&entry) else { return self.right.push(part) };
        fetch.arrived.push(part);
        if fetch.arrived.len() == fetch.parts {
            self.settle(entry);
        }
        self.conclude();
    }

    /// A source begins to send a part of so many bytes, or nothing.
    pub(super) fn await_from(&mut self, peer: PeerId, bytes: Option<u64>) {
        let Some(source) = self.sources.iter_mut().find(|s| s.peer == peer) else { return };
        let now = Instant::now();
        if let Some((since, bytes)) = source.awaited.take() {
            source.pace.add(bytes, now - since);
            source.pace.owed = source.pace.owed.saturating_sub(bytes);
        }
        source.awaited = bytes.map(|bytes| (now, bytes));
    }

    /// A source stopped within a part.
    pub(super) fn interrupt(&mut self, peer: PeerId) {
        if let Some(source) = self.sources.iter_mut().find(|s| s.peer == peer) {
            source.awaited = None;
            source.pace.owed = 0;
        }
    }

    /// Drops a source. Its parts have been given back.
    pub(super) fn lose(&mut self, peer: PeerId) {
        self.set(peer, SourceState::Lost);
        self.conclude();
    }

    /// Finds a source that is much slower than an idle one. It may be disconnected.
    pub(super) fn straggler(&mut self, idle: PeerId) -> Option<PeerId> {
        let idle = self.source(idle).filter(|s| s.pace.rate().is_some())?;
        let late = |s: &&Source| {
            s.awaited.is_some_and(|(since, bytes)| {
                let mine = Duration::from_secs_f64(idle.pace.seconds_for(bytes).unwrap_or_default());
                since.elapsed() > STRAGGLE_MIN.max(mine * STRAGGLE_FACTOR)
                    || s.pace.is_slower_than(&idle.pace)
            })
        };
        // The idle source can't take over what one source has to send alone.
        let alone = |s: &&Source| self.entries.values().any(|j| j.solo == Some(s.peer));
        let mut active =
            self.sources.iter().filter(|s| s.state == SourceState::Active && s.peer != idle.peer);
        let peer = active.find(|s| late(s) && !alone(s))?.peer;
        self.set(peer, SourceState::Slow);
        Some(peer)
    }

    /// The sources that need a worker now, and the numbers of the workers.
    pub(super) fn start_sources(&mut self) -> Vec<(PeerId, u64)> {
        if self.outcome.is_some() {
            return Vec::new();
        }
        let solos: BTreeSet<_> = self.entries.values().filter_map(|j| j.solo).collect();
        let mut active = self.sources.iter().filter(|s| s.state == SourceState::Active).count();
        let mut started = Vec::new();
        for state in [SourceState::Reserve, SourceState::Slow] {
            for source in self.sources.iter_mut().filter(|s| s.state == state) {
                let room = if state == SourceState::Slow { active == 0 } else { active < SOURCES_MAX };
                if room || solos.contains(&source.peer) {
                    (source.state, source.worker) = (SourceState::Active, source.worker + 1);
                    active += 1;
                    started.push((source.peer, source.worker));
                }
            }
        }
        started
    }

    /// Whether a worker continues with its source.
    pub(super) fn is_active(&self, peer: PeerId, worker: u64) -> bool {
        let active = |s: &Source| s.state == SourceState::Active && s.worker == worker;
        self.outcome.is_none() && self.source(peer).is_some_and(active)
    }

    /// All parts, for the next assignment.
    pub(super) fn drain(&mut self) -> Vec<Part> {
        let mut parts = core::mem::take(&mut self.right);
        parts.extend(self.queue.drain(..));
        parts.extend(core::mem::take(&mut self.entries).into_values().flat_map(|fetch| fetch.arrived));
        self.queued_bytes = 0;
        parts
    }

    /// Checks the hash of an entry, if all its parts are complete.
    fn settle(&mut self, entry: usize) {
        let Some(fetch) = self.entries.get_mut(&entry).filter(|fetch| fetch.arrived.len() == fetch.parts)
        else {
            return;
        };
        fetch.arrived.sort_by_key(|part| part.first_leaf);
        let leaves: Vec<_> = fetch.arrived.iter().flat_map(Part::leaves).copied().collect();
        let hashes: Vec<_> = leaves.iter().map(|(hash, _)| *hash).collect();
        let senders: BTreeSet<_> = leaves.iter().map(|(_, sender)| *sender).collect();
        // A part is missing only after a panic; then the entry is invalid.
        let whole = hashes.len() as u64 == fetch.bytes.div_ceil(LEAF_BYTES as u64);
        if whole && root_hash(&hashes, fetch.bytes).0 == fetch.target {
            let pairs = fetch.suspect.iter().zip(&leaves);
            let culprits: BTreeSet<_> =
                pairs.filter(|(was, is)| was.0 != is.0).map(|(was, _)| was.1).collect();
            self.right.append(&mut fetch.arrived);
            self.entries.remove(&entry);
            culprits.into_iter().for_each(|culprit| self.reject_source(culprit));
            return;
        }
        tracing::warn!("entry {:?} arrived with a wrong hash from {} sources", fetch.key, senders.len());
        if fetch.suspect.is_empty() {
            fetch.suspect = leaves;
        }
        if let (1, Some(culprit)) = (senders.len(), senders.first()) {
            self.reject_source(*culprit);
        }
        self.begin_solo(entry);
    }

    /// Begins an entry anew, from one source alone.
    fn begin_solo(&mut self, entry: usize) {
        let Some(fetch) = self.entries.get_mut(&entry) else { return };
        let suspected = |peer: PeerId| fetch.suspect.iter().any(|(_, sender)| *sender == peer);
        let usable = |s: &&Source| s.state != SourceState::Lost && !fetch.tried.contains(&s.peer);
        let next = self.sources.iter().filter(usable).map(|s| s.peer).min_by_key(|peer| suspected(*peer));
        // An empty entry is not sent again.
        let Some(next) = next.filter(|_| fetch.parts > 0) else {
            tracing::warn!("no source sends the elected content of entry {:?}", fetch.key);
            self.outcome.get_or_insert(false);
            return;
        };
        fetch.tried.insert(next);
        fetch.solo = Some(next);
        let arrived = core::mem::take(&mut fetch.arrived);
        let (again, others): (Vec<_>, Vec<_>) = self.queue.drain(..).partition(|p| p.entry == entry);
        self.queue.extend(others);
        self.queued_bytes = self.queue.iter().map(|p| p.missing() as u64).sum();
        arrived.into_iter().chain(again).for_each(|part| self.push_back(part.emptied()));
    }

    /// A source sent other content than the elected one.
    fn reject_source(&mut self, peer: PeerId) {
        if self.source(peer).is_some_and(|s| s.state != SourceState::Lost) {
            tracing::warn!("dropping {peer} as a state source: it sent other content than it offered");
            self.set(peer, SourceState::Lost);
        }
    }

    /// Continues without lost sources, or sets the outcome.
    pub(super) fn conclude(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        if self.entries.is_empty() {
            self.outcome = Some(true);
            return;
        }
        let lost = |peer: PeerId| self.source(peer).is_none_or(|s| s.state == SourceState::Lost);
        let orphans: Vec<_> =
            self.entries.iter().filter(|(_, j)| j.solo.is_some_and(lost)).map(|(entry, _)| *entry).collect();
        if self.sources.iter().all(|s| s.state == SourceState::Lost) {
            let why =
                |s: &Source| format!("{}: {}", s.peer, s.failure.as_deref().unwrap_or("sent other content"));
            let all = self.sources.iter().map(why).collect::<Vec<_>>().join("; ");
            tracing::warn!("no source of the state is left ({all})");
            self.outcome = Some(false);
            return;
        }
        // A lost source gives its parts back later, and is dropped once more then.
        for entry in orphans {
            let Some(fetch) = self.entries.get(&entry) else { continue };
            let here = fetch.arrived.len() + self.queue.iter().filter(|p| p.entry == entry).count();
            if here == fetch.parts {
                self.begin_solo(entry);
            }
        }
    }

    fn push_back(&mut self, part: Part) {
        self.queued_bytes += part.missing() as u64;
        self.queue.push_back(part);
    }

    fn source(&self, peer: PeerId) -> Option<&Source> {
        self.sources.iter().find(|s| s.peer == peer)
    }

    fn set(&mut self, peer: PeerId, state: SourceState) {
        if let Some(source) = self.sources.iter_mut().find(|s| s.peer == peer) {
            (source.state, source.awaited) = (state, None);
        }
    }
}
