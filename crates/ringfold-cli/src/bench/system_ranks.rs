//! The rank processes of one system: sends them commands, waits for replies, ends them.

use super::interrupt::{Interrupt, Interrupted};
use super::point::Point;
use super::rank_protocol::{CallCost, RankCommand, RankHello, RankReply};
use super::scratch_dir::ScratchDir;
use super::statistics::Batch;
use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The timeout for starting the processes and joining the group. Importing torch takes seconds.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The timeout of a command, in addition to the timed calls.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a process may take to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a wait checks for an interrupt.
const INTERRUPT_POLL: Duration = Duration::from_millis(100);
const LINE_BYTES_MAX: usize = 64 * 1024;
/// The part of the processes' output that an error quotes.
const QUOTED_BYTES_MAX: usize = 2000;

/// The ranks of one system. Dropping it ends the processes.
#[derive(Debug)]
pub(crate) struct SystemRanks {
    /// The name and version of the system.
    pub(crate) about: String,
    connections: Vec<RankConnection>,
    processes: Processes,
    interrupt: Interrupt,
}

/// Whether the ranks can measure a point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Readiness {
    /// They can; with the result of the check.
    Ready(Option<String>),
    /// The system does not support the point, for this reason.
    Unsupported(String),
}

impl SystemRanks {
    /// Starts the processes that `commands` returns for a socket, and waits until all ranks have joined.
    pub(crate) fn start(
        scratch: &ScratchDir,
        world: usize,
        interrupt: &Interrupt,
        commands: impl FnOnce(&Path) -> Result<Vec<Command>>,
    ) -> Result<Self> {
        let socket = scratch.path("commands");
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        listener.set_nonblocking(true)?;
        let mut processes = Processes { children: Vec::new(), log: scratch.path("log") };
        let log = File::create(&processes.log).context("cannot create a log")?;
        for mut command in commands(&socket)? {
            // In its own process group, so that Ctrl-C reaches only the parent.
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).process_group(0);
            let program = command.get_program().to_owned();
            let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
            processes.children.push(child);
        }
        let deadline = Instant::now() + START_TIMEOUT;
        let mut connections: Vec<Option<RankConnection>> = (0..world).map(|_| None).collect();
        let mut about = String::new();
        while connections.iter().any(Option::is_none) {
            interrupt.check()?;
            match listener.accept() {
                Ok((stream, _)) => {
                    let mut connection = RankConnection::new(stream)?;
                    let text =
                        connection.read(deadline, interrupt).map_err(|error| processes.explain(error))?;
                    let hello: RankHello = serde_json::from_str(&text).context("invalid hello of a rank")?;
                    *connections.get_mut(hello.rank).context("invalid rank in a hello")? = Some(connection);
                    about = hello.about;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() > deadline {
                        let why = anyhow!("timed out after {START_TIMEOUT:?} waiting for the ranks to start");
                        return Err(processes.explain(why));
                    }
                    processes.check_alive()?;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error).context("cannot accept a rank"),
            }
        }
        let connections = connections.into_iter().flatten().collect();
        let mut ranks = Self { about, connections, processes, interrupt: interrupt.clone() };
        for reply in ranks.replies(START_TIMEOUT)? {
            match reply {
                RankReply::Joined { note: Some(note), .. } if !ranks.about.contains(&note) => {
                    ranks.about = format!("{}, {note}", ranks.about);
                }
                RankReply::Joined { .. } => {}
                other => bail!("unexpected reply to the start: {other:?}"),
            }
        }
        Ok(ranks)
    }

    /// Allocates buffers of this size on all ranks.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<()> {
        self.execute(RankCommand::Reserve { bytes }, COMMAND_TIMEOUT).map(drop)
    }

    /// Prepares a point on all ranks.
    pub(crate) fn prepare(&mut self, point: Point, check: bool) -> Result<Readiness> {
        let replies = self.execute(RankCommand::Prepare { point, check }, COMMAND_TIMEOUT)?;
        let mut found = None;
        for reply in replies {
            match reply {
                RankReply::Unsupported { unsupported } => return Ok(Readiness::Unsupported(unsupported)),
                // The first error of any rank counts.
                RankReply::Ready { check: Some(check), .. } => match found {
                    Some(ref wrong) if wrong != "ok" => {}
                    _ => found = Some(check),
                },
                RankReply::Ready { check: None, .. } => {}
                other => bail!("unexpected reply to prepare: {other:?}"),
            }
        }
        Ok(Readiness::Ready(found))
    }

    /// The plan of the prepared point, on rank 0.
    pub(crate) fn explain(&mut self) -> Result<String> {
        match self.execute(RankCommand::Explain, COMMAND_TIMEOUT)?.into_iter().next() {
            Some(RankReply::Explained { plan }) => Ok(plan),
            other => bail!("unexpected reply to explain: {other:?}"),
        }
    }

    /// Times a batch of calls that is expected to take about `expected`.
    pub(crate) fn time(&mut self, lead: u64, calls: u64, expected: Duration) -> Result<Batch> {
        let timeout = COMMAND_TIMEOUT + expected.saturating_mul(20);
        let replies = self.execute(RankCommand::Time { lead, calls }, timeout)?;
        let costs: Result<Vec<CallCost>> = replies
            .into_iter()
            .map(|reply| match reply {
                RankReply::Timed(cost) => Ok(cost),
                other => bail!("unexpected reply to time: {other:?}"),
            })
            .collect();
        Ok(Batch::of(calls, &costs?))
    }

    /// Sends a command to all ranks and waits for their replies.
    fn execute(&mut self, command: RankCommand, timeout: Duration) -> Result<Vec<RankReply>> {
        for connection in &mut self.connections {
            connection.send(&command).map_err(|error| self.processes.explain(error))?;
        }
        self.replies(timeout)
    }

    /// Waits for one reply from each rank.
    fn replies(&mut self, timeout: Duration) -> Result<Vec<RankReply>> {
        let deadline = Instant::now() + timeout;
        let mut replies = Vec::with_capacity(self.connections.len());
        for (rank, connection) in self.connections.iter_mut().enumerate() {
            let text = connection
                .read(deadline, &self.interrupt)
                .map_err(|error| self.processes.explain(error.context(format!("rank {rank}"))))?;
            match serde_json::from_str(&text)
                .with_context(|| format!("invalid reply of rank {rank}: {text:?}"))?
            {
                RankReply::Failed { error } => {
                    return Err(self.processes.explain(anyhow!("rank {rank}: {error}")));
                }
                reply => replies.push(reply),
            }
        }
        Ok(replies)
    }
}

