//! The records of several files in the order of time.

use crate::{Clocks, FlightLog, FlightRecord};
use ringfold_proto::event::Level;
use serde_json::Map;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A file that was read.
#[derive(Debug)]
pub struct FlightSource {
    /// Where it is.
    pub path: PathBuf,
    /// Whether its process still writes it.
    pub is_in_use: bool,
    /// Its content; a merged timeline has taken the records.
    pub log: FlightLog,
    /// How many records it has.
    pub records: usize,
}

/// A master, peer or rank, or a process for what has no source.
#[derive(Debug)]
pub struct TimelineSource {
    /// Its kind and name.
    pub label: String,
}

/// One record, with its time by the reference clock.
#[derive(Debug)]
pub struct Entry {
    /// Microseconds since 1970.
    pub micros: i64,
    /// The index of the source.
    pub source: usize,
    /// The index of the file.
    pub file: usize,
    /// The record, with the time by the clock of its host.
    pub record: FlightRecord,
}

/// All records.
#[derive(Debug)]
pub struct Timeline {
    /// The files, without their records.
    pub files: Vec<FlightSource>,
    /// All sources.
    pub sources: Vec<TimelineSource>,
    /// In the order of time.
    pub entries: Vec<Entry>,
    /// How the clocks were aligned.
    pub clocks: Clocks,
}

/// The kind of the entry that is added where the records of a source end.
pub const RECORDS_END: &str = "records_end";

/// Events after which a source posts nothing more.
const LAST_EVENTS: [&str; 3] = ["left", "membership_ended", "ended"];

impl Timeline {
    /// Merges files.
    pub fn merge(mut files: Vec<FlightSource>) -> Self {
        let clocks = Clocks::align(&files);
        let mut labels: BTreeMap<(usize, String), usize> = BTreeMap::new();
        let (mut sources, mut entries) = (Vec::new(), Vec::new());
        for (index, file) in files.iter_mut().enumerate() {
            for record in core::mem::take(&mut file.log.records) {
                let label = label(file, &record);
                let next = sources.len();
                let source = *labels.entry((index, label.clone())).or_insert(next);
                if source == next {
                    sources.push(TimelineSource { label });
                }
                let micros = record.micros.saturating_sub(clocks.offset(index));
                entries.push(Entry { micros, source, file: index, record });
            }
        }
        let ends: Vec<_> = (0..sources.len()).filter_map(|source| end_of(&files, &entries, source)).collect();
        entries.extend(ends);
        entries.sort_by_key(|entry| (entry.micros, entry.file, entry.record.number));
        Self { files, sources, entries, clocks }
    }
}

fn label(file: &FlightSource, record: &FlightRecord) -> String {
    if !record.source.is_empty() {
        return format!("{} {}", record.source, record.name);
    }
    match &file.log.header {
        Some(header) => format!("{} {}:{}", header.program, header.host, header.pid),
        None => file.path.display().to_string(),
    }
}

/// Where the records of a source end without a reason, and its process does not run any more.
fn end_of(files: &[FlightSource], entries: &[Entry], source: usize) -> Option<Entry> {
    let mut own = entries.iter().filter(|entry| entry.source == source);
    let last = own.clone().next_back()?;
    if last.record.source.is_empty()
        || files[last.file].is_in_use
        || own.any(|entry| LAST_EVENTS.contains(&entry.record.event.as_str()))
    {
        return None;
    }
    let record = FlightRecord {
        level: Level::Warn,
        event: RECORDS_END.into(),
        message: "the records end here: the process ended without leaving".into(),
        fields: Map::new(),
        ..last.record.clone()
    };
    Some(Entry { record, ..*last })
}
