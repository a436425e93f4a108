//! The log on standard error, and the variables that set its level and format.

mod json;

use json::{JsonLayer, RecorderLayer};
use std::str::FromStr;
use std::sync::Once;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::Layered;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Registry, fmt};

/// A level, or a filter such as `warn,ringfold=debug`. It has priority over [`PCCL_LOG_LEVEL`].
pub const RINGFOLD_LOG: &str = "RINGFOLD_LOG";
/// A level; the variable that `pccl.h` documents.
pub const PCCL_LOG_LEVEL: &str = "PCCL_LOG_LEVEL";

/// The format: `text` or `json`.
pub const RINGFOLD_LOG_FORMAT: &str = "RINGFOLD_LOG_FORMAT";

/// The format of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object of JSON per line, for programs. `docs/events.md` lists its fields.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("unknown log format {text:?}: use text or json")),
        }
    }
}

/// The settings of the log. What is missing is taken from the variables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogOptions {
    /// The least severe level.
    pub level: Option<LogLevel>,
    /// The format.
    pub format: Option<LogFormat>,
}

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
    ONCE.call_once(|| start(LogOptions::default()));
}

/// Starts logging, unless the process has installed a log itself. The options have priority over the variables.
pub fn start(options: LogOptions) {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (filter, warning) = match options.level {
        Some(LogLevel(level)) => (Targets::new().with_default(level), None),
        None => read_filter(variable),
    };
    let (format, wrong_format) = match (options.format, variable(RINGFOLD_LOG_FORMAT)) {
        (Some(format), _) => (format, None),
        (None, None) => (LogFormat::default(), None),
        (None, Some(text)) => match text.parse() {
            Ok(format) => (format, None),
            Err(error) => (LogFormat::Text, Some(format!("ignored invalid {RINGFOLD_LOG_FORMAT}: {error}"))),
        },
    };
    match format {
        LogFormat::Text => {
            // A closed standard error must not end the process.
            let text = fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
            install(tracing_subscriber::registry().with(text.with_filter(filter)));
        }
        LogFormat::Json => install(tracing_subscriber::registry().with(JsonLayer.with_filter(filter))),
    }
    for warning in [warning, wrong_format].into_iter().flatten() {
        tracing::warn!("{warning}");
    }
}

/// Installs the log, and records it if there is a flight recorder.
fn install<L>(log: Layered<L, Registry>)
where
    Layered<L, Registry>:
        tracing::Subscriber + Send + Sync + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    // It fails only if a log was started before.
    let _ = if ringfold::journal::is_recording() {
        // What is not typed is recorded as well, also if it is not logged.
        let ours = Targets::new().with_target("ringfold", LevelFilter::INFO);
        log.with(RecorderLayer.with_filter(ours)).try_init()
    } else {
        log.try_init()
    };
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
