//! The ranks of one system as processes: told what to do, waited for with deadlines, ended.

use super::interrupt::Interrupt;
use super::nest::Nest;
use super::order::{Answer, Cost, Hello, Order};
use super::point::Point;
use super::statistics::Run;
use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long processes may take to start and to find each other. Importing torch takes seconds.
const START_MAX: Duration = Duration::from_secs(120);
/// How long anything may take beside the calls that are timed.
const ORDER_MAX: Duration = Duration::from_secs(120);
/// How long they may take to end by themselves.
const END_MAX: Duration = Duration::from_secs(5);
/// How often a wait looks whether the user has enough of it.
const GLANCE: Duration = Duration::from_millis(100);
/// No answer is longer.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// How much is told of what a process complained about.
const COMPLAINTS_BYTES_MAX: usize = 2000;

/// The processes end when it is dropped.
#[derive(Debug)]
pub(crate) struct Team {
    /// What is measured, with its version.
    pub(crate) about: String,
    lines: Vec<Line>,
    processes: Processes,
    interrupt: Interrupt,
}

/// How ready a team is for a point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Readiness {
    /// With what the check found, if there was one.
    Ready(Option<String>),
    /// There is no such thing, for this reason.
    Unsupported(String),
}

impl Team {
    /// Starts the processes that `commands` makes for a socket, and waits until all ranks are part of their group.
    pub(crate) fn start(
        nest: &Nest,
        world: usize,
        interrupt: &Interrupt,
        commands: impl FnOnce(&std::path::Path) -> Result<Vec<Command>>,
    ) -> Result<Self> {
        let socket = nest.path("orders");
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("can't listen at {}", socket.display()))?;
        listener.set_nonblocking(true)?;
        let mut processes = Processes { children: Vec::new(), log: nest.path("log") };
        let log = File::create(&processes.log).context("can't keep a log")?;
        for mut command in commands(&socket)? {
            // Ctrl-C goes to the whole group of the terminal; only the parent shall take it as its own.
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).process_group(0);
            let program = command.get_program().to_owned();
            let child = command.spawn().with_context(|| format!("can't start {}", program.display()))?;
            processes.children.push(child);
        }
        let until = Instant::now() + START_MAX;
        let mut lines: Vec<Option<Line>> = (0..world).map(|_| None).collect();
        let mut about = String::new();
        while lines.iter().any(Option::is_none) {
            interrupt.check()?;
            match listener.accept() {
                Ok((stream, _)) => {
                    let mut line = Line::new(stream)?;
                    let text = line.read(until, interrupt).map_err(|error| processes.explain(error))?;
                    let hello: Hello = serde_json::from_str(&text).context("a rank's first words")?;
                    *lines.get_mut(hello.rank).context("a rank that is none of ours")? = Some(line);
                    about = hello.about;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() > until {
                        return Err(processes.explain(anyhow!("not all ranks have come")));
                    }
                    processes.all_live()?;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error).context("can't be connected to"),
            }
        }
        let lines = lines.into_iter().flatten().collect();
        let mut team = Self { about, lines, processes, interrupt: interrupt.clone() };
        for answer in team.answers(START_MAX)? {
            match answer {
                Answer::Joined { how: Some(how), .. } if !team.about.contains(&how) => {
                    team.about = format!("{}, {how}", team.about);
                }
                Answer::Joined { .. } => {}
                other => bail!("a rank said {other:?} where it should have joined"),
            }
        }
        Ok(team)
    }

    /// Buffers of this size.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<()> {
        self.order(Order::Reserve { bytes }, ORDER_MAX).map(drop)
    }

    /// Makes all ranks ready for a point.
    pub(crate) fn prepare(&mut self, point: Point, check: bool) -> Result<Readiness> {
        let answers = self.order(Order::Prepare { point, check }, ORDER_MAX)?;
        let mut found = None;
        for answer in answers {
            match answer {
                Answer::Unsupported { unsupported } => return Ok(Readiness::Unsupported(unsupported)),
                // What one rank finds wrong is wrong, whatever the others find.
                Answer::Ready { check: Some(check), .. } => match found {
                    Some(ref wrong) if wrong != "ok" => {}
                    _ => found = Some(check),
                },
                Answer::Ready { check: None, .. } => {}
                other => bail!("a rank said {other:?} where it should have prepared"),
            }
        }
        Ok(Readiness::Ready(found))
    }

    /// How the point that was prepared is carried out, as rank 0 sees it.
    pub(crate) fn explain(&mut self) -> Result<String> {
        let answers = self.order(Order::Explain, ORDER_MAX)?;
        answers
            .into_iter()
            .find_map(|answer| match answer {
                Answer::Explained { plan } => Some(plan),
                _ => None,
            })
            .context("no rank can tell")
    }

    /// Times calls, which are expected to take about so long.
    pub(crate) fn time(&mut self, lead: u64, calls: u64, expected: Duration) -> Result<Run> {
        let patience = ORDER_MAX + expected.saturating_mul(20);
        let answers = self.order(Order::Time { lead, calls }, patience)?;
        let costs: Result<Vec<Cost>> = answers
            .into_iter()
            .map(|answer| match answer {
                Answer::Timed(cost) => Ok(cost),
                other => bail!("a rank said {other:?} where it should have told the time"),
            })
            .collect();
        Ok(Run::of(calls, &costs?))
    }

    fn order(&mut self, order: Order, patience: Duration) -> Result<Vec<Answer>> {
        for line in &mut self.lines {
            line.tell(&order).map_err(|error| self.processes.explain(error))?;
        }
        self.answers(patience)
    }

    /// One of each rank.
    fn answers(&mut self, patience: Duration) -> Result<Vec<Answer>> {
        let until = Instant::now() + patience;
        let mut answers = Vec::with_capacity(self.lines.len());
        for (rank, line) in self.lines.iter_mut().enumerate() {
            let text = line
                .read(until, &self.interrupt)
                .map_err(|error| self.processes.explain(error.context(format!("rank {rank}"))))?;
            match serde_json::from_str(&text).with_context(|| format!("rank {rank} said {text:?}"))? {
                Answer::Failed { error } => {
                    return Err(self.processes.explain(anyhow!("rank {rank}: {error}")));
                }
                answer => answers.push(answer),
            }
        }
        Ok(answers)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for line in &mut self.lines {
            // One that is gone needs no goodbye.
            let _ = line.tell(&Order::End);
        }
        self.lines.clear();
        // Who was interrupted may have ranks in the middle of something long.
        let patience = if self.interrupt.check().is_ok() { END_MAX } else { Duration::ZERO };
        self.processes.wait(patience);
    }
}

