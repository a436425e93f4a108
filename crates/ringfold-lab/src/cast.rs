//! The programs that play a run: a master, and peers that follow a script.

use crate::answer::{Answer, Outcome};
use crate::process::{Problem, Process};
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::time::Duration;

/// How long a program may take to start.
const START_MAX: Duration = Duration::from_secs(20);

/// A running `lab-master`.
#[derive(Debug)]
pub struct Master {
    process: Process,
    addresses: Vec<SocketAddr>,
}

impl Master {
    /// Starts one by a command for `lab-master` (here, or on a host of a network), which may have further
    /// arguments, and waits until it listens.
    pub fn start(mut command: Command) -> Result<Self, Problem> {
        command.arg("--until-eof");
        let mut process = Process::spawn("master", command).map_err(not_started)?;
        process.wait_for_line("listening on ", START_MAX)?;
        // All are printed before the last line.
        process.wait_for_line("ready", START_MAX)?;
        let lines = process.lines();
        let addresses =
            lines.iter().filter_map(|line| line.strip_prefix("listening on ")?.parse().ok()).collect();
        Ok(Self { process, addresses })
    }

    /// Where it listens; the first that was asked for first.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Everywhere it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// A running `lab-peer`.
#[derive(Debug)]
pub struct Peer {
    process: Process,
    number: u32,
}

impl Peer {
    /// Starts one by a command for `lab-peer`, which may have further arguments. It does not connect yet.
    pub fn start(mut command: Command, number: u32, master: SocketAddr) -> Result<Self, Problem> {
        command.args(["--master", &master.to_string(), "--number", &number.to_string()]);
        let mut process = Process::spawn(format!("peer {number}"), command).map_err(not_started)?;
        process.wait_for_line("ready", START_MAX)?;
        Ok(Self { process, number })
    }

    /// Its number: its bit in the parts of a result.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Gives a command; the answer is waited for later, or never.
    pub fn tell(&mut self, command: &str) -> Result<(), Problem> {
        self.process.send(command)
    }

    /// Waits for the answer to a command that was given before. Answers come in the order of the commands, but for
    /// those in the background.
    pub fn answer(&mut self, command: &str, within: Duration) -> Result<Answer, Problem> {
        let name = command.split_whitespace().next().unwrap_or_default().to_owned();
        self.next(&format!("an answer to {command:?}"), within, |answer| {
            answer.outcome != Outcome::Step && answer.command == name
        })
    }

    /// Gives a command and waits for its answer.
    pub fn ask(&mut self, command: &str, within: Duration) -> Result<Answer, Problem> {
        self.tell(command)?;
        self.answer(command, within)
    }

    /// Gives a command that must be done.
    pub fn expect(&mut self, command: &str, within: Duration) -> Result<Answer, Problem> {
        let answer = self.ask(command, within)?;
        if answer.is_ok() {
            Ok(answer)
        } else {
            Err(self.process.problem(format!("did not do it: {answer}")))
        }
    }

    /// Waits for a step of its loop that fits.
    pub fn step(&mut self, within: Duration, fits: impl Fn(&Answer) -> bool) -> Result<Answer, Problem> {
        self.next("such a step", within, |answer| answer.outcome == Outcome::Step && fits(answer))
    }

    fn next(
        &mut self,
        what: &str,
        within: Duration,
        fits: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, Problem> {
        let line =
            self.process.wait_for(what, within, |line| line.parse().is_ok_and(|answer| fits(&answer)))?;
        line.parse().map_err(|()| self.process.problem("printed what is no answer"))
    }
}

impl Deref for Master {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Master {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Deref for Peer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        quote_if_panicking(&self.process);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        quote_if_panicking(&self.process);
    }
}

/// Why a test failed is often told by another process than the one that failed it.
fn quote_if_panicking(process: &Process) {
    if std::thread::panicking() {
        eprintln!("{}", process.problem("was part of a run that failed"));
    }
}

fn not_started(error: io::Error) -> Problem {
    Problem::new(format!("a program can't be started: {error}"))
}
