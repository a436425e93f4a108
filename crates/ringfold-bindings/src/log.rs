//! The log on standard error, and the settings of it.

use core::fmt;
use ringfold::settings::{Settings, Source, table};
use std::str::FromStr;
use std::sync::Once;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

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

/// As it is written in a setting.
impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
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

fn default_filter() -> Targets {
    Targets::new().with_default(LevelFilter::WARN)
}

/// The filter of the setting, and a warning if it is invalid. An invalid one leaves warnings on.
fn read_filter(text: &str, source: &Source) -> (Targets, Option<String>) {
    let why = match text.parse() {
        Ok(LogLevel(level)) => return (Targets::new().with_default(level), None),
        // The old variable is a level alone.
        Err(error) if *source == Source::Variable("PCCL_LOG_LEVEL") => error,
        Err(_) => match text.parse::<Targets>() {
            Ok(filter) if filter.default_level().is_none() => {
                return (filter.with_default(LevelFilter::WARN), None);
            }
            Ok(filter) => return (filter, None),
            Err(error) => error.to_string(),
        },
    };
    (default_filter(), Some(format!("ignored invalid {source}: {why}")))
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
        let level: LogLevel = "Warning".parse().unwrap();
        assert_eq!(level.to_string(), "warn");
    }

    #[test]
    fn an_invalid_setting_leaves_warnings_on_and_is_reported() {
        assert_eq!(level("loud", &OLD), (Some(LevelFilter::WARN), true));
        assert_eq!(level("a=b=c", &NEW), (Some(LevelFilter::WARN), true));
    }
}
