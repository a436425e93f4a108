//! What people see of the demo, and whether everything held.

use super::Demo;
use super::child::Name;
use super::event::{Event, Line, Moment};
use crate::size::ByteSize;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

/// How often a line tells how far the run is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Results of steps so far back are not waited for any more.
const RESULTS_KEPT: u64 = 64;
/// Tensors of the size of the gradients that the shared state has: weights and momentum.
const STATE_TENSORS: u64 = 2;

/// All that was heard, as far as it matters.
pub(crate) struct Report<W> {
    demo: Demo,
    out: W,
    begin: Moment,
    told_progress: Moment,
    joined: BTreeSet<Name>,
    step: u64,
    /// What the first peer to finish a step had.
    results: BTreeMap<u64, StepResult>,
    /// Steps after which peers did not have the same.
    differing: BTreeSet<u64>,
    /// How long the reduce of each step took the last peer to begin it: the others have waited for that one.
    reduces: BTreeMap<u64, Duration>,
    retried: u64,
    moved_bytes: u64,
    finished: BTreeMap<Name, (u64, u64)>,
    kill: Option<Kill>,
    newcomer: Option<Newcomer>,
    failures: u32,
}

/// What all peers must have alike after a step.
#[derive(Clone, Copy)]
struct StepResult {
    first: Name,
    hash: u64,
    world: u32,
}

/// A peer that was killed, and what the others had of it.
struct Kill {
    name: Name,
    step: u64,
    at: Moment,
    survivors: BTreeSet<Name>,
    aborted: BTreeMap<Name, Moment>,
    redone: BTreeMap<Name, Moment>,
}

/// A peer that came while the run went on.
struct Newcomer {
    name: Name,
    joined: Option<Moment>,
    vote: Duration,
    received: Option<(u64, Duration)>,
}

