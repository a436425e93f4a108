//! What is logged, to standard error.

use std::str::FromStr;
use std::sync::Once;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Our own variable: a level, or a filter such as `warn,ringfold=debug`.
pub const RINGFOLD_LOG: &str = "RINGFOLD_LOG";
/// The variable that users of `pccl.h` know: a level.
pub const PCCL_LOG_LEVEL: &str = "PCCL_LOG_LEVEL";

/// How much is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level(LevelFilter);

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text.trim().to_ascii_lowercase().as_str() {
            "trace" => LevelFilter::TRACE,
            "debug" => LevelFilter::DEBUG,
            "info" => LevelFilter::INFO,
            "warn" | "warning" => LevelFilter::WARN,
            "err" | "error" => LevelFilter::ERROR,
            // Nothing is logged as fatal.
            "fatal" | "none" | "off" => LevelFilter::OFF,
            _ => return Err(format!("{text:?} is no level: trace, debug, info, warn, error, fatal, off")),
        }))
    }
}

/// As [`start`] by the variables, once; for libraries, which are asked to make themselves ready again and again.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| start(None));
}

/// Starts logging, unless the process has a log of its own. The argument goes before the variables, and ours before the one of PCCL.
pub fn start(level: Option<Level>) {
    let (filter, complaint) = match level {
        Some(Level(level)) => (Targets::new().with_default(level), None),
        None => from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty())),
    };
    // It fails only if somebody has started it before, and then there is nothing to do.
    let _ = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        // Whoever read standard error may be gone; that is no reason to end.
        .log_internal_errors(false)
        .finish()
        .with(filter)
        .try_init();
    if let Some(complaint) = complaint {
        tracing::warn!("{complaint}");
    }
}

/// A variable that can't be understood must not silence warnings; it earns one.
fn from_variables(variable: impl Fn(&str) -> Option<String>) -> (Targets, Option<String>) {
    let only = |level| Targets::new().with_default(level);
    let default = || only(LevelFilter::WARN);
    if let Some(text) = variable(RINGFOLD_LOG) {
        if let Ok(Level(level)) = text.parse() {
            return (only(level), None);
        }
        return match text.parse::<Targets>() {
            Ok(filter) if filter.default_level().is_none() => (filter.with_default(LevelFilter::WARN), None),
            Ok(filter) => (filter, None),
            Err(error) => (default(), Some(format!("{RINGFOLD_LOG} is not used: {error}"))),
        };
    }
    match variable(PCCL_LOG_LEVEL).map(|text| text.parse()) {
        Some(Ok(Level(level))) => (only(level), None),
        Some(Err(error)) => (default(), Some(format!("{PCCL_LOG_LEVEL} is not used: {error}"))),
        None => (default(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::{Layer, Registry};

    fn level(variables: &[(&str, &str)]) -> (Option<LevelFilter>, bool) {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let (filter, complaint) = from_variables(find);
        (Layer::<Registry>::max_level_hint(&filter), complaint.is_some())
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
        let (filter, _) = from_variables(|_| Some("ringfold_fabric=debug".into()));
        assert!(filter.would_enable("ringfold", &tracing::Level::WARN), "the default holds for the rest");
        assert!(!filter.would_enable("ringfold", &tracing::Level::INFO));
    }

    #[test]
    fn a_variable_that_makes_no_sense_leaves_warnings_on_and_earns_one() {
        assert_eq!(level(&[(PCCL_LOG_LEVEL, "loud")]), (Some(LevelFilter::WARN), true));
        assert_eq!(level(&[(RINGFOLD_LOG, "a=b=c")]), (Some(LevelFilter::WARN), true));
    }
}
