//! The names of environment variables: ours, those of tests, and those that Kubernetes makes.

use crate::{nearest, table};
use std::sync::Once;

/// The variable with the path of the TOML file.
pub const CONFIG_VARIABLE: &str = "RINGFOLD_CONFIG";

const PREFIX: &str = "RINGFOLD_";

/// Variables that are no settings: of tests and scripts.
const OTHERS: [&str; 6] = [
    "RINGFOLD_BLESS",
    "RINGFOLD_LONG",
    "RINGFOLD_MNIST",
    "RINGFOLD_SKIPS",
    "RINGFOLD_TOOLS",
    "RINGFOLD_WHEEL",
];

/// How names of more such variables begin.
const OTHER_PREFIXES: [&str; 4] = ["RINGFOLD_TEST_", "RINGFOLD_LAB_", "RINGFOLD_CHURN_", "RINGFOLD_GPU_"];

/// Warns of each variable that begins with `RINGFOLD_` and is not known, once in a process.
pub fn warn_of_unknown_variables() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for warning in warnings(names) {
            tracing::warn!("{warning}");
        }
    });
}

fn warnings(names: impl Iterator<Item = String>) -> Vec<String> {
    let unknown = names.filter(|name| name.starts_with(PREFIX) && !is_known(name) && !is_of_kubernetes(name));
    unknown
        .map(|name| {
            let known = table::ALL.iter().map(|setting| setting.variable).chain([CONFIG_VARIABLE]);
            let hint = nearest::hint(&name[PREFIX.len()..], known.map(|name| &name[PREFIX.len()..]));
            format!(
                "unknown variable {name}, which is ignored{}",
                hint.replace("mean \"", "mean \"RINGFOLD_")
            )
        })
        .collect()
}

fn is_known(name: &str) -> bool {
    let is_setting = table::ALL.iter().any(|setting| setting.variables().any(|variable| variable == name));
    let is_other = OTHERS.contains(&name) || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    is_setting || is_other || name == CONFIG_VARIABLE
}

/// Whether Kubernetes makes a variable of this name for a service whose name begins with `ringfold`: `X_SERVICE_HOST`,
/// `X_SERVICE_PORT`, `X_SERVICE_PORT_NAME`, `X_PORT`, `X_PORT_80_TCP`, `X_PORT_80_TCP_ADDR` and others.
fn is_of_kubernetes(name: &str) -> bool {
    let is_port = |rest: &str| {
        let mut words = rest.split('_');
        let is_number = words.next().is_some_and(|word| word.parse::<u16>().is_ok());
        is_number && words.next().is_some_and(|word| matches!(word, "TCP" | "UDP" | "SCTP"))
    };
    name.starts_with("RINGFOLD_PORT")
        || name.starts_with("RINGFOLD_SERVICE_")
        || name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT")
        || name.split_once("_PORT_").is_some_and(|(_, rest)| is_port(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variables_are_reported_with_the_nearest_name() {
        let given = [
            "RINGFOLD_HEARTBAET",
            "RINGFOLD_ZZZ",
            "OTHER",
            "PCCL_JOIN_TOKEN",
            "RINGFOLD_LOG",
            "RINGFOLD_LONG",
        ];
        let warnings = warnings(given.into_iter().chain(["RINGFOLD_TEST_X"]).map(Into::into));
        assert_eq!(
            warnings,
            [
                "unknown variable RINGFOLD_HEARTBAET, which is ignored: did you mean \"RINGFOLD_HEARTBEAT\"?",
                "unknown variable RINGFOLD_ZZZ, which is ignored"
            ]
        );
    }

    #[test]
    fn variables_of_kubernetes_are_not_reported_and_none_of_ours_looks_like_one() {
        let made = [
            "RINGFOLD_PORT",
            "RINGFOLD_PORT_48148_TCP",
            "RINGFOLD_PORT_48148_TCP_ADDR",
            "RINGFOLD_SERVICE_HOST",
            "RINGFOLD_SERVICE_PORT",
            "RINGFOLD_SERVICE_PORT_HTTP",
            "RINGFOLD_MASTER_SERVICE_HOST",
            "RINGFOLD_MASTER_SERVICE_PORT",
            "RINGFOLD_MASTER_SERVICE_PORT_METRICS",
            "RINGFOLD_MASTER_PORT",
            "RINGFOLD_MASTER_PORT_48148_TCP",
            "RINGFOLD_MASTER_PORT_48148_UDP_PROTO",
        ];
        for name in made {
            assert!(is_of_kubernetes(name) && !is_known(name), "{name}");
        }
        assert!(warnings(made.into_iter().map(Into::into)).is_empty());
        let settings = table::ALL.iter().flat_map(|setting| setting.variables());
        for name in settings.chain([CONFIG_VARIABLE]).chain(OTHERS) {
            assert!(!is_of_kubernetes(name), "{name} may be made by Kubernetes");
        }
    }
}
