//! From flight recorders to a scenario.
//!
//! The records of masters are its frame: each decision follows from calls of certain peers, or from a fault. The records of
//! peers say who was in an operation that failed, on how many bytes, and who fetched a state.

use super::{Decision, DecisionReader, ITEMS_MAX, Item, RecordedScenario, RunCall, Step, What};
use ringfold_flight::{Entry, FlightLog, FlightSource, RECORDS_END, Timeline};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// How many calls that change no membership are kept between two epochs.
const QUIET_MAX: usize = 200;

/// The bytes of an operation whose size is not recorded.
const BYTES_DEFAULT: u64 = 1024;

/// Reads the recorders of masters and peers: files, or directories with them.
///
/// # Errors
/// If a file cannot be read, no file has a record of a master, or a limit is exceeded.
pub fn read_files(paths: &[PathBuf]) -> Result<RecordedScenario, String> {
    let mut found = BTreeSet::new();
    for path in paths {
        let error = |why: std::io::Error| format!("cannot read {}: {why}", path.display());
        if path.is_dir() {
            let entries = path.read_dir().map_err(error)?.filter_map(Result::ok);
            let files = entries.filter(|entry| entry.file_type().is_ok_and(|of| of.is_file()));
            let inside = files.map(|entry| entry.path());
            found.extend(inside.filter(|path| path.extension().is_some_and(|end| end == "flight")));
        } else {
            found.insert(path.clone());
        }
    }
    let (mut files, mut notes) = (Vec::new(), Vec::new());
    for path in found {
        let name = || path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        match FlightLog::read(&path) {
            Ok(log) => {
                if log.damaged > 1 {
                    notes.push(format!("{}: {} damaged lines are skipped", name(), log.damaged));
                }
                let records = log.records.len();
                files.push(FlightSource { path, is_in_use: false, log, records });
            }
            Err(error) if paths.contains(&path) => {
                return Err(format!("cannot read {}: {error}", path.display()));
            }
            Err(error) => notes.push(format!("{} is skipped: {error}", name())),
        }
    }
    let mut scenario = RecordedScenario::from_timeline(&Timeline::merge(files))?;
    notes.append(&mut scenario.notes);
    scenario.notes = notes;
    Ok(scenario)
}

impl RecordedScenario {
    /// Builds the scenario of one recorder's bytes.
    ///
    /// # Errors
    /// As [`read_files`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let log = FlightLog::parse(bytes);
        let records = log.records.len();
        let path = Path::new("recorder").to_owned();
        Self::from_timeline(&Timeline::merge(vec![FlightSource { path, is_in_use: false, log, records }]))
    }

    /// Builds the scenario of merged recorders.
    ///
    /// # Errors
    /// If no file has a record of a master, or a limit is exceeded.
    pub fn from_timeline(timeline: &Timeline) -> Result<Self, String> {
        let is_master = |entry: &&Entry| entry.record.source == "master";
        let Some(first) = timeline.entries.iter().find(is_master) else {
            return Err("no record of a master: its recorder is needed, those of peers are not enough".into());
        };
        let lives = Lives::of(timeline);
        let mut builder = Builder {
            base: first.micros,
            items: Vec::new(),
            notes: BTreeMap::new(),
            decisions: DecisionReader::default(),
            peers: PeerRecords::of(timeline),
            members: Vec::new(),
            joined: BTreeSet::new(),
            suspects: BTreeMap::new(),
            synced: BTreeSet::new(),
            skipped_syncs: BTreeSet::new(),
            is_admitting: false,
            quiet: 0,
            master_died_at: None,
        };
        let mut active = None;
        for entry in timeline.entries.iter().filter(is_master) {
            let begins = if lives.masters == 1 { true } else { entry.record.event == "leads" };
            if begins && active != Some(entry.source) {
                if let Some(before) = active {
                    match lives.ended_before(before, entry.micros) {
                        Some(restarts) => builder.master_killed(entry.micros, restarts),
                        None => builder.note("a master lost its lead while it ran: this is not simulated"),
                    }
                }
                active = Some(entry.source);
            }
            builder.add(entry);
            if builder.items.len() > ITEMS_MAX || builder.decisions.too_large {
                return Err("the recorded run is too large: too many decisions or peers".into());
            }
        }
        let notes = builder.notes.into_iter().map(|(note, count)| match count {
            1 => note,
            count => format!("{note} ({count} times)"),
        });
        let notes = notes.collect();
        let scenario = Self { scenario: 1, masters: lives.masters, notes, timeline: builder.items };
        if !scenario.timeline.iter().any(|item| matches!(item.what, What::Step(_))) {
            return Err("no peer joined while the master was recorded".into());
        }
        scenario.check()?;
        Ok(scenario)
    }
}

