//! A child process whose output is read line by line.

use crate::usage::Usage;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Lines kept per stream; older ones are dropped.
const LINES_MAX: usize = 100_000;
/// Longer lines are split.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Lines of each stream that an error quotes.
const QUOTED_LINES: usize = 30;
/// How long a killed process may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to read the output of an ended process; a grandchild may keep the pipe open.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A running program. Dropping it kills the process.
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Arc<OutputStream>,
    stderr: Arc<OutputStream>,
    /// The number of the first line of standard output that no wait has consumed.
    next: u64,
    exit: Option<ExitStatus>,
}

impl Process {
    /// Starts a program. The name appears in errors.
    pub fn spawn(name: impl Into<String>, mut command: Command) -> io::Result<Self> {
        let name = name.into();
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let (stdout, stderr) = (Arc::new(OutputStream::default()), Arc::new(OutputStream::default()));
        let out = child.stdout.take().map(|pipe| collect(&name, pipe, &stdout));
        let err = child.stderr.take().map(|pipe| collect(&name, pipe, &stderr));
        let process = Self { name, child, stdin, stdout, stderr, next: 0, exit: None };
        for collector in [out, err].into_iter().flatten() {
            collector?;
        }
        Ok(process)
    }

    /// The name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input.
    pub fn send(&mut self, line: &str) -> Result<(), ProcessError> {
        let written = match &mut self.stdin {
            Some(stdin) => writeln!(stdin, "{line}").and_then(|()| stdin.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        written.map_err(|error| self.error(format!("cannot be sent {line:?}: {error}")))
    }

    /// Closes its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits for the next line of standard output that contains the text. It consumes all lines up to that one.
    pub fn wait_for_line(&mut self, text: &str, timeout: Duration) -> Result<String, ProcessError> {
        self.wait_for(&format!("a line with {text:?}"), timeout, |line| line.contains(text))
    }

    /// Waits for the next line of standard output that matches. It consumes all lines up to that one.
    pub fn wait_for(
        &mut self,
        what: &str,
        timeout: Duration,
        fits: impl Fn(&str) -> bool,
    ) -> Result<String, ProcessError> {
        let deadline = Instant::now() + timeout;
        let mut lines = lock(&self.stdout.lines);
        loop {
            let skip = self.next.saturating_sub(lines.dropped) as usize;
            let found = lines.kept.iter().enumerate().skip(skip).find(|(_, line)| fits(line));
            if let Some((index, line)) = found {
                self.next = lines.dropped + index as u64 + 1;
                return Ok(line.clone());
            }
            self.next = lines.dropped + lines.kept.len() as u64;
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.ended || left.is_zero() {
                let ended = lines.ended;
                drop(lines);
                let why =
                    if ended { "its output ended".into() } else { format!("timed out after {timeout:?}") };
                return Err(self.error(format!("did not print {what}: {why}")));
            }
            lines = self.stdout.changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Consumes and returns the available lines of standard output.
    pub fn take_lines(&mut self) -> Vec<String> {
        let lines = lock(&self.stdout.lines);
        let skip = self.next.saturating_sub(lines.dropped) as usize;
        self.next = lines.dropped + lines.kept.len() as u64;
        lines.kept.iter().skip(skip).cloned().collect()
    }

    /// The lines of standard output so far.
    pub fn lines(&self) -> Vec<String> {
        lock(&self.stdout.lines).kept.iter().cloned().collect()
    }

    /// The lines of standard error so far.
    pub fn error_lines(&self) -> Vec<String> {
        lock(&self.stderr.lines).kept.iter().cloned().collect()
    }

    /// Sends SIGKILL and waits for its end.
    pub fn kill9(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::KILL)?;
        self.wait_exit(KILL_TIMEOUT).map(drop)
    }

    /// Stops it (SIGSTOP). Its sockets stay open.
    pub fn stop(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::STOP)
    }

    /// Continues it after a stop.
    pub fn cont(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::CONT)
    }

    /// Sends SIGTERM.
    pub fn terminate(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::TERM)
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.poll_exit().is_none()
    }

