//! The log: `PCCL_LOG_LEVEL` says how much of it, stderr gets it.

use std::sync::Once;
use tracing_subscriber::filter::LevelFilter;

/// Installs the log once. A process that has one of its own keeps it.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let wanted = std::env::var("PCCL_LOG_LEVEL").unwrap_or_default();
        let level = level(&wanted);
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level.unwrap_or(LevelFilter::WARN))
            .with_writer(std::io::stderr)
            // A closed stderr is no reason to end the process.
            .log_internal_errors(false)
            .finish();
        // Only fails if there is one already, and then that one is the right one.
        let _ = tracing::subscriber::set_global_default(subscriber);
        if level.is_none() {
            tracing::warn!("PCCL_LOG_LEVEL is {wanted:?}, which is no level; warnings are logged");
        }
    });
}

fn level(name: &str) -> Option<LevelFilter> {
    Some(match name.trim().to_ascii_uppercase().as_str() {
        "TRACE" => LevelFilter::TRACE,
        "DEBUG" => LevelFilter::DEBUG,
        "INFO" => LevelFilter::INFO,
        "" | "WARN" | "WARNING" => LevelFilter::WARN,
        "ERR" | "ERROR" => LevelFilter::ERROR,
        // Nothing is logged as fatal.
        "FATAL" | "NONE" | "OFF" => LevelFilter::OFF,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_names_that_users_know() {
        assert_eq!(level(""), Some(LevelFilter::WARN));
        assert_eq!(level("debug"), Some(LevelFilter::DEBUG));
        assert_eq!(level("ERR"), level("ERROR"));
        assert_eq!(level("NONE"), level("OFF"));
        assert_eq!(level("loud"), None);
    }

    #[test]
    fn a_process_with_a_log_of_its_own_keeps_it() {
        let _ = tracing_subscriber::fmt().with_max_level(LevelFilter::OFF).try_init();
        install();
        install();
    }
}
