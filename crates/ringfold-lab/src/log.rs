//! What the library reports goes to standard error, which the test quotes when something is wrong.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Starts the log: `RINGFOLD_LOG` says how much; `info` if it is not set.
pub fn start() {
    let filter = std::env::var("RINGFOLD_LOG").ok().and_then(|text| text.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    // A second start in one process changes nothing.
    let _ = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .log_internal_errors(false)
        .finish()
        .with(filter)
        .try_init();
}
