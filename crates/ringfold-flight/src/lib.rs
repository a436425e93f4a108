//! Reads flight recorders, and merges those of several processes into one timeline.
//!
//! The files may be damaged, or come from anywhere: what cannot be read is counted and skipped. `ringfold replay` and the
//! simulator use the same reader.
#![forbid(unsafe_code)]

mod clocks;
mod log;
mod timeline;
mod timestamp;

pub use clocks::Clocks;
pub use log::{FlightHeader, FlightLog, FlightRecord};
pub use timeline::{Entry, FlightSource, RECORDS_END, Timeline, TimelineSource};
pub use timestamp::{append_time, format_micros, format_time, parse_micros};

/// The longest line of a file, with its end.
pub const LINE_BYTES_MAX: usize = ringfold_proto::limits::FLIGHT_LINE_BYTES_MAX;

/// The largest file.
pub const BYTES_MAX: u64 = ringfold_proto::limits::FLIGHT_BYTES_MAX;
