//! The log on standard error, and the variables that set its level.

use std::str::FromStr;
use std::sync::Once;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// A level, or a filter such as `warn,ringfold=debug`. It has priority over [`PCCL_LOG_LEVEL`].
pub const RINGFOLD_LOG: &str = "RINGFOLD_LOG";
/// A level; the variable that `pccl.h` documents.
pub const PCCL_LOG_LEVEL: &str = "PCCL_LOG_LEVEL";

/// The least severe level that is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLevel(LevelFilter);

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text.trim().to_ascii_lowercase().as_str() {
            "trace" => LevelFilter::TRACE,
            "debug" => LevelFilter::DEBUG,
            "info" => LevelFilter::INFO,
            "warn" | "warning" => LevelFilter::WARN,
            "err" | "error" => LevelFilter::ERROR,
            // Ringfold logs nothing as fatal.
            "fatal" | "none" | "off" => LevelFilter::OFF,
            _ => {
                return Err(format!(
                    "unknown log level {text:?}: use trace, debug, info, warn, error, fatal or off"
                ));
            }
        }))
    }
}

/// Starts logging by the variables, once per process; for libraries.
pub fn start_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| start(None));
}

/// Starts logging, unless the process has installed a log itself. The argument has priority over the variables.
pub fn start(level: Option<LogLevel>) {
    let (filter, warning) = match level {
        Some(LogLevel(level)) => (Targets::new().with_default(level), None),
        None => read_filter(|name| std::env::var(name).ok().filter(|value| !value.is_empty())),
    };
    // It fails only if a log was started before.
    let _ = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        // A closed standard error must not end the process.
        .log_internal_errors(false)
        .finish()
        .with(filter)
        .try_init();
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
}

/// The filter of the variables, and a warning about an invalid variable. An invalid one leaves warnings on.
fn read_filter(variable: impl Fn(&str) -> Option<String>) -> (Targets, Option<String>) {
    let only = |level| Targets::new().with_default(level);
    let default = || only(LevelFilter::WARN);
    if let Some(text) = variable(RINGFOLD_LOG) {
        if let Ok(LogLevel(level)) = text.parse() {
            return (only(level), None);
        }
        return match text.parse::<Targets>() {
            Ok(filter) if filter.default_level().is_none() => (filter.with_default(LevelFilter::WARN), None),
            Ok(filter) => (filter, None),
            Err(error) => (default(), Some(format!("ignored invalid {RINGFOLD_LOG}: {error}"))),
        };
    }
    match variable(PCCL_LOG_LEVEL).map(|text| text.parse()) {
        Some(Ok(LogLevel(level))) => (only(level), None),
        Some(Err(error)) => (default(), Some(format!("ignored invalid {PCCL_LOG_LEVEL}: {error}"))),
        None => (default(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::{Layer, Registry};

    fn level(variables: &[(&str, &str)]) -> (Option<LevelFilter>, bool) {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let (filter, warning) = read_filter(find);
        (Layer::<Registry>::max_level_hint(&filter), warning.is_some())
    }

    #[test]
    fn warnings_are_logged_unless_a_variable_says_otherwise() {
        assert_eq!(level(&[]), (Some(LevelFilter::WARN), false));
        assert_eq!(level(&[(PCCL_LOG_LEVEL, "INFO")]), (Some(LevelFilter::INFO), false));
        assert_eq!(level(&[(PCCL_LOG_LEVEL, "FATAL")]), (Some(LevelFilter::OFF), false));
        assert_eq!(level(&[(PCCL_LOG_LEVEL, "NONE")]), (Some(LevelFilter::OFF), false));
        assert_eq!(
            level(&[(RINGFOLD_LOG, "off"), (PCCL_LOG_LEVEL, "INFO")]),
            (Some(LevelFilter::OFF), false)
        );
        assert_eq!(level(&[(RINGFOLD_LOG, "error,ringfold=debug")]), (Some(LevelFilter::DEBUG), false));
        let (filter, _) = read_filter(|_| Some("ringfold_fabric=debug".into()));
        assert!(filter.would_enable("ringfold", &tracing::Level::WARN), "the default holds for the rest");
        assert!(!filter.would_enable("ringfold", &tracing::Level::INFO));
    }

    #[test]
    fn an_invalid_variable_leaves_warnings_on_and_is_reported() {
        assert_eq!(level(&[(PCCL_LOG_LEVEL, "loud")]), (Some(LevelFilter::WARN), true));
        assert_eq!(level(&[(RINGFOLD_LOG, "a=b=c")]), (Some(LevelFilter::WARN), true));
    }
}
