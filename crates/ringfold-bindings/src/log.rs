//! The log on standard error, and the settings of it.

mod json;

use core::fmt;
use json::{JsonLayer, RecorderLayer};
use ringfold::settings::{Settings, Source, table};
use std::str::FromStr;
use std::sync::Once;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::Layered;
use tracing_subscriber::prelude::*;

/// What is logged: a level, or levels of parts of the program.
#[derive(Clone, PartialEq, Debug)]
pub struct LogFilter(Targets);

impl FromStr for LogFilter {
    type Err = String;

    /// Reads a level, or several such as `warn,ringfold=debug`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (mut filter, mut rest) = (Targets::new(), LevelFilter::WARN);
        for part in text.split(',') {
            match part.split_once('=') {
                Some((target, level)) => filter = filter.with_target(target.trim(), read_level(level)?),
                None => rest = read_level(part)?,
            }
        }
        Ok(Self(filter.with_default(rest)))
    }
}

/// As it is written in a setting.
impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn read_level(text: &str) -> Result<LevelFilter, String> {
    Ok(match text.trim().to_ascii_lowercase().as_str() {
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
    })
}

/// Starts logging, once per process; for libraries and commands without settings of their own.
pub fn start_once() {
    static ONCE: Once = Once::new();
    // What is wrong with settings is reported when they are used.
    ONCE.call_once(|| start(Settings::without_builder().ok().as_ref()));
}

/// Starts logging by these settings, unless the process has installed a log itself.
pub fn start(settings: Option<&Settings>) {
    let found =
        settings.and_then(|settings| Some((settings.text(&table::LOG)?, settings.source(&table::LOG))));
    let (filter, warning) =
        found.map_or_else(|| (default_filter(), None), |(text, source)| read_filter(text, source));
    let text = |setting| settings.and_then(|settings| settings.text(setting));
    let is_recorded = text(&table::FLIGHT_DIR).is_some();
    if text(&table::LOG_FORMAT) == Some("json") {
        install(tracing_subscriber::registry().with(JsonLayer.with_filter(filter)), is_recorded);
    } else {
        // A closed standard error must not end the process.
        let text = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
        install(tracing_subscriber::registry().with(text.with_filter(filter)), is_recorded);
    }
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
}

/// Installs the log, and records it if there is a flight recorder.
fn install<L>(log: Layered<L, Registry>, is_recorded: bool)
where
    Layered<L, Registry>:
        tracing::Subscriber + Send + Sync + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    // It fails only if a log was started before.
    let _ = if is_recorded {
        // What is not typed is recorded as well, also if it is not logged.
        let ours = Targets::new().with_target("ringfold", LevelFilter::INFO);
        log.with(RecorderLayer.with_filter(ours)).try_init()
    } else {
        log.try_init()
    };
}

fn default_filter() -> Targets {
    Targets::new().with_default(LevelFilter::WARN)
}

/// The filter of the setting, and a warning if it is invalid. An invalid one leaves warnings on.
fn read_filter(text: &str, source: &Source) -> (Targets, Option<String>) {
    match text.parse() {
        Ok(LogFilter(filter)) => (filter, None),
        Err(why) => (default_filter(), Some(format!("ignored invalid {source}: {why}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::{Layer, Registry};

    const NEW: Source = Source::Variable("RINGFOLD_LOG");
    const OLD: Source = Source::Variable("PCCL_LOG_LEVEL");

    fn level(text: &str, source: &Source) -> (Option<LevelFilter>, bool) {
        let (filter, warning) = read_filter(text, source);
        (Layer::<Registry>::max_level_hint(&filter), warning.is_some())
    }

    #[test]
    fn a_level_or_a_filter_is_used() {
        assert_eq!(level("warn", &Source::Default), (Some(LevelFilter::WARN), false));
        assert_eq!(level("INFO", &OLD), (Some(LevelFilter::INFO), false));
        assert_eq!(level("FATAL", &OLD), (Some(LevelFilter::OFF), false));
        assert_eq!(level("NONE", &OLD), (Some(LevelFilter::OFF), false));
        assert_eq!(level("error,ringfold=debug", &NEW), (Some(LevelFilter::DEBUG), false));
        let (filter, _) = read_filter("ringfold_fabric=debug", &NEW);
        assert!(filter.would_enable("ringfold", &tracing::Level::WARN), "the default holds for the rest");
        assert!(!filter.would_enable("ringfold", &tracing::Level::INFO));
        let filter: LogFilter = "Warning, ringfold=info".parse().unwrap();
        assert_eq!(filter.to_string(), "ringfold=info,warn");
    }

    #[test]
    fn an_invalid_setting_leaves_warnings_on_and_is_reported() {
        assert_eq!(level("loud", &OLD), (Some(LevelFilter::WARN), true));
        assert_eq!(level("ringfold=loud", &NEW), (Some(LevelFilter::WARN), true));
        assert_eq!(level("a=b=c", &NEW), (Some(LevelFilter::WARN), true));
    }
}
