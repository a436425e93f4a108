//! A program that is watched, talked to, and ended.

use crate::usage::Usage;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Lines of one stream that are kept; older ones are forgotten.
const LINES_MAX: usize = 100_000;
/// Bytes of one line; a longer one is split.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Lines of each stream that a problem quotes.
const QUOTED_LINES: usize = 30;
/// How long a process may take to be gone after it was killed.
const KILL_MAX: Duration = Duration::from_secs(10);
/// How long the last output of a process that has ended may take to be read; a grandchild may keep the pipe open.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);
/// How often a process that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// A running program. Its output is collected line by line; it is killed when this is dropped.
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Arc<Stream>,
    stderr: Arc<Stream>,
    /// The number of the first line of standard output that was not yet waited for.
    next: u64,
    exit: Option<ExitStatus>,
}

impl Process {
    /// Starts a program. The name is for messages.
    pub fn spawn(name: impl Into<String>, mut command: Command) -> io::Result<Self> {
        let name = name.into();
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let (stdout, stderr) = (Arc::new(Stream::default()), Arc::new(Stream::default()));
        let out = child.stdout.take().map(|pipe| collect(&name, pipe, &stdout));
        let err = child.stderr.take().map(|pipe| collect(&name, pipe, &stderr));
        let process = Self { name, child, stdin, stdout, stderr, next: 0, exit: None };
        for collector in [out, err].into_iter().flatten() {
            collector?;
        }
        Ok(process)
    }

