//! The process that starts all others, makes the trouble, and sees to it that nothing stays behind.

use super::Demo;
use super::child::{self, Child, Message, Name};
use super::event::{Event, Moment};
use super::report::Report;
use super::schedule::{Gathering, Schedule};
use crate::command::{FAILURE, SUCCESS};
use crate::invocation::Invocation;
use crate::serve::LISTENING;
use crate::signals::Signals;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long the master may take to start.
const START_MAX: Duration = Duration::from_secs(10);
/// How long the demo may be without news. Peers give up sooner than that.
const NEWS_MAX: Duration = Duration::from_secs(60);
/// After something failed, others may still have to say why.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// What a process answers that was ended by SIGINT.
const INTERRUPTED: i32 = 130;

/// Runs the demo to its end. Every way out of here ends the children, a panic too.
pub(crate) fn run(demo: &Demo, again: &Invocation) -> Result<i32> {
    let mut signals = Signals::catch()?;
    let (sender, messages) = channel();
    let signalled = sender.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        // If nobody listens any more the demo is over.
        let _ = signalled.send(Message::Signal);
    })?;

    let mut report = Report::new(demo, std::io::stdout())?;
    let (mut master, address) = start_master(again)?;
    report.master_listens(&address)?;
    let mut run =
        Run { demo, again, schedule: Schedule::of(demo), address, peers: BTreeMap::new(), sender, report };
    for name in names().take(demo.peers as usize) {
        run.start_peer(name, false)?;
    }
    let end = run.watch(&messages)?;
    if end == End::Interrupted {
        run.report.interrupted()?;
        return Ok(INTERRUPTED);
    }
    run.peers.clear();
    if !master.end().is_some_and(|status| status.success()) {
        run.report.failed("the master did not end well")?;
    }
    let held = run.report.conclude()?;
    Ok(if held { SUCCESS } else { FAILURE })
}

fn names() -> impl Iterator<Item = Name> {
    'A'..='Z'
}

/// A master in a process of its own, and where it listens.
fn start_master(again: &Invocation) -> Result<(Child, String)> {
    let (master, stdout) = Child::spawn(again, &["master", "--listen", "127.0.0.1:0", "--end-with-stdin"])?;
    let (sender, line) = channel();
    std::thread::Builder::new().name("master".into()).spawn(move || {
        // If nobody listens any more it took too long.
        let _ = sender.send(child::next_line(&mut BufReader::new(stdout)));
    })?;
    let line =
        line.recv_timeout(START_MAX).context("the master says nothing")?.context("the master's output")?;
    let address = line.as_deref().and_then(|line| line.strip_prefix(LISTENING));
    Ok((master, address.context("the master does not say where it listens")?.to_owned()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Reached,
    Interrupted,
}

struct Run<'a> {
    demo: &'a Demo,
    again: &'a Invocation,
    /// The trouble to come; whatever has been made is taken out.
    schedule: Option<Schedule>,
    address: String,
    /// Those that have not ended yet.
    peers: BTreeMap<Name, Child>,
    sender: Sender<Message>,
    report: Report<std::io::Stdout>,
}

impl Run<'_> {
    fn start_peer(&mut self, name: Name, late: bool) -> Result<()> {
        let mut arguments: Vec<String> = vec!["demo-peer".into()];
        let mut option = |key: &str, value: String| arguments.extend([key.to_owned(), value]);
        option("--master", self.address.clone());
        option("--name", name.to_string());
        option("--elements", (self.demo.size.0 / 4).to_string());
        option("--steps", self.demo.steps.to_string());
        option("--compute-ms", self.demo.compute().as_millis().to_string());
        let world = self.demo.peers;
        option("--gather", Gathering { step: 0, world }.to_string());
        if let Some(step) = Schedule::of(self.demo).map(|schedule| schedule.gather_at) {
            option("--gather", Gathering { step, world }.to_string());
        }
        if late {
            arguments.push("--late".into());
        }
        let (child, stdout) = Child::spawn(self.again, &arguments)?;
        self.peers.insert(name, child);
        child::listen(name, stdout, self.sender.clone())
    }

    /// Until all peers have ended, or one has failed, or nothing happens any more.
    fn watch(&mut self, messages: &Receiver<Message>) -> Result<End> {
        let mut failed_at = None;
        while !self.peers.is_empty() {
            if self.report.has_failed() {
                failed_at.get_or_insert_with(Instant::now);
            }
            let patience = failed_at.map_or(NEWS_MAX, |at| LAST_WORDS.saturating_sub(at.elapsed()));
            if patience.is_zero() {
                break;
            }
            match messages.recv_timeout(patience) {
                Ok(Message::Signal) => return Ok(End::Interrupted),
                Ok(Message::Said(name, line)) => {
                    self.report.heard(name, &line)?;
                    self.make_trouble(name, &line.event)?;
                }
                Ok(Message::Silent(name, trouble)) => self.ended(name, trouble)?,
                Err(RecvTimeoutError::Timeout) if failed_at.is_some() => break,
                Err(_) => {
                    self.report.failed(&format!("nothing has happened for {} s", NEWS_MAX.as_secs()))?;
                    break;
                }
            }
        }
        Ok(End::Reached)
    }

    /// A peer that has no more to say ends, and the one that we killed is the only one that may end badly.
    fn ended(&mut self, name: Name, trouble: Option<String>) -> Result<()> {
        let Some(mut peer) = self.peers.remove(&name) else { return Ok(()) };
        let status = peer.exit_status();
        if let Some(why) = trouble {
            self.report.failed(&format!("peer {name}: {why}"))?;
        } else if !status.is_some_and(|status| status.success()) {
            let how = status.map_or("in a way unknown".into(), |status| status.to_string());
            self.report.failed(&format!("peer {name} ended before its time: {how}"))?;
        }
        Ok(())
    }

    fn make_trouble(&mut self, name: Name, event: &Event) -> Result<()> {
        let Some(schedule) = self.schedule else { return Ok(()) };
        match event {
            Event::Began { step } if *step == schedule.kill_at && name == self.victim() => {
                // Into the middle of it, by what the reduces before have taken.
                std::thread::sleep(self.report.median_reduce().mul_f64(0.4));
                let Some(mut victim) = self.peers.remove(&name) else { return Ok(()) };
                let at = Moment::now();
                victim.kill();
                let survivors = self.peers.keys().copied().collect();
                self.report.killed(name, *step, at, survivors)?;
            }
            Event::Stepped { step, .. } if *step == schedule.add_at => self.add()?,
            Event::Alone { .. } => self.add()?,
            _ => {}
        }
        Ok(())
    }

    /// The third, where there are so many.
    fn victim(&self) -> Name {
        names().nth(2.min(self.demo.peers as usize - 1)).unwrap_or('A')
    }

    fn add(&mut self) -> Result<()> {
        // It is the last trouble.
        self.schedule = None;
        if let Some(name) = names().nth(self.demo.peers as usize) {
            self.report.adding(name)?;
            self.start_peer(name, true)?;
        }
        Ok(())
    }
}
