//! The log of the programs, on standard error. A failed test quotes it.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Starts the log at the level of `RINGFOLD_LOG`, or `info`.
pub fn start() {
    let filter = std::env::var("RINGFOLD_LOG").ok().and_then(|text| text.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    // An error means that the log was started before.
    let _ = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .log_internal_errors(false)
        .finish()
        .with(filter)
        .try_init();
}
