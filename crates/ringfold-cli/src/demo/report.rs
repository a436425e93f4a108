//! Prints the course of the demo and checks it.

use super::arguments::Demo;
use super::child::PeerLetter;
use super::event::{PeerEvent, TimedEvent, Timestamp};
use crate::size::ByteSize;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The results of the last steps are kept for peers that are behind.
const RESULTS_KEPT: u64 = 64;
/// The tensors of the shared state: weights and momentum.
const STATE_TENSORS: u64 = 2;

/// The state of the demo as far as its events show it.
pub(crate) struct DemoReport<W> {
    demo: Demo,
    out: W,
    begin: Timestamp,
    progress_at: Timestamp,
    joined: BTreeSet<PeerLetter>,
    step: u64,
    /// The result of the first peer that finished each step.
    results: BTreeMap<u64, StepResult>,
    /// Steps after which peers had different bits.
    differing: BTreeSet<u64>,
    /// The shortest reduce of each step: that of the last peer to begin, which did not wait for others.
    reduces: BTreeMap<u64, Duration>,
    retried: u64,
    moved_bytes: u64,
    finished: BTreeMap<PeerLetter, (u64, u64)>,
    kill: Option<Kill>,
    joining: Option<JoiningPeer>,
    failures: u32,
}

/// The result of a step, which must be the same on all peers.
#[derive(Clone, Copy)]
struct StepResult {
    first: PeerLetter,
    hash: u64,
    world: u32,
}

/// A killed peer, and when its death reached the others.
struct Kill {
    name: PeerLetter,
    step: u64,
    at: Timestamp,
    survivors: BTreeSet<PeerLetter>,
    aborted: BTreeMap<PeerLetter, Timestamp>,
    redone: BTreeMap<PeerLetter, Timestamp>,
}

/// The peer that was added during the run.
struct JoiningPeer {
    name: PeerLetter,
    joined: Option<Timestamp>,
    vote: Duration,
    received: Option<(u64, Duration)>,
}

impl<W: Write> DemoReport<W> {
    /// Prints the introduction.
    pub(crate) fn new(demo: &Demo, out: W) -> Result<Self> {
        let now = Timestamp::now();
        let mut report = Self {
            demo: demo.clone(),
            out,
            begin: now,
            progress_at: now,
            joined: BTreeSet::new(),
            step: 0,
            results: BTreeMap::new(),
            differing: BTreeSet::new(),
            reduces: BTreeMap::new(),
            retried: 0,
            moved_bytes: 0,
            finished: BTreeMap::new(),
            kill: None,
            joining: None,
            failures: 0,
        };
        let (state, size) = (report.state_size(), demo.size);
        report.print(&format!(
            "{} peers train for {} steps: {size} of gradients each, {state} of shared state\n",
            demo.peers, demo.steps
        ))?;
        Ok(report)
    }

    pub(crate) fn master_listens(&mut self, address: &str) -> Result<()> {
        self.print_now(&format!("master listens on {address}"))
    }

    pub(crate) fn killed(
        &mut self,
        name: PeerLetter,
        step: u64,
        at: Timestamp,
        survivors: BTreeSet<PeerLetter>,
    ) -> Result<()> {
        self.print_at(at, &format!("killed peer {name} (SIGKILL) during the reduce of step {step}"))?;
        let (aborted, redone) = (BTreeMap::new(), BTreeMap::new());
        self.kill = Some(Kill { name, step, at, survivors, aborted, redone });
        Ok(())
    }

    pub(crate) fn adding(&mut self, name: PeerLetter) -> Result<()> {
        self.joining = Some(JoiningPeer { name, joined: None, vote: Duration::ZERO, received: None });
        self.print_now(&format!("starting peer {name} with untrained weights"))
    }

    pub(crate) fn interrupted(&mut self) -> Result<()> {
        self.print_now("interrupted: ending all processes")
    }