    /// Waits until it ends by itself.
    pub fn wait_exit(&mut self, timeout: Duration) -> Result<ExitStatus, ProcessError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.poll_exit() {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(self.error(format!("did not end within {timeout:?}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The resources it uses now.
    pub fn usage(&self) -> io::Result<Usage> {
        Usage::of(self.pid())
    }

    /// An error about this process, with its last output.
    pub fn error(&self, what: impl Into<String>) -> ProcessError {
        let mut text = format!("{} (process {}) {}", self.name, self.pid(), what.into());
        if let Some(status) = self.exit {
            text += &format!("; it has ended: {status}");
        }
        let streams = [("standard output", &self.stdout), ("standard error", &self.stderr)];
        // Output of an ended process may still be in its pipes.
        let ends = self.exit.is_some() || streams.iter().any(|(_, stream)| lock(&stream.lines).ended);
        for (title, stream) in streams {
            let mut lines = lock(&stream.lines);
            if ends && !lines.ended {
                let is_unread = |lines: &mut OutputLines| !lines.ended;
                let read = stream.changed.wait_timeout_while(lines, DRAIN_TIMEOUT, is_unread);
                lines = read.unwrap_or_else(PoisonError::into_inner).0;
            }
            text += &format!("\n  last lines of its {title}:");
            for line in lines.kept.iter().skip(lines.kept.len().saturating_sub(QUOTED_LINES)) {
                text += &format!("\n    {line}");
            }
        }
        ProcessError(text)
    }

    fn signal(&mut self, signal: Signal) -> Result<(), ProcessError> {
        // The id of an ended process may have been reused.
        if self.poll_exit().is_some() {
            return Err(self.error(format!("cannot be sent {signal:?}")));
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let sent = pid.map_or(Err(rustix::io::Errno::SRCH), |pid| kill_process(pid, signal));
        sent.map_err(|error| self.error(format!("cannot be sent {signal:?}: {error}")))
    }

    fn poll_exit(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            self.exit = self.child.try_wait().ok().flatten();
        }
        self.exit
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The output of another process often shows why a test failed.
        if thread::panicking() {
            eprintln!("{}", self.error("was part of a failed test"));
        }
        if self.poll_exit().is_none() && self.kill9().is_err() {
            eprintln!("{} (process {}) cannot be killed", self.name, self.pid());
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("name", &self.name).field("pid", &self.pid()).finish_non_exhaustive()
    }
}

/// An error about a process, with its last output.
#[derive(Clone)]
pub struct ProcessError(String);

impl ProcessError {
    /// An error without a process.
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ProcessError {
    /// Like `Display`, so that `expect` prints it readably.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProcessError {}

/// The lines of one pipe.
#[derive(Default)]
struct OutputStream {
    lines: Mutex<OutputLines>,
    changed: Condvar,
}

#[derive(Default)]
struct OutputLines {
    kept: VecDeque<String>,
    /// The number of lines that are not kept any more.
    dropped: u64,
    ended: bool,
}

/// Starts the thread that reads a pipe. It is not joined: a grandchild may keep the pipe open.
fn collect(name: &str, pipe: impl Read + Send + 'static, stream: &Arc<OutputStream>) -> io::Result<()> {
    let stream = Arc::clone(stream);
    let body = move || {
        let mut reader = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while let Ok(1..) = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes) {
            let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            bytes.clear();
            let mut lines = lock(&stream.lines);
            if lines.kept.len() == LINES_MAX {
                lines.kept.pop_front();
                lines.dropped += 1;
            }
            lines.kept.push_back(line);
            stream.changed.notify_all();
        }
        lock(&stream.lines).ended = true;
        stream.changed.notify_all();
    };
    thread::Builder::new().name(format!("lines of {name}")).spawn(body).map(drop)
}

/// Locks also after a panic, so that a failed test can clean up.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::is_alive;

    const SOON: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::spawn("shell", command).expect("a shell")
    }

    #[test]
    fn lines_are_consumed_in_order() {
        let mut process = shell("echo one; echo two; read x; echo got $x; echo oops >&2; exit 3");
        assert_eq!(process.wait_for_line("o", SOON).expect("line"), "one");
        assert_eq!(process.wait_for_line("o", SOON).expect("line"), "two");
        let error = process.wait_for_line("got", Duration::from_millis(50)).expect_err("nothing yet");
        assert!(error.to_string().contains("did not print a line with \"got\""), "{error}");
        process.send("it").expect("send");
        assert_eq!(process.wait_for_line("got", SOON).expect("line"), "got it");
        assert_eq!(process.wait_exit(SOON).expect("exit").code(), Some(3));
        assert_eq!(process.lines(), ["one", "two", "got it"]);
        let error = process.wait_for_line("more", SOON).expect_err("its output ended").to_string();
        assert!(error.contains("its output ended") && error.contains("oops"), "{error}");
    }

    #[test]
    fn a_stopped_process_does_nothing_until_it_is_continued() {
        let mut process = shell("while read x; do echo $x; done");
        process.stop().expect("stop");
        process.send("a").expect("send");
        process.wait_for_line("a", Duration::from_millis(100)).expect_err("stopped");
        process.cont().expect("cont");
        process.wait_for_line("a", SOON).expect("goes on");
        process.terminate().expect("terminate");
        assert!(!process.wait_exit(SOON).expect("exit").success());
        process.kill9().expect_err("it is gone");
    }

    #[test]
    fn a_dropped_process_is_killed_even_if_stopped() {
        let mut process = shell("echo up; exec sleep 1000");
        let pid = process.pid();
        process.wait_for_line("up", SOON).expect("up");
        process.stop().expect("stop");
        drop(process);
        assert!(!is_alive(pid));
    }
}
