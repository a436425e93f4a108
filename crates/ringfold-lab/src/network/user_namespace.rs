//! Networks without root: the program runs again as the root of a user namespace.

use rustix::process::geteuid;
use std::process::Command;

/// Set in the program that runs again.
const MARK: &str = "RINGFOLD_LAB_USER_NAMESPACE";
/// Namespaces are files below /run, which belongs to another user.
const ENTER: &str = "mount -t tmpfs tmpfs /run && exec \"$@\"";

/// If this process may not create networks, runs it again in a user namespace and returns the exit code.
///
/// `None` if this process is root, or runs in such a namespace already. The error is what the machine lacks.
pub fn in_user_namespace() -> Result<Option<i32>, String> {
    if geteuid().is_root() || std::env::var_os(MARK).is_some() {
        return Ok(None);
    }
    let lacks = |why: String| format!("cannot emulate a network: this needs root, or user namespaces: {why}");
    let trial =
        Command::new("unshare").args(["--user", "--map-root-user", "--mount", "--net", "true"]).output();
    let trial = trial.map_err(|error| lacks(format!("unshare: {error}")))?;
    if !trial.status.success() {
        return Err(lacks(String::from_utf8_lossy(&trial.stderr).trim().to_owned()));
    }
    let program = std::env::current_exe().map_err(|error| lacks(error.to_string()))?;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--net", "--kill-child", "--fork"]);
    command.args(["sh", "-c", ENTER, "sh"]).arg(program).args(std::env::args_os().skip(1));
    let status = command.env(MARK, "1").status().map_err(|error| lacks(format!("unshare: {error}")))?;
    Ok(Some(status.code().unwrap_or(1)))
}
