//! What the library reports goes to standard error, which the test quotes when something is wrong.

use tracing_subscriber::EnvFilter;

/// Starts the log: `RINGFOLD_LOG` says how much; `info` if it is not set.
pub fn start() {
    let filter = EnvFilter::try_from_env("RINGFOLD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A second start in one process changes nothing.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .log_internal_errors(false)
        .try_init();
}