    pub(crate) fn failed(&mut self, what: &str) -> Result<()> {
        self.failures += 1;
        self.print_now(&format!("FAILED: {what}"))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// The median time of a reduce so far.
    pub(crate) fn median_reduce(&self) -> Duration {
        let mut sorted: Vec<_> = self.reduces.values().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    /// Records an event, and prints it if it is important.
    pub(crate) fn record(&mut self, name: PeerLetter, line: &TimedEvent) -> Result<()> {
        match &line.event {
            PeerEvent::Joined => self.peer_joined(name, line.at)?,
            PeerEvent::Voted { took } => {
                if let Some(joining) = &mut self.joining
                    && joining.received.is_none()
                {
                    joining.vote = joining.vote.max(*took);
                }
            }
            PeerEvent::Synced { rx_bytes, took } => {
                self.moved_bytes += rx_bytes;
                if let Some(joining) = self.joining.as_mut().filter(|joining| joining.name == name) {
                    joining.received.get_or_insert((*rx_bytes, *took));
                }
            }
            PeerEvent::Began { .. } => {}
            PeerEvent::Aborted { step, why } => match &mut self.kill {
                Some(kill) if kill.step == *step => {
                    kill.aborted.entry(name).or_insert(line.at);
                }
                _ => self.print_now(&format!("peer {name}: retrying step {step}: {why}"))?,
            },
            PeerEvent::Alone { step } => {
                self.print_at(
                    line.at,
                    &format!("peer {name} is alone after step {step} and waits for another peer"),
                )?;
            }
            PeerEvent::Stepped { .. } => self.peer_stepped(name, line)?,
            PeerEvent::Finished { step, hash } => {
                self.finished.insert(name, (*step, *hash));
            }
            PeerEvent::Failed { why } => self.failed(&format!("peer {name}: {why}"))?,
        }
        Ok(())
    }

    fn peer_joined(&mut self, name: PeerLetter, at: Timestamp) -> Result<()> {
        if let Some(joining) = self.joining.as_mut().filter(|joining| joining.name == name) {
            joining.joined = Some(at);
            return Ok(());
        }
        self.joined.insert(name);
        if self.joined.len() == self.demo.peers as usize {
            let names = spaced(self.joined.iter());
            self.print_at(at, &format!("peers {names} have joined"))?;
        }
        Ok(())
    }

    fn peer_stepped(&mut self, name: PeerLetter, line: &TimedEvent) -> Result<()> {
        let PeerEvent::Stepped { step, world, reduce, retries, tx_bytes, loss, hash } = line.event else {
            return Ok(());
        };
        let shortest = self.reduces.entry(step).or_insert(reduce);
        *shortest = reduce.min(*shortest);
        self.moved_bytes += tx_bytes;
        let result = *self.results.entry(step).or_insert(StepResult { first: name, hash, world });
        let first = result.first;
        if result.hash != hash {
            self.differing.insert(step);
            self.failed(&format!("different bits on peers {name} and {first} after step {step}"))?;
        }
        // The same operation cannot have succeeded with different worlds.
        if result.world != world {
            let worlds = format!("{world} on peer {name}, {} on peer {first}", result.world);
            self.failed(&format!("different worlds in the reduce of step {step}: {worlds}"))?;
        }
        if step > self.step {
            self.step = step;
            self.retried += u64::from(retries > 0);
            self.results.retain(|old, _| old + RESULTS_KEPT > step);
            if line.at.since(self.progress_at) >= PROGRESS_INTERVAL || step == self.demo.steps {
                self.progress_at = line.at;
                let speed = gigabytes_per_second(self.demo.size, reduce);
                let (took, steps) = (millis(reduce), self.demo.steps);
                let text =
                    format!("step {step:>3}/{steps}  {world} peers  reduce {took} ({speed})  loss {loss:.4}");
                self.print_at(line.at, &text)?;
            }
        }
        self.check_kill(name, step, line.at)?;
        self.check_added(name)
    }

    /// Prints how the survivors handled the death, once all of them have done the step.
    fn check_kill(&mut self, name: PeerLetter, step: u64, at: Timestamp) -> Result<()> {
        let Some(kill) = self.kill.as_mut().filter(|kill| kill.step == step) else { return Ok(()) };
        if !kill.survivors.contains(&name) {
            return Ok(());
        }
        kill.redone.insert(name, at);
        if kill.redone.len() < kill.survivors.len() {
            return Ok(());
        }
        let Some(kill) = self.kill.take() else { return Ok(()) };
        let last = |moments: &BTreeMap<PeerLetter, Timestamp>| {
            millis(moments.values().max().map_or(Duration::ZERO, |at| at.since(kill.at)))
        };
        let (dead, survivors) = (kill.name, spaced(kill.survivors.iter()));
        let bits = if self.differing.contains(&step) { "but different bits" } else { "same bits on all" };
        let text = if kill.aborted.is_empty() {
            format!("peer {dead} had completed its part: no error on {survivors}, {bits}")
        } else {
            // A peer that calls only after the abort takes part in the second attempt.
            let late = spaced(kill.survivors.iter().filter(|name| !kill.aborted.contains_key(name)));
            let late = if late.is_empty() { late } else { format!(" ({late} called later)") };
            let (some, error, redone) =
                (spaced(kill.aborted.keys()), last(&kill.aborted), last(&kill.redone));
            format!("peer {dead} was lost: error on {some} at +{error}{late}, retried by +{redone}, {bits}")
        };
        self.print_at(at, &text)
    }

    /// Checks the added peer at its first step.
    fn check_added(&mut self, name: PeerLetter) -> Result<()> {
        let Some(joining) = self.joining.take_if(|joining| joining.name == name) else { return Ok(()) };
        let (bytes, took) = joining.received.unwrap_or_default();
        if bytes < self.state_size().0 {
            self.failed(&format!("peer {name} made a step after receiving only {}", ByteSize(bytes)))?;
        }
        self.joined.insert(name);
        let text = format!(
            "peer {name} joined: vote took {}, received {} of state in {}",
            millis(joining.vote),
            ByteSize(bytes),
            millis(took)
        );
        self.print_at(joining.joined.unwrap_or(self.begin), &text)
    }

    /// Prints the summary, and returns whether all checks passed.
    pub(crate) fn conclude(mut self) -> Result<bool> {
        if let Some(joining) = self.joining.take() {
            self.failed(&format!("peer {} made no step", joining.name))?;
        }
        if let Some(kill) = self.kill.take() {
            self.failed(&format!("the survivors of peer {} did not complete its step", kill.name))?;
        }
        let hashes: BTreeSet<_> = self.finished.values().copied().collect();
        let names = spaced(self.finished.keys());
        if self.finished.len() != self.demo.peers as usize
            || hashes.iter().any(|(step, _)| *step != self.demo.steps)
        {
            self.failed(&format!("not all peers finished, only: {names}"))?;
        }
        let state = match hashes.iter().next() {
            Some((_, hash)) if hashes.len() == 1 => format!("{hash:016x}, same bits on all ({names})"),
            _ => {
                self.failed("the final states differ")?;
                "different on some peers".into()
            }
        };
        let median = self.median_reduce();
        let took = Timestamp::now().since(self.begin).as_secs_f64();
        let (step, retried) = (self.step, self.retried);
        let (moved, size) = (ByteSize(self.moved_bytes), self.demo.size);
        let (median, speed) = (millis(median), gigabytes_per_second(size, median));
        let (started, ended) = (self.joined.len(), self.finished.len());
        let verdict = if self.has_failed() { "FAILED" } else { "all checks passed" };
        self.print(&format!(
            "\n  steps        {step} in {took:.1} s, {retried} of them retried\n  \
             peers        {started} took part, {ended} at the end\n  \
             moved        {moved} between peers\n  \
             all-reduce   {size} in {median}, {speed} (median, since the last peer called)\n  \
             final state  {state}\n\n{verdict}"
        ))?;
        Ok(!self.has_failed())
    }

    fn state_size(&self) -> ByteSize {
        ByteSize(self.demo.size.0 * STATE_TENSORS)
    }

    fn print_now(&mut self, text: &str) -> Result<()> {
        self.print_at(Timestamp::now(), text)
    }

    fn print_at(&mut self, at: Timestamp, text: &str) -> Result<()> {
        let seconds = at.since(self.begin).as_secs_f64();
        self.print(&format!("{seconds:>7.2} s  {text}"))
    }

    fn print(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "{text}")
            .and_then(|()| self.out.flush())
            .context("cannot write to standard output")
    }
}

fn spaced<'a>(names: impl Iterator<Item = &'a PeerLetter>) -> String {
    names.map(PeerLetter::to_string).collect::<Vec<_>>().join(" ")
}

fn millis(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

fn gigabytes_per_second(size: ByteSize, took: Duration) -> String {
    format!("{:.2} GB/s", size.0 as f64 / took.as_secs_f64().max(1e-6) / 1e9)
}