/// A rank's socket.
#[derive(Debug)]
struct Line {
    stream: UnixStream,
    /// What was read and belongs to no line yet.
    rest: Vec<u8>,
}

impl Line {
    fn new(stream: UnixStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GLANCE))?;
        stream.set_write_timeout(Some(END_MAX))?;
        Ok(Self { stream, rest: Vec::new() })
    }

    fn tell(&mut self, order: &Order) -> Result<()> {
        self.stream.write_all(format!("{order}\n").as_bytes()).context("it does not listen any more")
    }

    /// The next line.
    fn read(&mut self, until: Instant, interrupt: &Interrupt) -> Result<String> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim().to_owned());
            }
            if self.rest.len() > LINE_BYTES_MAX {
                bail!("it says more than anyone wants to know");
            }
            interrupt.check()?;
            if Instant::now() > until {
                bail!("it does not answer");
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("it has ended"),
                Ok(n) => self.rest.extend_from_slice(&buffer[..n]),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error).context("its answer"),
            }
        }
    }
}

#[derive(Debug)]
struct Processes {
    children: Vec<Child>,
    /// What they print.
    log: PathBuf,
}

impl Processes {
    /// Fails if one has ended.
    fn all_live(&mut self) -> Result<()> {
        for child in &mut self.children {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(self.explain(anyhow!("a process ended with {status}")));
            }
        }
        Ok(())
    }

    /// Adds what the processes had to say.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        if error.is::<super::interrupt::Interrupted>() {
            return error;
        }
        let complaints = std::fs::read(&self.log).unwrap_or_default();
        let complaints = String::from_utf8_lossy(&complaints);
        let complaints = complaints.trim();
        if complaints.is_empty() {
            return error;
        }
        let from = complaints.len().saturating_sub(COMPLAINTS_BYTES_MAX);
        let from = (from..=complaints.len()).find(|at| complaints.is_char_boundary(*at)).unwrap_or(0);
        anyhow!("{error:#}; what the processes printed:\n{}", &complaints[from..])
    }

    /// Waits for the end of all; who does not end is asked to, and then made to.
    fn wait(&mut self, patience: Duration) {
        for (signal, patience) in
            [(None, patience), (Some(Signal::TERM), END_MAX / 2), (Some(Signal::KILL), END_MAX)]
        {
            let until = Instant::now() + patience;
            for child in &mut self.children {
                if let (Some(signal), Ok(None)) = (signal, child.try_wait()) {
                    // An error means that it has just ended.
                    let _ = kill_process(Pid::from_child(child), signal);
                }
            }
            while self.children.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
                if Instant::now() > until {
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