/// The processes of masters.
struct Lives {
    masters: usize,
    /// The first and the last record of each source, and whether it ended.
    times: BTreeMap<usize, (i64, i64, bool)>,
}

impl Lives {
    fn of(timeline: &Timeline) -> Self {
        let mut times: BTreeMap<usize, (i64, i64, bool)> = BTreeMap::new();
        let mut masters = 1;
        for entry in timeline.entries.iter().filter(|entry| entry.record.source == "master") {
            let life = times.entry(entry.source).or_insert((entry.micros, entry.micros, false));
            life.1 = life.1.max(entry.micros);
            life.2 |= matches!(entry.record.event.as_str(), "ended" | RECORDS_END);
            let listed = entry.record.number_of("masters").and_then(|number| usize::try_from(number).ok());
            masters = masters.max(listed.unwrap_or(1).min(9));
        }
        Self { masters, times }
    }

    /// If this process ended before a time: whether another one began after it.
    fn ended_before(&self, source: usize, micros: i64) -> Option<bool> {
        let (_, end, has_ended) = self.times.get(&source)?;
        let is_over = *has_ended && *end <= micros;
        is_over.then(|| self.masters == 1 || self.times.values().any(|(begin, ..)| begin >= end))
    }
}

/// What peers recorded.
#[derive(Default)]
struct PeerRecords {
    /// The names of peers with a recorder.
    names: BTreeSet<String>,
    /// The bytes that each peer called a failed or running operation with.
    ops: BTreeMap<(String, u64, u64), BTreeMap<String, u64>>,
    /// The bytes of operations, by epoch and tag.
    bytes: BTreeMap<(String, u64), u64>,
    /// The peers that fetched a revision.
    fetchers: BTreeMap<u64, BTreeSet<String>>,
}

impl PeerRecords {
    fn of(timeline: &Timeline) -> Self {
        let mut all = Self::default();
        for Entry { record, .. } in timeline.entries.iter().filter(|entry| entry.record.source == "peer") {
            if !all.names.contains(&record.name) {
                all.names.insert(record.name.clone());
            }
            match record.event.as_str() {
                "op_started" | "op_ended" => {
                    let (Some(epoch), Some(tag), Some(seq), Some(bytes)) = (
                        record.text_of("epoch"),
                        record.number_of("tag"),
                        record.number_of("seq"),
                        record.number_of("bytes"),
                    ) else {
                        continue;
                    };
                    let op = (epoch.to_owned(), tag, seq);
                    if record.text_of("outcome") == Some("committed") {
                        all.ops.remove(&op);
                        all.bytes.insert((epoch.to_owned(), tag), bytes);
                    } else {
                        all.ops.entry(op).or_default().insert(record.name.clone(), bytes);
                    }
                }
                "sync_assigned" if record.number_of("fetches").is_some_and(|fetches| fetches > 0) => {
                    let revision = record.number_of("revision").unwrap_or_default();
                    all.fetchers.entry(revision).or_default().insert(record.name.clone());
                }
                _ => {}
            }
        }
        all
    }
}

struct Builder {
    /// The time of the first record.
    base: i64,
    items: Vec<Item>,
    notes: BTreeMap<String, usize>,
    decisions: DecisionReader,
    peers: PeerRecords,
    /// The members and their groups, in the order in which they were accepted.
    members: Vec<(String, u32)>,
    joined: BTreeSet<String>,
    /// Where in the items a connection ended, for peers that have not come back.
    suspects: BTreeMap<String, usize>,
    synced: BTreeSet<String>,
    /// Groups in which syncs are left out.
    skipped_syncs: BTreeSet<u32>,
    /// A round of update_topology accepts peers.
    is_admitting: bool,
    /// Calls since the last epoch.
    quiet: usize,
    /// Where the last master died.
    master_died_at: Option<usize>,
}

impl Builder {
    fn note(&mut self, what: &str) {
        *self.notes.entry(what.to_owned()).or_default() += 1;
    }

    fn at_us(&self, micros: i64) -> u64 {
        u64::try_from(micros.saturating_sub(self.base)).unwrap_or(0)
    }

    fn insert(&mut self, index: usize, micros: i64, what: What) {
        let at_us = self.at_us(micros);
        let marks = self.suspects.values_mut().chain(self.master_died_at.as_mut());
        marks.filter(|mark| **mark >= index).for_each(|mark| *mark += 1);
        self.items.insert(index, Item { at_us, what });
    }

