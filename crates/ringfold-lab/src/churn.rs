//! The churn test: peers join and are killed while the others train.
//!
//! There is one master. Peers run the training loop of `lab-peer`; every half second or so one joins or is killed. On an
//! emulated network paths are also cut for a while, and connections are reset. Peers check their own results
//! ([`crate::contributions`]). The churn test checks that their reports agree, that no peer is stuck, and that neither the
//! master nor a surviving peer leaks. The figures are a [`Summary`].

mod faults;
mod rng;
mod step_log;
mod summary;

pub use summary::Summary;

use crate::network::Profile;
use crate::peer_reply::{PeerReply, ReplyStatus};
use crate::process::{Process, ProcessError};
use crate::programs::{MasterProcess, PeerProcess};
use crate::usage::{self, Usage};
use faults::Faults;
use rng::Rng;
use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use step_log::StepLog;

/// A peer that is not alone and makes no step for this long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// How long a peer or the master may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the peers' lines are read.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Peers have numbers below this. There are more numbers than peers, so that a number is not reused at once and
/// contributions of dead peers are detected.
const NUMBERS: u32 = 12;
/// The number of peers while usage is measured.
const CALM_PEERS: usize = 3;
/// The steps of each peer before usage is measured.
const CALM_STEPS: u64 = 10;
/// How long the measured peer is spared.
const ROUND: Duration = Duration::from_secs(30);
/// The maximum of churn before the first measurement, to fill caches and start threads.
const WARM_UP_MAX: Duration = Duration::from_secs(15);
/// Growth in descriptors and threads that is not a leak.
const SLACK: usize = 4;
/// Growth of memory between two measurements that is not a leak: caches depend on the members.
const SLACK_BYTES: u64 = 12 << 20;

/// The parameters of a churn test.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Debug)]
pub struct Churn {
    pub master: PathBuf,
    pub peer: PathBuf,
    pub time: Duration,
    pub peers_max: usize,
    /// The minimum time between two events; the maximum is twice this.
    pub pause: Duration,
    pub seed: u64,
    /// The options of the peers' training loop.
    pub training: String,
    /// The name of their timing preset.
    pub timing_preset: String,
    /// The network of the peers, with faults of its own; loopback if there is none.
    pub network: Option<Profile>,
    /// The directory for the output of all processes after a failure.
    pub logs: PathBuf,
}

impl Churn {
    /// Runs the test. An error quotes the last output of the failed process.
    pub fn run(&self) -> Result<Summary, ProcessError> {
        let faults = self.network.as_ref().map(Faults::new).transpose().map_err(ProcessError::new)?;
        let mut command = match &faults {
            Some(faults) => {
                let mut command = faults.master_host().command(&self.master);
                command.args(["--listen", &format!("{}:0", faults.master_host().ipv4())]);
                command
            }
            None => Command::new(&self.master),
        };
        command.args(["--timing", &self.timing_preset]);
        let mut run = ChurnRun {
            churn: self,
            rng: Rng::new(self.seed),
            faults,
            master: MasterProcess::start(command)?,
            alive: Vec::new(),
            numbers: (0..NUMBERS).collect(),
            step_log: StepLog::default(),
            target: CALM_PEERS,
            measured: None,
            last_alone: Instant::now(),
            summary: Summary { seed: self.seed, seconds: self.time.as_secs_f64(), ..Summary::default() },
        };
        let _ = fs::remove_dir_all(&self.logs);
        let result = run.run();
        if result.is_err() {
            run.save_all_logs();
        } else {
            let _ = fs::remove_dir_all(&self.logs);
        }
        result.map_err(|error| {
            ProcessError::new(format!("{error}\n  seed {}, logs in {:?}", self.seed, self.logs))
        })?;
        run.step_log.summarise(&mut run.summary);
        if let Some(faults) = &run.faults {
            (run.summary.cuts, run.summary.resets) = (faults.cuts, faults.resets);
        }
        Ok(run.summary)
    }
}

struct ChurnRun<'a> {
    churn: &'a Churn,
    rng: Rng,
    master: MasterProcess,
    alive: Vec<ChurnPeer>,
    /// Free numbers, the least recently used first.
    numbers: VecDeque<u32>,
    step_log: StepLog,
    /// The number of peers that it grows or shrinks to.
    target: usize,
    /// The number of the measured peer, which is not killed.
    measured: Option<u32>,
    /// When there were last fewer than two peers.
    last_alone: Instant,
    summary: Summary,
    /// The last field: the processes end before their network.
    faults: Option<Faults>,
}

