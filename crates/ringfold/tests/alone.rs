//! Tests that need a process of their own: they count descriptors and threads, or set what a process has only once.

use std::process::Command;

/// Whether this process runs this test alone. If it does not, the test has been run in such a process, and passed.
pub fn is_alone(test: &str) -> bool {
    const MARK: &str = "RINGFOLD_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let alone = Command::new(program).args(["--exact", test, "--nocapture"]).env(MARK, "1").output().unwrap();
    let said = [alone.stdout, alone.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(alone.status.success() && said.contains("1 passed"), "{test}: {}\n{said}", alone.status);
    false
}
