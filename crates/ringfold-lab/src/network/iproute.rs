//! The command `ip`, and network namespaces.

use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The directory of `ip netns`.
pub(super) const DIRECTORY: &str = "/run/netns";
/// How long killed processes may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A network namespace. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn make(name: String) -> Result<Self, String> {
        let mut last = String::new();
        // The first one on a machine creates the directory; two at once may fail.
        for _ in 0..3 {
            match run(Command::new("ip").args(["netns", "add", &name]), "") {
                Ok(_) => return Ok(Self { name }),
                Err(error) => last = error,
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err(format!("network namespaces: {last}"))
    }

    /// The file that refers to it.
    pub fn path(&self) -> String {
        format!("{DIRECTORY}/{}", self.name)
    }

    fn processes(&self) -> Vec<Pid> {
        let listed = run(Command::new("ip").args(["netns", "pids", &self.name]), "");
        let text =
            listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }
}

impl Drop for Namespace {
    /// Kills the processes in the namespace first, which would keep it alive.
    fn drop(&mut self) {
        let deadline = Instant::now() + KILL_TIMEOUT;
        loop {
            let processes = self.processes();
            if processes.is_empty() || Instant::now() >= deadline {
                break;
            }
            for pid in processes {
                let _ = kill_process(pid, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(5));
        }
        // Another process may have removed it, while cleaning up.
        let _ = run(Command::new("ip").args(["netns", "del", &self.name]), "");
    }
}

/// Runs commands of `ip`, one per line, in a namespace.
pub(super) fn ip(namespace: &Namespace, script: &str) -> Result<(), String> {
    if script.is_empty() {
        return Ok(());
    }
    run(Command::new("ip").args(["-n", &namespace.name, "-batch", "-"]), script).map(drop)
}

/// Runs a command to its end. The error is its standard error.
fn run(command: &mut Command, input: &str) -> Result<Output, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| format!("{program}: {error}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // Input and output are short, so the pipes do not block.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return written.map(|()| output).map_err(failed);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}", stderr.trim().replace('\n', "; ")))
}
