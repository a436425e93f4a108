//! A timeline in the Chrome trace event format, which Perfetto opens too.
//!
//! One process per source. Operations, votes, syncs and times without a master are slices, on one thread each (operations: one
//! thread per tag), and everything else is an instant.

use ringfold_flight::{Entry, RECORDS_END, Timeline};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The threads of a process. Those of operations follow.
const EVENTS: u64 = 0;
const VOTES: u64 = 1;
const SYNCS: u64 = 2;
const MASTER: u64 = 3;
const FIRST_OPS: u64 = 4;

/// Something that has begun and not ended, by source and kind.
type Open<'a> = BTreeMap<(usize, String), &'a Entry>;

struct Trace<'a> {
    events: Vec<Value>,
    open: Open<'a>,
    /// The threads of operations, by source and tag.
    tags: BTreeMap<(usize, u64), u64>,
    end: i64,
}

/// The trace as text.
pub(super) fn write<'a>(timeline: &'a Timeline, shown: impl Iterator<Item = &'a Entry>) -> Vec<u8> {
    let end = timeline.entries.last().map_or(0, |entry| entry.micros);
    let mut trace = Trace { events: Vec::new(), open: BTreeMap::new(), tags: BTreeMap::new(), end };
    for (index, source) in timeline.sources.iter().enumerate() {
        trace.name(index, "process_name", EVENTS, &source.label);
        for (thread, name) in
            [(EVENTS, "events"), (VOTES, "votes"), (SYNCS, "shared state"), (MASTER, "no master")]
        {
            trace.name(index, "thread_name", thread, name);
        }
    }
    shown.for_each(|entry| trace.add(entry));
    trace.close_all();
    let all = json!({ "traceEvents": trace.events, "displayTimeUnit": "ms" });
    all.to_string().into_bytes()
}

impl<'a> Trace<'a> {
    fn name(&mut self, source: usize, what: &str, thread: u64, name: &str) {
        let args = json!({ "name": name });
        self.events.push(
            json!({ "name": what, "ph": "M", "ts": 0, "pid": source + 1, "tid": thread, "args": args }),
        );
    }

    fn add(&mut self, entry: &'a Entry) {
        let record = &entry.record;
        let micros = |field: &str| record.number_of(field).and_then(|us| i64::try_from(us).ok());
        let text = |field: &str| record.text_of(field).unwrap_or_default().to_owned();
        let source = entry.source;
        match record.event.as_str() {
            "op_started" => {
                self.open.insert((source, op_key(entry)), entry);
            }
            "op_ended" => {
                self.open.remove(&(source, op_key(entry)));
                let thread = self.thread_of(entry);
                let began = entry.micros - micros("duration_us").unwrap_or(0);
                self.slice(entry, thread, "operation", &text("call"), began, entry.micros);
            }
            "ops_committed" => {
                let thread = self.thread_of(entry);
                let count = record.number_of("count").unwrap_or(0);
                let began = entry.micros - micros("span_us").unwrap_or(0);
                self.slice(entry, thread, "operation", &format!("{count} operations"), began, entry.micros);
            }
            "vote_began" => {
                self.open.insert((source, text("phase")), entry);
            }
            "vote_ended" => {
                self.open.remove(&(source, text("phase")));
                let began = entry.micros - micros("duration_us").unwrap_or(0);
                self.slice(entry, VOTES, "vote", &text("phase"), began, entry.micros);
            }
            "sync_began" => {
                self.open.insert((source, "sync".into()), entry);
            }
            "sync_ended" => {
                self.open.remove(&(source, "sync".into()));
                let began = entry.micros - micros("duration_us").unwrap_or(0);
                self.slice(entry, SYNCS, "sync", "sync", began, entry.micros);
            }
            "master_lost" => {
                self.instant(entry);
                self.open.entry((source, "no master".into())).or_insert(entry);
            }
            "master_connected" => {
                if let Some(lost) = self.open.remove(&(source, "no master".into())) {
                    self.slice(lost, MASTER, "wait", "no master", lost.micros, entry.micros);
                }
                self.instant(entry);
            }
            event => {
                self.instant(entry);
                if matches!(event, RECORDS_END | "left" | "membership_ended") {
                    self.close(source, entry.micros);
                }
            }
        }
    }

    /// The thread of the operations of a tag.
    fn thread_of(&mut self, entry: &Entry) -> u64 {
        let (source, tag) = (entry.source, entry.record.number_of("tag").unwrap_or(0));
        let next = FIRST_OPS + self.tags.len() as u64;
        match self.tags.get(&(source, tag)) {
            Some(thread) => *thread,
            None => {
                self.tags.insert((source, tag), next);
                self.name(source, "thread_name", next, &format!("operations of tag {tag}"));
                next
            }
        }
    }

    fn slice(&mut self, entry: &Entry, thread: u64, category: &str, name: &str, began: i64, ended: i64) {
        self.events.push(json!({
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": began,
            "dur": ended.saturating_sub(began).max(0),
            "pid": entry.source + 1,
            "tid": thread,
            "args": args(entry),
        }));
    }

    fn instant(&mut self, entry: &Entry) {
        let record = &entry.record;
        let name = if record.event.is_empty() { &record.message } else { &record.event };
        self.events.push(json!({
            "name": name,
            "cat": record.level.name(),
            "ph": "i",
            "s": "t",
            "ts": entry.micros,
            "pid": entry.source + 1,
            "tid": EVENTS,
            "args": args(entry),
        }));
    }

    /// What a source has begun ends with it.
    fn close(&mut self, source: usize, at: i64) {
        let is_own = |key: &&(usize, String)| key.0 == source;
        let keys: Vec<_> = self.open.keys().filter(is_own).cloned().collect();
        for key in keys {
            let Some(began) = self.open.remove(&key) else { continue };
            let (thread, category) = match began.record.event.as_str() {
                "vote_began" => (VOTES, "vote"),
                "sync_began" => (SYNCS, "sync"),
                "master_lost" => (MASTER, "wait"),
                _ => (self.thread_of(began), "operation"),
            };
            let name = format!("{} (not ended)", began.record.text_of("call").unwrap_or(&key.1));
            self.slice(began, thread, category, &name, began.micros, at);
        }
    }

    fn close_all(&mut self) {
        let sources: Vec<_> = self.open.keys().map(|(source, _)| *source).collect();
        sources.into_iter().for_each(|source| self.close(source, self.end));
    }
}

fn op_key(entry: &Entry) -> String {
    let number = |field| entry.record.number_of(field).unwrap_or(0);
    let epoch = entry.record.text_of("epoch").unwrap_or_default();
    format!("op {epoch} {} {}", number("tag"), number("seq"))
}

fn args(entry: &Entry) -> Map<String, Value> {
    let mut args = entry.record.fields.clone();
    args.insert("message".into(), entry.record.message.as_str().into());
    args
}
