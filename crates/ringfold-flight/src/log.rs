//! Reads what a flight recorder has written. The files may be damaged, or come from anywhere.

use crate::{BYTES_MAX, LINE_BYTES_MAX, timestamp};
use ringfold_proto::event::Level;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The process that wrote a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlightHeader {
    /// The name of its host.
    pub host: String,
    /// Identifies the host from its start on: processes with the same text have the same clocks.
    pub boot: String,
    /// Its process id.
    pub pid: u64,
    /// Its program.
    pub program: String,
    /// Its version of Ringfold.
    pub version: String,
}

/// One record of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlightRecord {
    /// Its number in the file.
    pub number: u64,
    /// Microseconds since 1970, by the clock of its host.
    pub micros: i64,
    /// Microseconds since its host was started.
    pub monotonic_micros: u64,
    /// How much it matters.
    pub level: Level,
    /// The part of Ringfold that it comes from.
    pub target: String,
    /// What posted it (`master`, `peer`, `rank`), and its name; empty for lines of the log.
    pub source: String,
    /// See `source`.
    pub name: String,
    /// The kind of event; empty for lines of the log.
    pub event: String,
    /// The text.
    pub message: String,
    /// All other fields.
    pub fields: Map<String, Value>,
}

/// The content of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlightLog {
    /// The process that wrote it, if that can be read.
    pub header: Option<FlightHeader>,
    /// In the order in which they were written.
    pub records: Vec<FlightRecord>,
    /// Lines that cannot be read. One is usual: the oldest, which was partly overwritten.
    pub damaged: usize,
}

impl FlightLog {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is too large, or is not a flight recorder.
    pub fn read(path: &Path) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let mut bytes = Vec::new();
        File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(invalid(format!("it has more than {BYTES_MAX} bytes")));
        }
        let log = Self::parse(&bytes);
        if log.header.is_none() && log.records.is_empty() {
            // A new file has zeros.
            let is_new = log.damaged == 0;
            let why =
                if is_new { "it is empty: no record was written" } else { "it is not a flight recorder" };
            return Err(invalid(why.into()));
        }
        Ok(log)
    }

    /// Reads all lines that can be read.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut log = Self::default();
        for line in bytes.split(|byte| *byte == b'\n') {
            let line = line.trim_ascii();
            // The part of a new file that was not written has zeros.
            if line.iter().all(|byte| *byte == 0) {
                continue;
            }
            if line.len() > LINE_BYTES_MAX {
                log.damaged += 1;
                continue;
            }
            match serde_json::from_slice::<Map<String, Value>>(line) {
                Ok(fields) if fields.contains_key("flight") && log.header.is_none() => {
                    log.header = FlightHeader::from_fields(fields);
                }
                Ok(fields) => match FlightRecord::from_fields(fields) {
                    Some(record) => log.records.push(record),
                    None => log.damaged += 1,
                },
                Err(_) => log.damaged += 1,
            }
        }
        log.records.sort_by_key(|record| record.number);
        log.records.dedup_by_key(|record| record.number);
        log
    }
}

impl FlightHeader {
    fn from_fields(mut fields: Map<String, Value>) -> Option<Self> {
        if fields.get("flight")?.as_u64()? != 1 {
            return None;
        }
        Some(Self {
            pid: fields.get("pid")?.as_u64()?,
            host: text(&mut fields, "host")?,
            boot: text(&mut fields, "boot")?,
            program: text(&mut fields, "program").unwrap_or_default(),
            version: text(&mut fields, "version").unwrap_or_default(),
        })
    }
}

impl FlightRecord {
    /// Reads one line.
    pub fn parse(line: &[u8]) -> Option<Self> {
        Self::from_fields(serde_json::from_slice(line).ok()?)
    }

    fn from_fields(mut fields: Map<String, Value>) -> Option<Self> {
        let micros = timestamp::parse_micros(fields.get("time")?.as_str()?)?;
        let level = text(&mut fields, "level")?;
        let record = Self {
            micros,
            number: fields.get("number")?.as_u64()?,
            monotonic_micros: fields.get("monotonic_us")?.as_u64()?,
            level: Level::ALL.into_iter().find(|known| known.name() == level)?,
            target: text(&mut fields, "target")?,
            source: text(&mut fields, "source").unwrap_or_default(),
            name: text(&mut fields, "name").unwrap_or_default(),
            event: text(&mut fields, "event").unwrap_or_default(),
            message: text(&mut fields, "message")?,
            fields: Map::new(),
        };
        for known in ["time", "number", "monotonic_us"] {
            fields.remove(known);
        }
        Some(Self { fields, ..record })
    }

    /// All fields by their names, in the order of the names.
    pub fn to_fields(&self) -> Map<String, Value> {
        let mut fields = self.fields.clone();
        fields.insert("time".into(), timestamp::format_micros(self.micros).into());
        fields.insert("number".into(), self.number.into());
        fields.insert("monotonic_us".into(), self.monotonic_micros.into());
        fields.insert("level".into(), self.level.name().into());
        let texts = [
            ("target", &self.target),
            ("source", &self.source),
            ("name", &self.name),
            ("event", &self.event),
            ("message", &self.message),
        ];
        for (name, text) in texts {
            fields.insert(name.into(), text.as_str().into());
        }
        fields
    }

    /// A field that is a number.
    pub fn number_of(&self, field: &str) -> Option<u64> {
        self.fields.get(field)?.as_u64()
    }

    /// A field that is text.
    pub fn text_of(&self, field: &str) -> Option<&str> {
        self.fields.get(field)?.as_str()
    }
}

/// Takes a field of text out.
fn text(fields: &mut Map<String, Value>, name: &str) -> Option<String> {
    match fields.remove(name)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}
