//! How a test says that the machine lacks what it needs.

use std::fs::OpenOptions;
use std::io::Write;

/// The variable that names the file where skipped tests are listed, besides the line on standard error.
pub const SKIPS_VARIABLE: &str = "RINGFOLD_SKIPS";

/// Whether the test may run. If not, its name and what is lacking have been told.
///
/// ```no_run
/// # fn available() -> Result<(), String> { Err("network namespaces".into()) }
/// if !ringfold_lab::skip::unless("a_cut_is_noticed", available()) {
///     return;
/// }
/// # unreachable!();
/// ```
#[must_use]
pub fn unless(test: &str, available: Result<(), String>) -> bool {
    match available {
        Ok(()) => true,
        Err(lacking) => {
            tell(test, &lacking);
            false
        }
    }
}

/// Tells that a test was skipped, and what was lacking.
pub fn tell(test: &str, lacking: &str) {
    let line = format!("skipped: {test}: {}\n", lacking.trim().replace('\n', "; "));
    // Past the capture of the test harness: a skip must be seen when all tests pass.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(SKIPS_VARIABLE) {
        // One write of one line in append mode: tests of several processes do not mix theirs.
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