impl<W: Write> Report<W> {
    /// Begins with what is going to be shown.
    pub(crate) fn new(demo: &Demo, out: W) -> Result<Self> {
        let now = Moment::now();
        let mut report = Self {
            demo: demo.clone(),
            out,
            begin: now,
            told_progress: now,
            joined: BTreeSet::new(),
            step: 0,
            results: BTreeMap::new(),
            differing: BTreeSet::new(),
            reduces: BTreeMap::new(),
            retried: 0,
            moved_bytes: 0,
            finished: BTreeMap::new(),
            kill: None,
            newcomer: None,
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
        self.say(&format!("master listens on {address}"))
    }

    pub(crate) fn killed(
        &mut self,
        name: Name,
        step: u64,
        at: Moment,
        survivors: BTreeSet<Name>,
    ) -> Result<()> {
        self.say_at(at, &format!("killed peer {name} (SIGKILL) during the reduce of step {step}"))?;
        let (aborted, redone) = (BTreeMap::new(), BTreeMap::new());
        self.kill = Some(Kill { name, step, at, survivors, aborted, redone });
        Ok(())
    }

    pub(crate) fn adding(&mut self, name: Name) -> Result<()> {
        self.newcomer = Some(Newcomer { name, joined: None, vote: Duration::ZERO, received: None });
        self.say(&format!("starting peer {name}, which knows nothing yet"))
    }

    pub(crate) fn interrupted(&mut self) -> Result<()> {
        self.say("interrupted: all processes end")
    }

    pub(crate) fn failed(&mut self, what: &str) -> Result<()> {
        self.failures += 1;
        self.say(&format!("FAILED: {what}"))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// How long a reduce takes here.
    pub(crate) fn median_reduce(&self) -> Duration {
        let mut sorted: Vec<_> = self.reduces.values().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    /// Takes in what a peer said, and tells of it if it is worth it.
    pub(crate) fn heard(&mut self, name: Name, line: &Line) -> Result<()> {
        match &line.event {
            Event::Joined { .. } => self.peer_joined(name, line.at)?,
            Event::Voted { took, .. } => {
                if let Some(newcomer) = &mut self.newcomer
                    && newcomer.received.is_none()
                {
                    newcomer.vote = newcomer.vote.max(*took);
                }
            }
            Event::Synced { rx_bytes, took, .. } => {
                self.moved_bytes += rx_bytes;
                if let Some(newcomer) = self.newcomer.as_mut().filter(|newcomer| newcomer.name == name) {
                    newcomer.received.get_or_insert((*rx_bytes, *took));
                }
            }
            Event::Began { .. } => {}
            Event::Aborted { step, why } => match &mut self.kill {
                Some(kill) if kill.step == *step => {
                    kill.aborted.entry(name).or_insert(line.at);
                }
                _ => self.say(&format!("peer {name}: step {step} is tried again: {why}"))?,
            },
            Event::Alone { step } => {
                self.say_at(
                    line.at,
                    &format!("peer {name} is alone after step {step} and waits for another"),
                )?;
            }
            Event::Stepped { .. } => self.peer_stepped(name, line)?,
            Event::Finished { step, hash } => {
                self.finished.insert(name, (*step, *hash));
            }
            Event::Failed { why } => self.failed(&format!("peer {name}: {why}"))?,
        }
        Ok(())
    }

    fn peer_joined(&mut self, name: Name, at: Moment) -> Result<()> {
        if let Some(newcomer) = self.newcomer.as_mut().filter(|newcomer| newcomer.name == name) {
            newcomer.joined = Some(at);
            return Ok(());
        }
        self.joined.insert(name);
        if self.joined.len() == self.demo.peers as usize {
            let names = spaced(self.joined.iter());
            self.say_at(at, &format!("peers {names} are in"))?;
        }
        Ok(())
    }

    fn peer_stepped(&mut self, name: Name, line: &Line) -> Result<()> {
        let Event::Stepped { step, world, reduce, retries, tx_bytes, loss, hash } = line.event else {
            return Ok(());
        };
        let shortest = self.reduces.entry(step).or_insert(reduce);
        *shortest = reduce.min(*shortest);
        self.moved_bytes += tx_bytes;
        let result = *self.results.entry(step).or_insert(StepResult { first: name, hash, world });
        let first = result.first;
        if result.hash != hash {
            self.differing.insert(step);
            self.failed(&format!("after step {step} peer {name} holds other bits than peer {first}"))?;
        }
        // Whoever took an operation for done that was aborted for others would have had other peers in it.
        if result.world != world {
            let worlds = format!("{world} peers for {name}, {} for {first}", result.world);
            self.failed(&format!("the reduce of step {step} was one of {worlds}"))?;
        }
        if step > self.step {
            self.step = step;
            self.retried += u64::from(retries > 0);
            self.results.retain(|old, _| old + RESULTS_KEPT > step);
            if line.at.since(self.told_progress) >= PROGRESS_EVERY || step == self.demo.steps {
                self.told_progress = line.at;
                let speed = gigabytes_per_second(self.demo.size, reduce);
                let (took, steps) = (millis(reduce), self.demo.steps);
                let text =
                    format!("step {step:>3}/{steps}  {world} peers  reduce {took} ({speed})  loss {loss:.4}");
                self.say_at(line.at, &text)?;
            }
        }
        self.check_kill(name, step, line.at)?;
        self.check_newcomer(name)
    }

    /// Once all survivors have done the step that lost a peer, it can be told how they took it.
    fn check_kill(&mut self, name: Name, step: u64, at: Moment) -> Result<()> {
        let Some(kill) = self.kill.as_mut().filter(|kill| kill.step == step) else { return Ok(()) };
        if !kill.survivors.contains(&name) {
            return Ok(());
        }
        kill.redone.insert(name, at);
        if kill.redone.len() < kill.survivors.len() {
            return Ok(());
        }
        let Some(kill) = self.kill.take() else { return Ok(()) };
        let last = |moments: &BTreeMap<Name, Moment>| {
            millis(moments.values().max().map_or(Duration::ZERO, |at| at.since(kill.at)))
        };
        let (dead, survivors) = (kill.name, spaced(kill.survivors.iter()));
        let bits = if self.differing.contains(&step) { "but other bits" } else { "same bits on all" };
        let text = if kill.aborted.is_empty() {
            format!("peer {dead} had done its part: no error on {survivors}, {bits}")
        } else {
            // Who calls only after the abort finds itself in the second attempt of the others.
            let late = spaced(kill.survivors.iter().filter(|name| !kill.aborted.contains_key(name)));
            let late = if late.is_empty() { late } else { format!(" ({late} came later)") };
            let (some, error, redone) =
                (spaced(kill.aborted.keys()), last(&kill.aborted), last(&kill.redone));
            format!("peer {dead} is gone: error on {some} at +{error}{late}, retried by +{redone}, {bits}")
        };
        self.say_at(at, &text)
    }

    /// Its first step shows that it has all it needs.
    fn check_newcomer(&mut self, name: Name) -> Result<()> {
        let Some(newcomer) = self.newcomer.take_if(|newcomer| newcomer.name == name) else { return Ok(()) };
        let (bytes, took) = newcomer.received.unwrap_or_default();
        if bytes < self.state_size().0 {
            self.failed(&format!("peer {name} takes part, but has received only {}", ByteSize(bytes)))?;
        }
        self.joined.insert(name);
        let text = format!(
            "peer {name} joined: in within {} of the vote, received {} of state in {}",
            millis(newcomer.vote),
            ByteSize(bytes),
            millis(took)
        );
        self.say_at(newcomer.joined.unwrap_or(self.begin), &text)
    }

    /// The summary, and whether everything held.
    pub(crate) fn conclude(mut self) -> Result<bool> {
        if let Some(newcomer) = self.newcomer.take() {
            self.failed(&format!("peer {} never took part", newcomer.name))?;
        }
        if let Some(kill) = self.kill.take() {
            self.failed(&format!("nobody got over the death of peer {}", kill.name))?;
        }
        let hashes: BTreeSet<_> = self.finished.values().copied().collect();
        let names = spaced(self.finished.keys());
        if self.finished.len() != self.demo.peers as usize
            || hashes.iter().any(|(step, _)| *step != self.demo.steps)
        {
            self.failed(&format!("not all peers got to the end, only: {names}"))?;
        }
        let state = match hashes.iter().next() {
            Some((_, hash)) if hashes.len() == 1 => format!("{hash:016x}, same bits on all ({names})"),
            _ => {
                self.failed("the final states differ")?;
                "not the same on all".into()
            }
        };
        let median = self.median_reduce();
        let took = Moment::now().since(self.begin).as_secs_f64();
        let (step, retried) = (self.step, self.retried);
        let (moved, size) = (ByteSize(self.moved_bytes), self.demo.size);
        let (median, speed) = (millis(median), gigabytes_per_second(size, median));
        let (started, ended) = (self.joined.len(), self.finished.len());
        let verdict = if self.has_failed() { "NOT everything held" } else { "everything held" };
        self.print(&format!(
            "\n  steps        {step} in {took:.1} s, {retried} of them at the second attempt\n  \
             peers        {started} took part, {ended} at the end\n  \
             moved        {moved} from peer to peer\n  \
             all-reduce   {size} in {median}, {speed} (median, from when the last peer is there)\n  \
             final state  {state}\n\n{verdict}"
        ))?;
        Ok(!self.has_failed())
    }

    fn state_size(&self) -> ByteSize {
        ByteSize(self.demo.size.0 * STATE_TENSORS)
    }

    fn say(&mut self, text: &str) -> Result<()> {
        self.say_at(Moment::now(), text)
    }

    fn say_at(&mut self, at: Moment, text: &str) -> Result<()> {
        let seconds = at.since(self.begin).as_secs_f64();
        self.print(&format!("{seconds:>7.2} s  {text}"))
    }

    fn print(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "{text}").and_then(|()| self.out.flush()).context("standard output")
    }
}

fn spaced<'a>(names: impl Iterator<Item = &'a Name>) -> String {
    names.map(Name::to_string).collect::<Vec<_>>().join(" ")
}

fn millis(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

fn gigabytes_per_second(size: ByteSize, took: Duration) -> String {
    format!("{:.2} GB/s", size.0 as f64 / took.as_secs_f64().max(1e-6) / 1e9)
}
