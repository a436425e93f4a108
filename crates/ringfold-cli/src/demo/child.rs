//! A child process of the demo, which ends with the demo.

use super::event::TimedEvent;
use crate::invocation::Invocation;
use anyhow::{Context, Result};
use ringfold::settings::{Settings, table};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child as Process, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The name of a peer.
pub(crate) type PeerLetter = char;

const LINE_BYTES_MAX: u64 = 4096;
/// How long a child may take to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A message to the main thread of the demo.
#[derive(Debug)]
pub(crate) enum ParentMessage {
    Event(PeerLetter, TimedEvent),
    /// The output of a peer has ended; with the error, if it was one.
    Closed(PeerLetter, Option<String>),
    /// SIGINT or SIGTERM.
    Signal,
}

/// A child process. Dropping it kills the process and waits for its end.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    /// The child ends when this is closed, also because the parent was killed.
    stdin: Option<ChildStdin>,
    ended: Option<ExitStatus>,
}

impl Child {
    /// Starts this program with other arguments.
    pub(crate) fn spawn<S: AsRef<OsStr>>(
        invocation: &Invocation,
        arguments: &[S],
    ) -> Result<(Self, ChildStdout)> {
        let mut command = invocation.command()?;
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // The parent reports the death; the survivors need not log it too.
        if !Settings::without_builder()?.is_set(&table::LOG) {
            command.env(table::LOG.variable, "error");
        }
        // In its own process group, so that Ctrl-C reaches only the parent.
        let mut process = command.process_group(0).spawn().context("cannot start a process")?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take();
        let child = Self { process, stdin, ended: None };
        Ok((child, stdout.context("the process has no standard output")?))
    }

    /// The id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGKILL and waits for the end.
    pub(crate) fn kill(&mut self) {
        if self.ended.is_none() {
            // An error means that it has ended.
            let _ = self.process.kill();
            self.ended = self.process.wait().ok();
        }
    }

    /// Closes its standard input and waits for the end.
    pub(crate) fn end(&mut self) -> Option<ExitStatus> {
        self.stdin = None;
        self.exit_status()
    }

    /// Waits for the end of the process, and kills it after a timeout.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        let begin = Instant::now();
        while self.ended.is_none() && begin.elapsed() < END_TIMEOUT {
            match self.process.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(ended) => self.ended = ended,
                Err(_) => break,
            }
        }
        self.kill();
        self.ended
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a thread that forwards the events of a peer until its output ends.
pub(crate) fn forward_events(name: PeerLetter, stdout: ChildStdout, to: Sender<ParentMessage>) -> Result<()> {
    let forward = move || {
        let mut stdout = BufReader::new(stdout);
        let error = loop {
            match next_line(&mut stdout) {
                Ok(None) => break None,
                Ok(Some(text)) => match serde_json::from_str(&text) {
                    Ok(event) => {
                        if to.send(ParentMessage::Event(name, event)).is_err() {
                            return;
                        }
                    }
                    Err(error) => break Some(format!("invalid event {text:?}: {error}")),
                },
                Err(error) => break Some(error.to_string()),
            }
        };
        // An error means that the demo is over.
        let _ = to.send(ParentMessage::Closed(name, error));
    };
    std::thread::Builder::new().name(format!("peer-{name}")).spawn(forward)?;
    Ok(())
}

/// The next complete line of a child; none at the end of its output.
pub(crate) fn next_line(stdout: &mut BufReader<ChildStdout>) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    stdout.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(text) => Ok(Some(text.to_owned())),
        None if (line.len() as u64) < LINE_BYTES_MAX => Ok(None),
        None => Err(std::io::Error::other(format!("line longer than {LINE_BYTES_MAX} bytes"))),
    }
}
