//! The main process of the demo: starts master and peers, kills and adds a peer, and ends all processes.

use super::arguments::Demo;
use super::child::{self, Child, ParentMessage, PeerLetter};
use super::event::{PeerEvent, Timestamp};
use super::report::DemoReport;
use super::schedule::{FaultSchedule, WorldWait};
use crate::exit_code::{FAILURE, SUCCESS};
use crate::invocation::Invocation;
use crate::master::LISTENING;
use crate::signals::{self, Signals};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long the master may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The demo fails if no event arrives for this long. Peers give up earlier.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long events are still reported after a failure.
const FAILURE_LINGER: Duration = Duration::from_millis(500);

impl Demo {
    /// Runs the demo, reports what happened, and returns the exit code: 0 only if all checks passed.
    ///
    /// `invocation` starts this program again, as master or peer. All children end when this returns or panics.
    pub fn run(&self, invocation: &Invocation) -> Result<i32> {
        let mut caught = Signals::catch()?;
        let (sender, messages) = channel();
        let signalled = sender.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            caught.wait();
            // An error means that the demo is over.
            let _ = signalled.send(ParentMessage::Signal);
        })?;

        let mut report = DemoReport::new(self, std::io::stdout())?;
        let (mut master, address) = start_master(invocation)?;
        report.master_listens(&address)?;
        let (schedule, peers) = (FaultSchedule::of(self), BTreeMap::new());
        let mut run = DemoRun { demo: self, invocation, schedule, address, peers, sender, report };
        for name in names().take(self.peers as usize) {
            run.start_peer(name, false)?;
        }
        if run.handle_events(&messages)? {
            run.report.interrupted()?;
            return Ok(signals::exit_code());
        }
        run.peers.clear();
        if !master.end().is_some_and(|status| status.success()) {
            run.report.failed("the master ended with an error")?;
        }
        let held = run.report.conclude()?;
        Ok(if held { SUCCESS } else { FAILURE })
    }
}

fn names() -> impl Iterator<Item = PeerLetter> {
    'A'..='Z'
}

/// Starts a master process and returns it with its address.
pub(crate) fn start_master(invocation: &Invocation) -> Result<(Child, String)> {
    let arguments = ["master", "--listen", "127.0.0.1:0", "--end-with-stdin"];
    let (master, stdout) = Child::spawn(invocation, &arguments)?;
    let (sender, line) = channel();
    std::thread::Builder::new().name("master".into()).spawn(move || {
        let mut output = BufReader::new(stdout);
        // An error means that the wait has timed out.
        let _ = sender.send(child::next_line(&mut output));
        // The master may print more, for example the address of its HTTP server.
        let _ = std::io::copy(&mut output, &mut std::io::sink());
    })?;
    let line = line.recv_timeout(START_TIMEOUT).context("timed out waiting for the master to start")?;
    let line = line.context("cannot read the output of the master")?;
    let address = line.as_deref().and_then(|line| line.strip_prefix(LISTENING));
    Ok((master, address.context("the master printed no address")?.to_owned()))
}

/// A running demo.
struct DemoRun<'a> {
    demo: &'a Demo,
    invocation: &'a Invocation,
    /// None once the last change was made.
    schedule: Option<FaultSchedule>,
    address: String,
    /// The peers that have not ended.
    peers: BTreeMap<PeerLetter, Child>,
    sender: Sender<ParentMessage>,
    report: DemoReport<std::io::Stdout>,
}

impl DemoRun<'_> {
    fn start_peer(&mut self, name: PeerLetter, late: bool) -> Result<()> {
        let mut arguments: Vec<String> = vec!["demo-peer".into()];
        let mut option = |key: &str, value: String| arguments.extend([key.to_owned(), value]);
        option("--master", self.address.clone());
        option("--name", name.to_string());
        option("--elements", (self.demo.size.0 / 4).to_string());
        option("--steps", self.demo.steps.to_string());
        option("--compute-ms", self.demo.compute_ms.to_string());
        let world = self.demo.peers;
        option("--wait", WorldWait { step: 0, world }.to_string());
        if let Some(step) = FaultSchedule::of(self.demo).map(|schedule| schedule.wait_at) {
            option("--wait", WorldWait { step, world }.to_string());
        }
        if late {
            arguments.push("--late".into());
        }
        let (child, stdout) = Child::spawn(self.invocation, &arguments)?;
        self.peers.insert(name, child);
        child::forward_events(name, stdout, self.sender.clone())
    }

    /// Handles events until all peers have ended, one has failed, or a timeout. Returns whether a signal came.
    fn handle_events(&mut self, messages: &Receiver<ParentMessage>) -> Result<bool> {
        let mut failed_at = None;
        while !self.peers.is_empty() {
            if self.report.has_failed() {
                failed_at.get_or_insert_with(Instant::now);
            }
            let timeout = failed_at.map_or(EVENT_TIMEOUT, |at| FAILURE_LINGER.saturating_sub(at.elapsed()));
            if timeout.is_zero() {
                break;
            }
            match messages.recv_timeout(timeout) {
                Ok(ParentMessage::Signal) => return Ok(true),
                Ok(ParentMessage::Event(name, event)) => {
                    self.report.record(name, &event)?;
                    self.change_membership(name, &event.event)?;
                }
                Ok(ParentMessage::Closed(name, error)) => self.ended(name, error)?,
                Err(RecvTimeoutError::Timeout) if failed_at.is_some() => break,
                Err(_) => {
                    self.report.failed(&format!("no event for {} s", EVENT_TIMEOUT.as_secs()))?;
                    break;
                }
            }
        }
        Ok(false)
    }

    /// Handles the end of a peer. Only the killed peer, which is not in `peers` any more, may end with an error.
    fn ended(&mut self, name: PeerLetter, error: Option<String>) -> Result<()> {
        let Some(mut peer) = self.peers.remove(&name) else { return Ok(()) };
        let status = peer.exit_status();
        if let Some(why) = error {
            self.report.failed(&format!("peer {name}: {why}"))?;
        } else if !status.is_some_and(|status| status.success()) {
            let how = status.map_or("unknown status".into(), |status| status.to_string());
            self.report.failed(&format!("peer {name} ended early: {how}"))?;
        }
        Ok(())
    }

    /// Kills or adds a peer if it is time.
    fn change_membership(&mut self, name: PeerLetter, event: &PeerEvent) -> Result<()> {
        let Some(schedule) = self.schedule else { return Ok(()) };
        match event {
            PeerEvent::Began { step } if *step == schedule.kill_at && name == self.victim() => {
                // Kill it in the middle of the reduce, estimated by the earlier ones.
                std::thread::sleep(self.report.median_reduce().mul_f64(0.4));
                let Some(mut victim) = self.peers.remove(&name) else { return Ok(()) };
                let at = Timestamp::now();
                victim.kill();
                let survivors = self.peers.keys().copied().collect();
                self.report.killed(name, *step, at, survivors)?;
            }
            PeerEvent::Stepped { step, .. } if *step == schedule.add_at => self.add()?,
            PeerEvent::Alone { .. } => self.add()?,
            _ => {}
        }
        Ok(())
    }

    /// The peer to kill: the third, if there is one.
    fn victim(&self) -> PeerLetter {
        names().nth(2.min(self.demo.peers as usize - 1)).unwrap_or('A')
    }

    fn add(&mut self) -> Result<()> {
        self.schedule = None;
        if let Some(name) = names().nth(self.demo.peers as usize) {
            self.report.adding(name)?;
            self.start_peer(name, true)?;
        }
        Ok(())
    }
}