struct ChurnPeer {
    peer: PeerProcess,
    steps: u64,
    revision: Option<u64>,
    world: u64,
    /// When it last made a step, or was started.
    progress: Instant,
    aborts: u64,
    retries: u64,
    is_stopping: bool,
    /// It was evicted before its first step, because a path to it was cut (P11).
    is_refused: bool,
}

impl ChurnRun<'_> {
    fn run(&mut self) -> Result<(), ProcessError> {
        let empty = self.master.usage().map_err(|error| self.master.error(format!("{error}")))?;
        let (began, time) = (Instant::now(), self.churn.time);
        self.churn_until(began + (time / 4).min(WARM_UP_MAX))?;
        let rounds = (time.as_secs() / ROUND.as_secs()).max(1) as u32;
        let mut first = None;
        let warm = began.elapsed();
        for round in 1..=rounds {
            let before = self.calm()?;
            let first = *first.get_or_insert(before.0);
            // Chance alone would leave some short runs without a fault.
            self.kill()?;
            self.break_network();
            self.churn_until(began + warm + time.saturating_sub(warm) * round / rounds)?;
            let after = self.calm()?;
            compare(&self.master, first, after.0)?;
            self.summary.master_bytes = (first.anonymous_bytes, after.0.anonymous_bytes);
            let growth = after.1.anonymous_bytes.saturating_sub(before.1.anonymous_bytes);
            self.summary.peer_growth_bytes = self.summary.peer_growth_bytes.max(growth);
            let measured = self.alive.iter().find(|member| Some(member.peer.number()) == self.measured);
            measured.map_or(Ok(()), |member| compare(&member.peer, before.1, after.1))?;
            self.measured = None;
        }
        self.end(empty)
    }

    fn churn_until(&mut self, end: Instant) -> Result<(), ProcessError> {
        while Instant::now() < end {
            let events = if self.rng.once_in(8) { 2 } else { 1 };
            for _ in 0..events {
                self.event()?;
            }
            let more = self.rng.below(self.churn.pause.as_micros() as usize);
            self.watch(Instant::now() + self.churn.pause + Duration::from_micros(more as u64))?;
        }
        Ok(())
    }

    /// Starts or kills a peer, towards a target that changes when it is reached; or breaks something in the network.
    fn event(&mut self) -> Result<(), ProcessError> {
        if self.faults.is_some() && self.rng.once_in(2) {
            self.break_network();
            return Ok(());
        }
        if self.alive.len() == self.target {
            // Sometimes one peer, otherwise two or more.
            let target = 2 + self.rng.below(self.churn.peers_max.saturating_sub(1));
            self.target = if self.rng.once_in(6) { 1 } else { target };
        }
        // Sometimes away from the target.
        let grow = (self.alive.len() < self.target) != self.rng.once_in(5);
        if grow && self.alive.len() < self.churn.peers_max { self.join() } else { self.kill() }
    }

    fn break_network(&mut self) {
        if let Some(faults) = &mut self.faults {
            faults.event(&mut self.rng, self.master.address().port());
        }
    }

    fn join(&mut self) -> Result<(), ProcessError> {
        let Some(number) = self.numbers.pop_front() else { return Ok(()) };
        let program = &self.churn.peer;
        let on_host = self.faults.as_ref().map(|faults| faults.host(number).command(program));
        let mut command = on_host.unwrap_or_else(|| Command::new(program));
        command.args(["--timing", &self.churn.timing_preset, "--peers-max", &NUMBERS.to_string()]);
        if self.faults.is_some() {
            // While paths are cut, the votes of the others take long.
            command.args(["--connect-timeout-ms", "60000"]);
        }
        let mut peer = PeerProcess::start(command, number, self.master.address())?;
        peer.send("connect")?;
        peer.send(&format!("loop {}", self.churn.training))?;
        self.summary.joins += 1;
        self.step_log.joined(number);
        self.alive.push(ChurnPeer {
            peer,
            steps: 0,
            revision: None,
            world: 0,
            progress: Instant::now(),
            aborts: 0,
            retries: 0,
            is_stopping: false,
            is_refused: false,
        });
        self.update_last_alone();
        Ok(())
    }

    /// Kills a peer, but not the measured one, and not the last one that has the state. As long as no peer has
    /// reported a step, each may be the last.
    fn kill(&mut self) -> Result<(), ProcessError> {
        let holders = self.alive.iter().filter(|member| member.steps > 0).count();
        let may_die = |member: &ChurnPeer| {
            Some(member.peer.number()) != self.measured && holders > usize::from(member.steps > 0)
        };
        let victims: Vec<usize> =
            (0..self.alive.len()).filter(|index| may_die(&self.alive[*index])).collect();
        if victims.is_empty() {
            return Ok(());
        }
        let mut victim = self.alive.remove(victims[self.rng.below(victims.len())]);
        // Steps that it reported before the kill count.
        self.read_replies(&mut victim)?;
        let number = victim.peer.number();
        self.step_log.killed(number, clock_us());
        victim.peer.kill9()?;
        self.read_replies(&mut victim)?;
        self.remove(victim);
        self.update_last_alone();
        Ok(())
    }

    fn remove(&mut self, member: ChurnPeer) {
        self.save_log(&member.peer);
        self.numbers.push_back(member.peer.number());
        self.summary.aborts += member.aborts;
        self.summary.retries += member.retries;
    }

    fn update_last_alone(&mut self) {
        if self.alive.len() < 2 {
            self.last_alone = Instant::now();
        }
    }

    /// Polls all peers until the deadline.
    fn watch(&mut self, deadline: Instant) -> Result<(), ProcessError> {
        loop {
            self.poll()?;
            if Instant::now() >= deadline {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn poll(&mut self) -> Result<(), ProcessError> {
        self.update_last_alone();
        if let Some(faults) = &mut self.faults {
            faults.mend(Instant::now());
        }
        for index in 0..self.alive.len() {
            let mut member = self.alive.swap_remove(index);
            let result = self.read_replies(&mut member).and_then(|()| self.check_alive(&mut member));
            self.alive.push(member);
            let last = self.alive.len() - 1;
            self.alive.swap(index, last);
            result?;
        }
        for mut member in self.alive.extract_if(.., |member| member.is_refused).collect::<Vec<_>>() {
            member.peer.kill9()?;
            self.summary.refused += 1;
            self.remove(member);
        }
        if self.master.is_running() { Ok(()) } else { Err(self.master.error("ended")) }
    }

    /// Reads and records the replies of a peer.
    fn read_replies(&mut self, member: &mut ChurnPeer) -> Result<(), ProcessError> {
        for line in member.peer.take_lines() {
            let Ok(reply) = line.parse::<PeerReply>() else { continue };
            match reply.status {
                ReplyStatus::Failed if self.may_be_refused(member, &reply) => {
                    member.is_refused = true;
                    return Ok(());
                }
                ReplyStatus::Failed => return Err(member.peer.error(format!("failed: {reply}"))),
                ReplyStatus::Ok => {}
                ReplyStatus::Step => {
                    let recorded = self.step_log.record(member.peer.number(), member.revision, &reply);
                    recorded.map_err(|what| member.peer.error(what))?;
                    member.steps += 1;
                    member.revision = Some(reply.number("revision"));
                    member.world = reply.number("world");
                    member.aborts = reply.number("aborts");
                    member.retries = reply.number("retries");
                    member.progress = Instant::now();
                }
            }
        }
        Ok(())
    }

    /// Whether a new peer was evicted because a path to it is cut, or was lately: the others do not wait for it (P11).
    fn may_be_refused(&self, member: &ChurnPeer, reply: &PeerReply) -> bool {
        let was_cut = |faults: &Faults| faults.was_cut(member.peer.number());
        member.steps == 0 && reply.text("kind") == "Removed" && self.faults.as_ref().is_some_and(was_cut)
    }

    fn check_alive(&self, member: &mut ChurnPeer) -> Result<(), ProcessError> {
        if member.is_refused {
            return Ok(());
        }
        if !member.is_stopping && !member.peer.is_running() {
            return Err(member.peer.error("ended by itself"));
        }
        let idle = member.progress.max(self.last_alone).elapsed();
        if idle > STUCK_AFTER {
            let others = self.alive.len().saturating_sub(1);
            let stuck =
                format!("is stuck: no step for {idle:?}, with {others} others alive{}", stacks(&member.peer));
            let what = member.peer.error(stuck);
            return Err(ProcessError::new(format!("{what}\n{}", self.master.error("is the master"))));
        }
        Ok(())
    }

    /// Brings the number of peers to a fixed value, and measures the master and one peer.
    fn calm(&mut self) -> Result<(Usage, Usage), ProcessError> {
        if let Some(faults) = &mut self.faults {
            faults.mend_all();
        }
        let deadline = Instant::now() + STUCK_AFTER;
        while self.alive.len() != CALM_PEERS || self.alive.iter().all(|member| member.steps == 0) {
            if self.alive.len() < CALM_PEERS {
                self.join()?;
            } else if self.alive.len() > CALM_PEERS {
                self.kill()?;
            }
            self.watch(Instant::now() + POLL_INTERVAL)?;
        }
        let from: Vec<u64> = self.alive.iter().map(|member| member.steps).collect();
        let settled = |member: &ChurnPeer, from: u64| {
            member.steps >= from + CALM_STEPS && member.world == CALM_PEERS as u64
        };
        while !self.alive.iter().zip(&from).all(|(member, from)| settled(member, *from)) {
            self.watch(Instant::now() + POLL_INTERVAL)?;
            if Instant::now() > deadline {
                let worlds: Vec<_> = self.alive.iter().map(|m| (m.peer.number(), m.steps, m.world)).collect();
                let what =
                    format!("has no world of {CALM_PEERS} peers: (number, steps, world) are {worlds:?}");
                return Err(self.master.error(what));
            }
        }
        if self.measured.is_none() {
            let chosen = self.rng.below(self.alive.len());
            self.measured = Some(self.alive[chosen].peer.number());
        }
        let measured = self.alive.iter().find(|member| Some(member.peer.number()) == self.measured);
        let measured = measured.map_or(&*self.master, |member| &*member.peer);
        Ok((least_usage(&self.master)?, least_usage(measured)?))
    }

    /// Ends all peers, then the master.
    fn end(&mut self, empty: Usage) -> Result<(), ProcessError> {
        for member in &mut self.alive {
            member.is_stopping = true;
            member.peer.send("stop")?;
            member.peer.send("exit")?;
        }
        while let Some(mut member) = self.alive.pop() {
            let status = member.peer.wait_exit(END_TIMEOUT)?;
            if !status.success() {
                return Err(member.peer.error("ended with an error"));
            }
            self.step_log.left(member.peer.number(), clock_us());
            self.read_replies(&mut member)?;
            if !member.peer.lines().iter().any(|line| line.starts_with("ok loop")) {
                return Err(member.peer.error("did not end its loop"));
            }
            self.remove(member);
        }
        compare_descriptors(&self.master, empty, least_usage(&self.master)?)?;
        self.master.terminate()?;
        self.master.wait_for_line("ended", END_TIMEOUT)?;
        let status = self.master.wait_exit(END_TIMEOUT)?;
        if status.success() { Ok(()) } else { Err(self.master.error("ended with an error")) }
    }

    fn save_all_logs(&self) {
        self.save_log(&self.master);
        for member in &self.alive {
            self.save_log(&member.peer);
        }
        eprintln!("the logs of this churn are in {:?}", self.churn.logs);
    }

    /// Saves the output of a process. Errors are ignored: the failure itself is more important.
    fn save_log(&self, process: &Process) {
        let name = format!("{}-{}.log", process.name().replace(' ', "-"), process.pid());
        let lines = [process.error_lines(), process.lines()].concat().join("\n");
        let _ = fs::create_dir_all(&self.churn.logs);
        let _ = fs::write(self.churn.logs.join(name), lines);
    }
}

/// The least usage of a process in several measurements: brief use is not a leak.
fn least_usage(process: &Process) -> Result<Usage, ProcessError> {
    let mut least: Option<Usage> = None;
    for _ in 0..10 {
        let now = process.usage().map_err(|error| process.error(format!("cannot be measured: {error}")))?;
        least = Some(least.map_or(now, |least| Usage {
            descriptors: least.descriptors.min(now.descriptors),
            threads: least.threads.min(now.threads),
            resident_bytes: least.resident_bytes.min(now.resident_bytes),
            anonymous_bytes: least.anonymous_bytes.min(now.anonymous_bytes),
            processor_ticks: now.processor_ticks,
        }));
        thread::sleep(POLL_INTERVAL);
    }
    least.ok_or_else(|| process.error("was not measured"))
}

fn compare(process: &Process, before: Usage, after: Usage) -> Result<(), ProcessError> {
    compare_descriptors(process, before, after)?;
    if after.anonymous_bytes > before.anonymous_bytes + SLACK_BYTES {
        return Err(process.error(format!("leaks memory: {before:?}, then {after:?}")));
    }
    Ok(())
}

fn compare_descriptors(process: &Process, before: Usage, after: Usage) -> Result<(), ProcessError> {
    if after.descriptors > before.descriptors + SLACK || after.threads > before.threads + SLACK {
        let open = usage::descriptors(process.pid()).unwrap_or_default();
        return Err(process.error(format!("leaks: {before:?}, then {after:?}; open descriptors: {open:?}")));
    }
    Ok(())
}

/// The kernel functions in which the threads of a process wait.
fn stacks(process: &Process) -> String {
    let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", process.pid())) else { return String::new() };
    let mut text = String::new();
    for task in tasks.flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        text += &format!("\n  thread {} waits in {}", read("comm").trim(), read("wchan"));
    }
    text
}

/// Microseconds of the system clock, which all processes share.
fn clock_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