    fn step(&mut self, micros: i64, step: Step) {
        self.insert(self.items.len(), micros, What::Step(step));
    }

    fn decide(&mut self, micros: i64, decision: Decision) {
        self.insert(self.items.len(), micros, What::Decision(decision));
    }

    fn members_of(&self, group: u32) -> Vec<String> {
        self.members.iter().filter(|(_, of)| *of == group).map(|(peer, _)| peer.clone()).collect()
    }

    fn all_members(&self) -> Vec<String> {
        self.members.iter().map(|(peer, _)| peer.clone()).collect()
    }

    fn join(&mut self, micros: i64, peer: &str, group: u32) {
        if self.joined.insert(peer.to_owned()) {
            self.step(micros, Step::Join { peer: peer.to_owned(), group });
            self.decide(micros, Decision::Registered { peer: peer.to_owned() });
        }
    }

    /// The groups of joins are known when peers are accepted.
    fn set_group(&mut self, label: &str, of: u32) {
        let is_join =
            |item: &&mut Item| matches!(&item.what, What::Step(Step::Join { peer, .. }) if peer == label);
        if let Some(Item { what: What::Step(Step::Join { group, .. }), .. }) =
            self.items.iter_mut().rev().find(is_join)
        {
            *group = of;
        }
    }

    fn call(&mut self, micros: i64, call: RunCall) {
        let peers = self.all_members();
        if peers.is_empty() || (call == RunCall::OptimizeTopology && peers.len() < 2) {
            return;
        }
        if let Some(Item { what: What::Step(Step::Call { peers: known, call: last, times }), .. }) =
            self.items.last_mut()
            && *known == peers
            && *last == call
        {
            *times = times.saturating_add(1);
            return;
        }
        if self.is_quiet_full() {
            return;
        }
        self.step(micros, Step::Call { peers, call, times: 1 });
    }

    /// Counts a call that changes no membership. Whether there are too many.
    fn is_quiet_full(&mut self) -> bool {
        self.quiet += 1;
        let is_full = self.quiet > QUIET_MAX;
        if is_full {
            self.note("more than 200 calls between two epochs: the rest is left out");
        }
        is_full
    }

    fn add(&mut self, entry: &Entry) {
        let (record, micros) = (&entry.record, entry.micros);
        let decision = self.decisions.read(&record.event, &record.fields);
        match (record.event.as_str(), decision) {
            (_, Some(Decision::Registered { peer })) => self.join(micros, &peer, 0),
            (_, Some(Decision::Accepted { peer, group })) => self.accepted(micros, peer, group),
            (_, Some(Decision::EpochOpened { group, members })) => self.opened(micros, group, members, false),
            (_, Some(Decision::EpochKept { group, members })) => self.opened(micros, group, members, true),
            (_, Some(Decision::Departed { peer, .. })) => {
                self.departed(micros, peer, record.text_of("how").unwrap_or_default());
            }
            (_, Some(Decision::Reconnected { peer })) => self.reconnected(micros, peer),
            (_, Some(Decision::StateElected { group, revision })) => {
                let fetchers = record.number_of("fetchers").unwrap_or(0);
                self.elected(micros, group, revision, fetchers);
            }
            (_, Some(Decision::Committed { group, count })) => self.committed(entry, group, count),
            (_, Some(Decision::Aborted { group, tag, failure })) => self.aborted(entry, group, tag, failure),
            ("suspected", _) => {
                if let Some(peer) = self.decisions.peer(&record.fields) {
                    self.suspects.insert(peer, self.items.len());
                }
            }
            ("round_decided", _) => self.round_decided(micros, record.text_of("phase").unwrap_or_default()),
            ("edge_distrusted", _) => {
                let mut of = |field| record.text_of(field).and_then(|name| self.decisions.current(name));
                if let (Some(from), Some(to)) = (of("from"), of("to")) {
                    self.step(micros, Step::Cut { from, to });
                }
            }
            ("demoted", _) => {
                if let Some(peer) = self.decisions.peer(&record.fields) {
                    self.members.retain(|(member, _)| *member != peer);
                }
            }
            ("join_rejected" | "state_rejected" | "replica_incomplete" | "draining" | "stepped_down", _) => {
                self.note(&format!("{} is not simulated", record.event));
            }
            _ => {}
        }
    }

    fn accepted(&mut self, micros: i64, peer: String, group: u32) {
        self.join(micros, &peer, group);
        self.set_group(&peer, group);
        if !self.members.is_empty() && !self.is_admitting {
            self.is_admitting = true;
            let peers = self.all_members();
            self.step(micros, Step::Call { peers, call: RunCall::UpdateTopology, times: 1 });
        }
        self.members.push((peer.clone(), group));
        self.decide(micros, Decision::Accepted { peer, group });
    }

