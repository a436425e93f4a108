//! Processes of a test. They end with the test, and every wait has a deadline.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Ten times and more what a test takes, for busy machines.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub const RINGFOLD: &str = env!("CARGO_BIN_EXE_ringfold");
pub const CCOIP_MASTER: &str = env!("CARGO_BIN_EXE_ccoip_master");

/// A command without the log settings of the user.
pub fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    for variable in ["RINGFOLD_LOG", "PCCL_LOG_LEVEL", "RINGFOLD_LOG_FORMAT", "RINGFOLD_FLIGHT_DIR"] {
        command.env_remove(variable);
    }
    command
}

/// Runs a short command to its end.
pub fn output(program: &str, arguments: &[&str]) -> Output {
    command(program, arguments).output().unwrap()
}

/// A process that is killed at the end of the test, and the lines of its output.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        Self::spawn(&mut command(program, arguments))
    }

    /// Starts a command.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let stdout: BufReader<ChildStdout> = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    /// The next line that contains this.
    pub fn line_with(&self, text: &str) -> String {
        let mut seen = Vec::new();
        let begin = Instant::now();
        loop {
            match self.lines.recv_timeout(DEADLINE.saturating_sub(begin.elapsed())) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with {text:?} ({error}), only:\n{}", seen.join("\n")),
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the end; returns the status and the standard error.
    pub fn end(&mut self) -> (ExitStatus, String) {
        let status = eventually("the end of the process", || self.child.try_wait().unwrap());
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (status, stderr)
    }

    /// Whether one of its threads has this name.
    pub fn has_thread(&self, name: &str) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid().as_raw_nonzero())).unwrap();
        let names =
            threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.map(|line| line.trim_end().to_owned()).any(|found| found == name)
    }

    /// Its living child processes.
    pub fn children(&self) -> Vec<i32> {
        let processes = std::fs::read_dir("/proc").unwrap();
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| stat(*pid).is_some_and(|(_, parent)| parent == self.pid().as_raw_nonzero().get()))
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the process exists and is no zombie.
pub fn lives(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// The state and the parent of a process.
fn stat(pid: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself contain some.
    let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Polls until there is a value.
pub fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(begin.elapsed() < DEADLINE, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
