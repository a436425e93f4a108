//! Reports tests that the machine cannot run.

use std::fs::OpenOptions;
use std::io::Write;

/// The variable with the path of the list of skipped tests.
pub const SKIPS_VARIABLE: &str = "RINGFOLD_SKIPS";

/// Whether the test can run. If not, reports the test and what is missing.
///
/// ```no_run
/// # fn available() -> Result<(), String> { Err("network namespaces".into()) }
/// if !ringfold_lab::skip::check("a_cut_is_detected", available()) {
///     return;
/// }
/// # unreachable!();
/// ```
#[must_use]
pub fn check(test: &str, available: Result<(), String>) -> bool {
    match available {
        Ok(()) => true,
        Err(missing) => {
            report(test, &missing);
            false
        }
    }
}

/// Reports a skipped test and what is missing.
pub fn report(test: &str, missing: &str) {
    let line = format!("skipped: {test}: {}\n", missing.trim().replace('\n', "; "));
    // `write_all` bypasses the capture of the test harness, so that a skip is visible when all tests pass.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(SKIPS_VARIABLE) {
        // One write in append mode: lines of several processes do not mix.
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
