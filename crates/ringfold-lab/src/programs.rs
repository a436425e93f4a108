//! The programs of a run: `lab-master` and `lab-peer`.

use crate::peer_reply::{PeerReply, ReplyStatus};
use crate::process::{Process, ProcessError};
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::time::Duration;

/// How long a program may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A running `lab-master`.
#[derive(Debug)]
pub struct MasterProcess {
    process: Process,
    addresses: Vec<SocketAddr>,
}

impl MasterProcess {
    /// Starts a command for `lab-master`, here or on a host of a network, and waits until it listens.
    pub fn start(mut command: Command) -> Result<Self, ProcessError> {
        command.arg("--until-eof");
        let mut process = Process::spawn("master", command).map_err(not_started)?;
        process.wait_for_line("listening on ", START_TIMEOUT)?;
        // The line after all addresses.
        process.wait_for_line("ready", START_TIMEOUT)?;
        let lines = process.lines();
        let addresses =
            lines.iter().filter_map(|line| line.strip_prefix("listening on ")?.parse().ok()).collect();
        Ok(Self { process, addresses })
    }

    /// The first address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// All addresses it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// A running `lab-peer`.
#[derive(Debug)]
pub struct PeerProcess {
    process: Process,
    number: u32,
}

impl PeerProcess {
    /// Starts a command for `lab-peer`. It does not connect yet.
    pub fn start(mut command: Command, number: u32, master: impl ToString) -> Result<Self, ProcessError> {
        command.args(["--master", &master.to_string(), "--number", &number.to_string()]);
        let mut process = Process::spawn(format!("peer {number}"), command).map_err(not_started)?;
        process.wait_for_line("ready", START_TIMEOUT)?;
        Ok(Self { process, number })
    }

    /// Its number, which is its bit in the participants of a result.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Sends a command without waiting for the reply.
    pub fn send(&mut self, command: &str) -> Result<(), ProcessError> {
        self.process.send(command)
    }

    /// Waits for the reply to an earlier command. Replies are in the order of commands, except for background ones.
    pub fn reply(&mut self, command: &str, within: Duration) -> Result<PeerReply, ProcessError> {
        let name = command.split_whitespace().next().unwrap_or_default().to_owned();
        self.next(&format!("a reply to {command:?}"), within, |reply| {
            reply.status != ReplyStatus::Step && reply.command == name
        })
    }

    /// Sends a command and waits for its reply.
    pub fn request(&mut self, command: &str, within: Duration) -> Result<PeerReply, ProcessError> {
        self.send(command)?;
        self.reply(command, within)
    }

    /// Sends a command and waits for its reply, which must be ok.
    pub fn expect(&mut self, command: &str, within: Duration) -> Result<PeerReply, ProcessError> {
        let reply = self.request(command, within)?;
        if reply.is_ok() { Ok(reply) } else { Err(self.process.error(format!("failed: {reply}"))) }
    }

    /// Waits for a step of its loop that matches.
    pub fn step(
        &mut self,
        within: Duration,
        fits: impl Fn(&PeerReply) -> bool,
    ) -> Result<PeerReply, ProcessError> {
        self.next("a matching step", within, |reply| reply.status == ReplyStatus::Step && fits(reply))
    }

    fn next(
        &mut self,
        what: &str,
        within: Duration,
        fits: impl Fn(&PeerReply) -> bool,
    ) -> Result<PeerReply, ProcessError> {
        let line =
            self.process.wait_for(what, within, |line| line.parse().is_ok_and(|reply| fits(&reply)))?;
        line.parse().map_err(|()| self.process.error("printed an invalid reply"))
    }
}

macro_rules! deref_to_process {
    ($($type:ty)*) => {$(
        impl Deref for $type {
            type Target = Process;

            fn deref(&self) -> &Process {
                &self.process
            }
        }

        impl DerefMut for $type {
            fn deref_mut(&mut self) -> &mut Process {
                &mut self.process
            }
        }
    )*};
}
deref_to_process!(MasterProcess PeerProcess);

fn not_started(error: io::Error) -> ProcessError {
    ProcessError::new(format!("cannot start a program: {error}"))
}