    fn opened(&mut self, micros: i64, group: u32, members: Vec<String>, is_kept: bool) {
        let known: BTreeSet<_> = self.members.iter().map(|(peer, _)| peer.clone()).collect();
        let missing: Vec<_> = members.iter().filter(|peer| !known.contains(*peer)).cloned().collect();
        if !missing.is_empty() {
            self.note("the records begin in a run: its members join first");
            self.admit_unrecorded(micros, group, missing, &members);
        }
        self.quiet = 0;
        self.decide(
            micros,
            match is_kept {
                true => Decision::EpochKept { group, members },
                false => Decision::EpochOpened { group, members },
            },
        );
    }

    /// Peers were accepted before the records begin.
    fn admit_unrecorded(&mut self, micros: i64, group: u32, peers: Vec<String>, members: &[String]) {
        let mut peers = peers;
        if self.members.is_empty() && !peers.is_empty() {
            let first = peers.remove(0);
            self.accepted(micros, first.clone(), group);
            if members.len() > 1 {
                self.decide(micros, Decision::EpochOpened { group, members: vec![first] });
            }
        }
        peers.iter().for_each(|peer| self.join(micros, peer, group));
        peers.into_iter().for_each(|peer| self.accepted(micros, peer, group));
        self.is_admitting = false;
    }

    fn round_decided(&mut self, micros: i64, phase: &str) {
        match phase {
            "update_topology" if self.is_admitting => self.is_admitting = false,
            "update_topology" => self.call(micros, RunCall::UpdateTopology),
            "are_peers_pending" => self.call(micros, RunCall::ArePeersPending),
            "optimize_topology" => self.call(micros, RunCall::OptimizeTopology),
            _ => {}
        }
    }

    fn departed(&mut self, micros: i64, peer: String, how: &str) {
        let suspected = self.suspects.remove(&peer);
        let end = self.items.len();
        let (index, step) = match how {
            "left" => (end, Some(Step::Leave { peer: peer.clone() })),
            "silent" if suspected.is_none() => (end, Some(Step::Stop { peer: peer.clone() })),
            "not_returned" => {
                (self.master_died_at.map_or(end, |at| at + 1), Some(Step::Kill { peer: peer.clone() }))
            }
            "connection_lost" | "died" | "silent" => {
                (suspected.unwrap_or(end), Some(Step::Kill { peer: peer.clone() }))
            }
            "unreachable" | "not_established" => (end, Some(Step::Isolate { peer: peer.clone() })),
            "evicted_before" => (end, None),
            "evicted" => (end, Some(Step::Evict { peer: peer.clone() })),
            how => {
                self.note(&format!("a departure ({how}) is simulated as an eviction by the operator"));
                (end, Some(Step::Evict { peer: peer.clone() }))
            }
        };
        if self.joined.contains(&peer) {
            let (members, group) = (&mut self.members, |(member, _): &(String, u32)| *member != peer);
            members.retain(group);
            self.synced.remove(&peer);
            if let Some(step) = step {
                self.insert(index, micros, What::Step(step));
            }
            let how = match how {
                "left" => super::Loss::Left,
                "connection_lost" | "died" | "silent" | "not_returned" => super::Loss::Lost,
                _ => super::Loss::Evicted,
            };
            self.decide(micros, Decision::Departed { peer, how });
        }
    }

    fn reconnected(&mut self, micros: i64, peer: String) {
        if let Some(index) = self.suspects.remove(&peer).filter(|_| self.joined.contains(&peer)) {
            self.insert(index, micros, What::Step(Step::Reset { peer: peer.clone() }));
            self.decide(micros, Decision::Reconnected { peer });
        }
    }

    fn master_killed(&mut self, micros: i64, restarts: bool) {
        self.suspects.clear();
        self.is_admitting = false;
        self.master_died_at = Some(self.items.len());
        self.step(micros, Step::KillMaster { restarts });
    }

    fn elected(&mut self, micros: i64, group: u32, revision: u64, count: u64) {
        let peers = self.members_of(group);
        if peers.is_empty() || self.skipped_syncs.contains(&group) {
            return;
        }
        if self.is_quiet_full() {
            // Revisions must not have gaps.
            self.skipped_syncs.insert(group);
            return self.note("the syncs of a group are left out from then on");
        }
        let recorded = self.peers.fetchers.get(&revision);
        let is_recorded = |peer: &&String| recorded.is_some_and(|names| names.contains(*peer));
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(peers.len() - 1);
        let mut ranked: Vec<_> = peers.iter().collect();
        // Those that recorded a fetch, then those that have not synced yet, the newest first.
        ranked.reverse();
        ranked.sort_by_key(|peer| (!is_recorded(peer), self.synced.contains(*peer)));
        let fetchers = ranked.into_iter().take(count).cloned().collect();
        self.synced.extend(peers.iter().cloned());
        self.step(micros, Step::Sync { peers, revision, fetchers });
        self.decide(micros, Decision::StateElected { group, revision });
    }

