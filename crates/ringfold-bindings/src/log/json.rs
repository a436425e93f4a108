//! Log lines as JSON: on standard error, and in the flight recorder.

use core::fmt;
use ringfold::journal;
use serde_json::{Map, Value};
use std::io::Write;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Writes each event as a line of JSON to standard error.
pub(super) struct JsonLayer;

/// Records what has no typed event; typed events are recorded when they are posted.
pub(super) struct RecorderLayer;

/// Fields of all lines, and of typed events. Fields of other events with these names get a `_` at the end.
const RESERVED: [&str; 9] =
    ["time", "number", "monotonic_us", "level", "target", "source", "name", "event", "message"];

impl<S: Subscriber> Layer<S> for JsonLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Vec::new();
        match journal::current() {
            Some(record) => record.write_line(&mut line, None),
            None => {
                let (message, fields) = Fields::of(event);
                let metadata = event.metadata();
                let (level, target) = (level_name(*metadata.level()), metadata.target());
                journal::write_text_line(&mut line, None, level, target, &message, &fields);
            }
        }
        // A closed standard error must not end the process.
        let _ = std::io::stderr().lock().write_all(&line);
    }
}

impl<S: Subscriber> Layer<S> for RecorderLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if journal::current().is_none() {
            let (message, fields) = Fields::of(event);
            let metadata = event.metadata();
            journal::record_text(level_name(*metadata.level()), metadata.target(), &message, &fields);
        }
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::TRACE => "trace",
        Level::DEBUG => "debug",
        Level::INFO => "info",
        Level::WARN => "warn",
        Level::ERROR => "error",
    }
}

/// The message and the fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn of(event: &Event<'_>) -> (String, Map<String, Value>) {
        let mut fields = Self::default();
        event.record(&mut fields);
        (fields.message, fields.others)
    }

    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        let reserved = RESERVED.contains(&field.name());
        self.others.insert(format!("{}{}", field.name(), if reserved { "_" } else { "" }), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.put(field, format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.into();
        } else {
            self.put(field, value);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}
