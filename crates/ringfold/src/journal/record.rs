//! One event with its time and source, and its form as a line of JSON.

use super::{SHORT_OP_MAX, Source};
use core::fmt::{self, Write};
use core::time::Duration;
use ringfold_fabric::clock;
use ringfold_proto::event::{Event, Level, OpTally, PeerEvent};
use ringfold_proto::id::OpId;
use ringfold_proto::message::Outcome;
pub use ringfold_proto::text::Printable;
use ringfold_proto::text::printable;
use serde::Serialize;
use std::sync::Arc;
use std::time::SystemTime;

/// An event of any source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JournalEvent {
    /// Of a master.
    Master(Event),
    /// Of a peer or rank.
    Peer(PeerEvent),
    /// Short operations of any source.
    Ops(OpTally),
}

impl From<Event> for JournalEvent {
    fn from(event: Event) -> Self {
        Self::Master(event)
    }
}

impl From<PeerEvent> for JournalEvent {
    fn from(event: PeerEvent) -> Self {
        Self::Peer(event)
    }
}

impl From<OpTally> for JournalEvent {
    fn from(tally: OpTally) -> Self {
        Self::Ops(tally)
    }
}

impl JournalEvent {
    /// The stable name of its kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Master(event) => event.name(),
            Self::Peer(event) => event.name(),
            Self::Ops(_) => OpTally::NAME,
        }
    }

    /// How much it matters.
    pub fn level(&self) -> Level {
        match self {
            Self::Master(event) => event.level(),
            Self::Peer(event) => event.level(),
            Self::Ops(_) => Level::Debug,
        }
    }

    /// A committed operation that was short, or whose duration is not known.
    pub(super) fn short_op(&self) -> Option<ShortOp> {
        match self {
            Self::Master(Event::OpDecided { op, outcome: Outcome::Committed { .. }, .. }) => {
                Some(ShortOp { op: *op, sent_bytes: 0, received_bytes: 0, duration: Duration::ZERO })
            }
            Self::Peer(PeerEvent::OpEnded {
                op: Some(op),
                result: Ok(_),
                sent_bytes,
                received_bytes,
                duration,
                ..
            }) if *duration < SHORT_OP_MAX => {
                let (sent_bytes, received_bytes) = (*sent_bytes, *received_bytes);
                Some(ShortOp { op: *op, sent_bytes, received_bytes, duration: *duration })
            }
            _ => None,
        }
    }
}

/// A short operation.
pub(super) struct ShortOp {
    pub op: OpId,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub duration: Duration,
}

impl fmt::Display for JournalEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Master(event) => event.fmt(f),
            Self::Peer(event) => event.fmt(f),
            Self::Ops(tally) => tally.fmt(f),
        }
    }
}

impl Serialize for JournalEvent {
    /// The fields of the event.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Master(event) => event.serialize(serializer),
            Self::Peer(event) => event.serialize(serializer),
            Self::Ops(tally) => tally.serialize(serializer),
        }
    }
}

/// An event that was posted.
#[derive(Debug)]
pub struct Record {
    /// The time of day.
    pub time: SystemTime,
    /// The time since this host was started.
    pub monotonic: Duration,
    /// What posted it.
    pub source: Arc<Source>,
    /// How much it matters.
    pub level: Level,
    /// The event.
    pub event: JournalEvent,
}

impl Record {
    pub(super) fn new(source: Arc<Source>, level: Level, event: JournalEvent) -> Self {
        Self { time: SystemTime::now(), monotonic: clock::since_boot(), source, level, event }
    }

    /// The text, without control characters.
    pub fn text(&self) -> String {
        Printable(&self.event).to_string()
    }

    /// Appends it as a line of JSON, with the number of the record if it has one.
    pub fn write_line(&self, line: &mut Vec<u8>, number: Option<u64>) {
        let start = line.len();
        self.begin_line(line, number);
        let fields_at = line.len();
        // Writing to memory does not fail, and neither do the events.
        if serde_json::to_writer(&mut *line, &self.event).is_err() {
            line.truncate(fields_at);
            line.extend_from_slice(b"{}");
        }
        splice(line, fields_at);
        if line.len() - start > LINE_BYTES_MAX {
            line.truncate(start);
            self.begin_line(line, number);
            line.extend_from_slice(b",\"truncated\":true}\n");
        }
    }

    fn begin_line(&self, line: &mut Vec<u8>, number: Option<u64>) {
        let Self { source, level, event, .. } = self;
        begin_line(line, (self.time, self.monotonic), number, level.name(), source.kind().target());
        field(line, "source", &source.kind().name());
        field(line, "name", &source.name());
        field(line, "event", &event.name());
        field(line, "message", event);
    }
}

/// Longer lines have no fields.
const LINE_BYTES_MAX: usize = ringfold_fabric::flight_file::LINE_BYTES_MAX;

/// Longer texts are cut.
const TEXT_BYTES_MAX: usize = 4096;

/// Appends a line of JSON for what has no typed event. `fields` is what follows the message.
pub fn write_text_line(
    line: &mut Vec<u8>,
    number: Option<u64>,
    level: &str,
    target: &str,
    message: &str,
    fields: &serde_json::Map<String, serde_json::Value>,
) {
    begin_line(line, (SystemTime::now(), clock::since_boot()), number, level, target);
    field(line, "message", &message);
    let fields_at = line.len();
    if serde_json::to_writer(&mut *line, fields).is_err() {
        line.truncate(fields_at);
        line.extend_from_slice(b"{}");
    }
    splice(line, fields_at);
}

fn begin_line(
    line: &mut Vec<u8>,
    (time, monotonic): (SystemTime, Duration),
    number: Option<u64>,
    level: &str,
    target: &str,
) {
    line.extend_from_slice(b"{\"time\":\"");
    ringfold_flight::append_time(line, time);
    line.push(b'"');
    if let Some(number) = number {
        use std::io::Write;
        // Writing to memory does not fail.
        let _ = write!(line, ",\"number\":{number},\"monotonic_us\":{}", monotonic.as_micros());
    }
    field(line, "level", &level);
    field(line, "target", &target);
}

/// Joins the object at `fields_at` to the one that it follows, and ends the line.
fn splice(line: &mut Vec<u8>, fields_at: usize) {
    if line[fields_at..] == *b"{}" {
        line.truncate(fields_at);
        line.push(b'}');
    } else {
        line[fields_at] = b',';
    }
    line.push(b'\n');
}

/// Appends a field of text.
fn field(line: &mut Vec<u8>, name: &str, value: &dyn fmt::Display) {
    line.extend_from_slice(b",\"");
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(b"\":\"");
    let end = line.len() + TEXT_BYTES_MAX;
    // It ends early if the text is too long.
    let _ = write!(JsonText { line, end }, "{value}");
    line.push(b'"');
}

/// The inside of a string of JSON, without control characters.
struct JsonText<'a> {
    line: &'a mut Vec<u8>,
    end: usize,
}

impl Write for JsonText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.line.len() >= self.end {
                return Err(fmt::Error);
            }
            match c {
                '"' | '\\' => self.line.extend_from_slice(&[b'\\', c as u8]),
                ' '..='~' => self.line.push(c as u8),
                c => {
                    let c = printable(c);
                    self.line.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
        }
        Ok(())
    }
}
