//! Tests that need their own process: they count descriptors and threads, or set process-wide state.

use std::process::Command;

/// Whether this process runs only this test. If not, runs the test in a new process, and checks that it passed.
pub fn is_own_process(test: &str) -> bool {
    const MARK: &str = "RINGFOLD_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program).args(["--exact", test, "--nocapture"]).env(MARK, "1").output().unwrap();
    let output = [child.stdout, child.stderr].concat();
    let output = String::from_utf8_lossy(&output);
    assert!(child.status.success() && output.contains("1 passed"), "{test}: {}\n{output}", child.status);
    false
}