    fn committed(&mut self, entry: &Entry, group: u32, count: u64) {
        let record = &entry.record;
        let epoch = record.text_of("epoch").unwrap_or_default();
        let tag = record.number_of("tag").unwrap_or_default();
        let Some((_, peers)) = self.decisions.epoch(epoch).filter(|(_, peers)| peers.len() > 1) else {
            return;
        };
        let peers = peers.clone();
        let bytes = self.peers.bytes.get(&(epoch.to_owned(), tag)).copied().unwrap_or(BYTES_DEFAULT);
        let joined = &self.joined;
        if count == 0 || !peers.iter().all(|peer| joined.contains(peer)) {
            return;
        }
        // With the last step, if it is the same.
        if let [.., before, last] = &mut self.items[..]
            && let What::Step(Step::Reduce { peers: known, tag: of, times, fails: false, .. }) =
                &mut before.what
            && let What::Decision(Decision::Committed { group: decided, count: sum }) = &mut last.what
            && *known == peers
            && (*of, *decided) == (tag, group)
        {
            (*times, *sum) = (times.saturating_add(count), sum.saturating_add(count));
            return;
        }
        if self.is_quiet_full() {
            return;
        }
        self.step(entry.micros, Step::Reduce { peers, tag, bytes, times: count, fails: false });
        self.decide(entry.micros, Decision::Committed { group, count });
    }

    /// An operation failed. Its calls come before the faults that it may have failed for.
    fn aborted(&mut self, entry: &Entry, group: u32, tag: u64, failure: String) {
        let record = &entry.record;
        if !matches!(failure.as_str(), "peer-lost" | "link-lost" | "mismatch" | "timeout" | "epoch-ended") {
            return self.note(&format!("an operation that failed ({failure}) is not simulated"));
        }
        let epoch = record.text_of("epoch").unwrap_or_default();
        let Some((_, members)) = self.decisions.epoch(epoch) else { return };
        let op = (epoch.to_owned(), tag, record.number_of("seq").unwrap_or_default());
        let calls = self.peers.ops.get(&op);
        let bytes = calls.and_then(|calls| calls.values().next().copied());
        let bytes = bytes.or(self.peers.bytes.get(&(op.0.clone(), tag)).copied());
        let default = bytes.unwrap_or_else(|| record.number_of("bytes").unwrap_or(BYTES_DEFAULT));
        let mut callers: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        let mut silent = Vec::new();
        for peer in members {
            // A number was added to a name that several peers have.
            let name = peer.split_once('#').map_or(peer.as_str(), |(name, _)| name);
            match calls.and_then(|calls| calls.get(name)) {
                Some(bytes) => callers.entry(*bytes).or_default().push(peer.clone()),
                None if self.peers.names.contains(name) => silent.push(peer.clone()),
                None => callers.entry(default).or_default().push(peer.clone()),
            }
        }
        if failure == "mismatch"
            && callers.len() == 1
            && let Some(peer) = callers.get_mut(&default).and_then(Vec::pop)
        {
            callers.entry(default.saturating_add(4)).or_default().push(peer);
        }
        if failure == "timeout" && silent.is_empty() {
            callers.values_mut().next_back().and_then(Vec::pop);
        }
        let mut index = self.items.len();
        let mut before = index;
        for (at, Item { what, .. }) in self.items.iter().enumerate().rev() {
            match what {
                What::Step(step) if step.is_fault() => before = at,
                What::Step(Step::Join { .. })
                | What::Decision(
                    Decision::Registered { .. }
                    | Decision::Reconnected { .. }
                    | Decision::Departed { .. }
                    | Decision::Aborted { .. },
                ) => {}
                _ => break,
            }
        }
        for (bytes, peers) in callers.into_iter().filter(|(_, peers)| !peers.is_empty()) {
            let step = Step::Reduce { peers, tag, bytes, times: 1, fails: true };
            self.insert(before, entry.micros, What::Step(step));
            before += 1;
            index += 1;
        }
        debug_assert_eq!(index, self.items.len());
        self.decide(entry.micros, Decision::Aborted { group, tag, failure });
    }
}