impl Drop for SystemRanks {
    fn drop(&mut self) {
        for connection in &mut self.connections {
            // An error means that the rank has ended.
            let _ = connection.send(&RankCommand::End);
        }
        self.connections.clear();
        // After an interrupt the ranks may be in a long call.
        let timeout = if self.interrupt.check().is_ok() { END_TIMEOUT } else { Duration::ZERO };
        self.processes.wait(timeout);
    }
}

/// The socket to a rank.
#[derive(Debug)]
struct RankConnection {
    stream: UnixStream,
    /// The bytes of an incomplete line.
    rest: Vec<u8>,
}

impl RankConnection {
    fn new(stream: UnixStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(INTERRUPT_POLL))?;
        stream.set_write_timeout(Some(END_TIMEOUT))?;
        Ok(Self { stream, rest: Vec::new() })
    }

    fn send(&mut self, command: &RankCommand) -> Result<()> {
        self.stream.write_all(format!("{command}\n").as_bytes()).context("cannot send a command")
    }

    /// Reads the next line.
    fn read(&mut self, deadline: Instant, interrupt: &Interrupt) -> Result<String> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim().to_owned());
            }
            if self.rest.len() > LINE_BYTES_MAX {
                bail!("reply longer than {LINE_BYTES_MAX} bytes");
            }
            interrupt.check()?;
            if Instant::now() > deadline {
                bail!("timed out waiting for a reply");
            }
            match self.stream.read(&mut buffer).map_err(|error| (error.kind(), error)) {
                Ok(0) => bail!("the process has ended"),
                Ok(n) => self.rest.extend_from_slice(&buffer[..n]),
                Err((ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted, _)) => {}
                Err((_, error)) => return Err(error).context("cannot read a reply"),
            }
        }
    }
}

#[derive(Debug)]
struct Processes {
    children: Vec<Child>,
    /// The file of their output.
    log: PathBuf,
}

impl Processes {
    /// Fails if a process has ended.
    fn check_alive(&mut self) -> Result<()> {
        for child in &mut self.children {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(self.explain(anyhow!("a process ended with {status}")));
            }
        }
        Ok(())
    }

    /// Adds the end of the processes' output to an error.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        if error.is::<Interrupted>() {
            return error;
        }
        let output = std::fs::read(&self.log).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let output = output.trim();
        if output.is_empty() {
            return error;
        }
        let from = output.len().saturating_sub(QUOTED_BYTES_MAX);
        let from = (from..=output.len()).find(|at| output.is_char_boundary(*at)).unwrap_or(0);
        anyhow!("{error:#}; output of the processes:\n{}", &output[from..])
    }

    /// Waits until all processes have ended. After the timeout they get SIGTERM, then SIGKILL.
    fn wait(&mut self, timeout: Duration) {
        for (signal, timeout) in
            [(None, timeout), (Some(Signal::TERM), END_TIMEOUT / 2), (Some(Signal::KILL), END_TIMEOUT)]
        {
            let deadline = Instant::now() + timeout;
            for child in &mut self.children {
                if let (Some(signal), Ok(None)) = (signal, child.try_wait()) {
                    // An error means that it has ended.
                    let _ = kill_process(Pid::from_child(child), signal);
                }
            }
            while self.children.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
                if Instant::now() > deadline {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.wait(Duration::ZERO);
    }
}
