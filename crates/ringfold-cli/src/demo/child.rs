//! A process that the demo has started, and that ends with it.

use super::event::Line;
use crate::invocation::Invocation;
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child as Process, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// What a peer is called: a letter.
pub(crate) type Name = char;

/// No line of a child is longer.
const LINE_BYTES_MAX: u64 = 4096;
/// How long a child may take to end by itself.
const END_MAX: Duration = Duration::from_secs(5);

/// What the parent waits for.
#[derive(Debug)]
pub(crate) enum Message {
    /// A child said something.
    Said(Name, Line),
    /// A child's output ended, for this reason if it is a strange one.
    Silent(Name, Option<String>),
    /// The user, or the system, wants the demo to end.
    Signal,
}

/// Dropping it kills the process and waits for it.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    /// The child ends when this is closed: so it ends with us even if we are killed.
    stdin: Option<ChildStdin>,
    ended: Option<ExitStatus>,
}

impl Child {
    /// Runs this very command with other arguments.
    pub(crate) fn spawn<S: AsRef<OsStr>>(again: &Invocation, arguments: &[S]) -> Result<(Self, ChildStdout)> {
        let mut command = again.command()?;
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A death is news to the parent, which tells of it, and not to the log of each survivor as well.
        if [ringfold_bindings::log::RINGFOLD_LOG, ringfold_bindings::log::PCCL_LOG_LEVEL]
            .iter()
            .all(|v| std::env::var_os(v).is_none())
        {
            command.env(ringfold_bindings::log::RINGFOLD_LOG, "error");
        }
        // Ctrl-C goes to the whole group of the terminal; only the parent shall take it as its own.
        let mut process = command.process_group(0).spawn().context("can't start a process")?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take();
        let child = Self { process, stdin, ended: None };
        Ok((child, stdout.context("a process without output")?))
    }

    /// SIGKILL: it has no chance to say goodbye.
    pub(crate) fn kill(&mut self) {
        if self.ended.is_none() {
            // An error means that it is dead already.
            let _ = self.process.kill();
            self.ended = self.process.wait().ok();
        }
    }

    /// Asks it to end, and kills it if it does not.
    pub(crate) fn end(&mut self) -> Option<ExitStatus> {
        self.stdin = None;
        self.exit_status()
    }

    /// How it ended. It is killed if it does not within a few seconds.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        let begin = Instant::now();
        while self.ended.is_none() && begin.elapsed() < END_MAX {
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

/// Passes on what a peer says, from a thread of its own, until it says no more.
pub(crate) fn listen(name: Name, stdout: ChildStdout, to: Sender<Message>) -> Result<()> {
    let passing_on = move || {
        let mut stdout = BufReader::new(stdout);
        let trouble = loop {
            match next_line(&mut stdout) {
                Ok(None) => break None,
                Ok(Some(text)) => match text.parse() {
                    Ok(line) => {
                        if to.send(Message::Said(name, line)).is_err() {
                            return;
                        }
                    }
                    Err(why) => break Some(why),
                },
                Err(error) => break Some(error.to_string()),
            }
        };
        // If nobody listens any more the demo is over.
        let _ = to.send(Message::Silent(name, trouble));
    };
    std::thread::Builder::new().name(format!("peer-{name}")).spawn(passing_on)?;
    Ok(())
}

/// The next line of a child, which is never a very long one. What is cut off by the child's death is none.
pub(crate) fn next_line(stdout: &mut BufReader<ChildStdout>) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    stdout.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(text) => Ok(Some(text.to_owned())),
        None if (line.len() as u64) < LINE_BYTES_MAX => Ok(None),
        None => Err(std::io::Error::other("a line without an end")),
    }
}