    /// The name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input.
    pub fn send(&mut self, line: &str) -> Result<(), Problem> {
        let written = match &mut self.stdin {
            Some(stdin) => writeln!(stdin, "{line}").and_then(|()| stdin.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        written.map_err(|error| self.problem(format!("can't be sent {line:?}: {error}")))
    }

    /// Ends its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits for a line of standard output that contains the text, behind the last one that was waited for.
    pub fn wait_for_line(&mut self, text: &str, within: Duration) -> Result<String, Problem> {
        self.wait_for(&format!("a line with {text:?}"), within, |line| line.contains(text))
    }

    /// Waits for a line of standard output that fits, behind the last one that was waited for.
    pub fn wait_for(
        &mut self,
        what: &str,
        within: Duration,
        fits: impl Fn(&str) -> bool,
    ) -> Result<String, Problem> {
        let deadline = Instant::now() + within;
        let mut lines = lock(&self.stdout.lines);
        loop {
            let skip = self.next.saturating_sub(lines.forgotten) as usize;
            let found = lines.kept.iter().enumerate().skip(skip).find(|(_, line)| fits(line));
            if let Some((index, line)) = found {
                self.next = lines.forgotten + index as u64 + 1;
                return Ok(line.clone());
            }
            // What was looked at need not be looked at again.
            self.next = lines.forgotten + lines.kept.len() as u64;
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.ended || left.is_zero() {
                let ended = lines.ended;
                drop(lines);
                let why = if ended { "its output ended".into() } else { format!("within {within:?}") };
                return Err(self.problem(format!("did not print {what}: {why}")));
            }
            lines = self.stdout.changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The lines of standard output behind the last one that was waited for or taken, as far as they are there.
    pub fn take_lines(&mut self) -> Vec<String> {
        let lines = lock(&self.stdout.lines);
        let skip = self.next.saturating_sub(lines.forgotten) as usize;
        self.next = lines.forgotten + lines.kept.len() as u64;
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

    /// Kills it with no chance to say goodbye, and waits until it is gone.
    pub fn kill9(&mut self) -> Result<(), Problem> {
        self.signal(Signal::KILL)?;
        self.wait_exit(KILL_MAX).map(drop)
    }

    /// Stops it: it does nothing, but its sockets stay open.
    pub fn stop(&mut self) -> Result<(), Problem> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after a stop.
    pub fn cont(&mut self) -> Result<(), Problem> {
        self.signal(Signal::CONT)
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&mut self) -> Result<(), Problem> {
        self.signal(Signal::TERM)
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.look().is_none()
    }

    /// Waits until it ended by itself.
    pub fn wait_exit(&mut self, within: Duration) -> Result<ExitStatus, Problem> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.look() {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(self.problem(format!("did not end within {within:?}")));
            }
            thread::sleep(LOOK);
        }
    }

    /// What it holds now.
    pub fn usage(&self) -> io::Result<Usage> {
        Usage::of(self.pid())
    }

    /// Something is wrong with this process: the text, and what it printed last.
    pub fn problem(&self, what: impl Into<String>) -> Problem {
        let mut text = format!("{} (process {}) {}", self.name, self.pid(), what.into());
        if let Some(status) = self.exit {
            text += &format!("; it has ended: {status}");
        }
        let streams = [("standard output", &self.stdout), ("standard error", &self.stderr)];
        // One that ends has left something in its pipes, which is being read.
        let ends = self.exit.is_some() || streams.iter().any(|(_, stream)| lock(&stream.lines).ended);
        for (title, stream) in streams {
            let mut lines = lock(&stream.lines);
            if ends && !lines.ended {
                let is_unread = |lines: &mut Lines| !lines.ended;
                let read = stream.changed.wait_timeout_while(lines, LAST_WORDS_MAX, is_unread);
                lines = read.unwrap_or_else(PoisonError::into_inner).0;
            }
            text += &format!("\n  last lines of its {title}:");
            for line in lines.kept.iter().skip(lines.kept.len().saturating_sub(QUOTED_LINES)) {
                text += &format!("\n    {line}");
            }
        }
        Problem(text)
    }

    fn signal(&mut self, signal: Signal) -> Result<(), Problem> {
        // Once it was waited for, its number may be another's.
        if self.look().is_some() {
            return Err(self.problem(format!("can't be sent {signal:?}")));
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let sent = pid.map_or(Err(rustix::io::Errno::SRCH), |pid| kill_process(pid, signal));
        sent.map_err(|error| self.problem(format!("can't be sent {signal:?}: {error}")))
    }

    fn look(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            self.exit = self.child.try_wait().ok().flatten();
        }
        self.exit
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.look().is_none() && self.kill9().is_err() {
            eprintln!("{} (process {}) can't be killed", self.name, self.pid());
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("name", &self.name).field("pid", &self.pid()).finish_non_exhaustive()
    }
}

/// What is wrong with a process, with what it printed last.
#[derive(Clone)]
pub struct Problem(String);

impl Problem {
    /// One without a process.
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Problem {
    /// As it is displayed, so that `expect` shows it readable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Problem {}

/// The lines of one pipe.
#[derive(Default)]
struct Stream {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<String>,
    forgotten: u64,
    ended: bool,
}

/// Starts the thread that reads a pipe. It ends with the pipe, and nobody waits for it: a grandchild may keep the
/// pipe open for longer than the process lives.
fn collect(name: &str, pipe: impl Read + Send + 'static, stream: &Arc<Stream>) -> io::Result<()> {
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
                lines.forgotten += 1;
            }
            lines.kept.push_back(line);
            stream.changed.notify_all();
        }
        lock(&stream.lines).ended = true;
        stream.changed.notify_all();
    };
    thread::Builder::new().name(format!("lines of {name}")).spawn(body).map(drop)
}

/// A panicking test must still be able to clean up.
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
    fn lines_are_waited_for_in_their_order() {
        let mut process = shell("echo one; echo two; read x; echo got $x; echo oops >&2; exit 3");
        assert_eq!(process.wait_for_line("o", SOON).expect("line"), "one");
        assert_eq!(process.wait_for_line("o", SOON).expect("line"), "two");
        let problem = process.wait_for_line("got", Duration::from_millis(50)).expect_err("nothing yet");
        assert!(problem.to_string().contains("did not print a line with \"got\""), "{problem}");
        process.send("it").expect("send");
        assert_eq!(process.wait_for_line("got", SOON).expect("line"), "got it");
        assert_eq!(process.wait_exit(SOON).expect("exit").code(), Some(3));
        assert_eq!(process.lines(), ["one", "two", "got it"]);
        let problem = process.wait_for_line("more", SOON).expect_err("its output ended").to_string();
        assert!(problem.contains("its output ended") && problem.contains("oops"), "{problem}");
    }

    #[test]
    fn a_stopped_process_does_nothing_until_it_goes_on() {
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
