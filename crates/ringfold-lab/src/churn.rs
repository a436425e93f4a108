//! Peers come and are killed all the time, and the others train on.
//!
//! One master, some peers that run the training loop of `lab-peer`, and every half second or so somebody more or less.
//! Peers check their own results ([`crate::tally`]); here it is checked that what they tell fits together, that nobody is
//! stuck, and that neither the master nor a peer that lives through it holds more and more. The figures are a
//! [`Summary`].

mod chance;
mod ledger;
mod summary;

pub use summary::Summary;

use crate::answer::{Answer, Outcome};
use crate::cast::{Master, Peer};
use crate::process::{Problem, Process};
use crate::usage::{self, Usage};
use chance::Chance;
use ledger::Ledger;
use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How long a peer that is not alone may take for a step before it counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// How long a peer or the master may take to end when told to.
const END_MAX: Duration = Duration::from_secs(30);
/// How often the peers' lines are read.
const LOOK: Duration = Duration::from_millis(5);
/// Peers have numbers below this. More than live at once: a number rests before it is given again, so that
/// contributions of the dead are seen.
const NUMBERS: u32 = 12;
/// The population in which usage is measured.
const CALM: usize = 3;
/// Steps that each peer makes in calm before usage is measured.
const CALM_STEPS: u64 = 10;
/// A witness lives for so long.
const ROUND: Duration = Duration::from_secs(30);
/// Churn before the first measurement, at most: caches fill, threads start.
const WARM_UP_MAX: Duration = Duration::from_secs(15);
/// Descriptors and threads that may come and go without being leaks.
const SLACK: usize = 4;
/// Growth of memory between two measurements that is no leak: caches differ by who is in the run.
const SLACK_BYTES: u64 = 12 << 20;

/// What is churned, and for how long.
#[derive(Clone, Debug)]
pub struct Churn {
    /// The program `lab-master`.
    pub master: PathBuf,
    /// The program `lab-peer`.
    pub peer: PathBuf,
    /// How long.
    pub time: Duration,
    /// The most peers at once.
    pub peers_max: usize,
    /// The time between two events, at least; and at most twice of it.
    pub pause: Duration,
    /// Decides what happens.
    pub seed: u64,
    /// The options of the peers' training loop.
    pub training: String,
    /// The name of their deadlines.
    pub pace: String,
    /// Where all that was printed is put when something is wrong.
    pub logs: PathBuf,
}

impl Churn {
    /// Does it. What went wrong comes with what the one concerned printed last.
    pub fn run(&self) -> Result<Summary, Problem> {
        let mut command = Command::new(&self.master);
        command.args(["--timing", &self.pace]);
        let mut scene = Scene {
            churn: self,
            chance: Chance::new(self.seed),
            master: Master::start(command)?,
            alive: Vec::new(),
            numbers: (0..NUMBERS).collect(),
            ledger: Ledger::default(),
            target: CALM,
            witness: None,
            lonely: Instant::now(),
            summary: Summary { seed: self.seed, seconds: self.time.as_secs_f64(), ..Summary::default() },
        };
        let _ = fs::remove_dir_all(&self.logs);
        let outcome = scene.play();
        if outcome.is_err() {
            scene.keep_all_logs();
        } else {
            let _ = fs::remove_dir_all(&self.logs);
        }
        outcome.map_err(|problem| {
            Problem::new(format!("{problem}\n  seed {}, logs in {:?}", self.seed, self.logs))
        })?;
        scene.ledger.summarise(&mut scene.summary);
        Ok(scene.summary)
    }
}

struct Scene<'a> {
    churn: &'a Churn,
    chance: Chance,
    master: Master,
    alive: Vec<Member>,
    /// Free numbers; the one that rested longest first.
    numbers: VecDeque<u32>,
    ledger: Ledger,
    /// The population that it grows or shrinks to.
    target: usize,
    /// Whoever is not killed, because it is measured.
    witness: Option<u32>,
    /// When there were last fewer than two.
    lonely: Instant,
    summary: Summary,
}

struct Member {
    peer: Peer,
    steps: u64,
    revision: Option<u64>,
    world: u64,
    /// When it last made a step, or was started.
    progress: Instant,
    aborts: u64,
    retries: u64,
    told_to_stop: bool,
}

impl Scene<'_> {
    fn play(&mut self) -> Result<(), Problem> {
        let empty = self.master.usage().map_err(|error| self.master.problem(format!("{error}")))?;
        let (began, time) = (Instant::now(), self.churn.time);
        self.churn_until(began + (time / 4).min(WARM_UP_MAX))?;
        let rounds = (time.as_secs() / ROUND.as_secs()).max(1) as u32;
        let mut first = None;
        let warm = began.elapsed();
        for round in 1..=rounds {
            let before = self.calm()?;
            let first = *first.get_or_insert(before.0);
            self.churn_until(began + warm + time.saturating_sub(warm) * round / rounds)?;
            let after = self.calm()?;
            compare(&self.master, first, after.0)?;
            self.summary.master_bytes = (first.anonymous_bytes, after.0.anonymous_bytes);
            let growth = after.1.anonymous_bytes.saturating_sub(before.1.anonymous_bytes);
            self.summary.witness_growth_bytes = self.summary.witness_growth_bytes.max(growth);
            let witness = self.alive.iter().find(|member| Some(member.peer.number()) == self.witness);
            witness.map_or(Ok(()), |witness| compare(&witness.peer, before.1, after.1))?;
            self.witness = None;
        }
        self.end(empty)
    }

    fn churn_until(&mut self, end: Instant) -> Result<(), Problem> {
        while Instant::now() < end {
            let events = if self.chance.once_in(8) { 2 } else { 1 };
            for _ in 0..events {
                self.event()?;
            }
            let more = self.chance.below(self.churn.pause.as_micros() as usize);
            self.watch(Instant::now() + self.churn.pause + Duration::from_micros(more as u64))?;
        }
        Ok(())
    }

    /// Somebody comes or is killed: towards a population that changes when it is reached.
    fn event(&mut self) -> Result<(), Problem> {
        if self.alive.len() == self.target {
            // Alone now and then, two or more else.
            let target = 2 + self.chance.below(self.churn.peers_max.saturating_sub(1));
            self.target = if self.chance.once_in(6) { 1 } else { target };
        }
        // Now and then against the trend.
        let grow = (self.alive.len() < self.target) != self.chance.once_in(5);
        if grow && self.alive.len() < self.churn.peers_max { self.join() } else { self.kill() }
    }

    fn join(&mut self) -> Result<(), Problem> {
        let Some(number) = self.numbers.pop_front() else { return Ok(()) };
        let mut command = Command::new(&self.churn.peer);
        command.args(["--timing", &self.churn.pace, "--peers-max", &NUMBERS.to_string()]);
        let mut peer = Peer::start(command, number, self.master.address())?;
        peer.tell("connect")?;
        peer.tell(&format!("loop {}", self.churn.training))?;
        self.summary.joins += 1;
        self.ledger.born(number);
        self.alive.push(Member {
            peer,
            steps: 0,
            revision: None,
            world: 0,
            progress: Instant::now(),
            aborts: 0,
            retries: 0,
            told_to_stop: false,
        });
        self.note_loneliness();
        Ok(())
    }

    /// Kills one, but never the last that knows the state, nor the one that is measured. As long as nobody told of a
    /// step, anybody may be the last.
    fn kill(&mut self) -> Result<(), Problem> {
        let knowing = self.alive.iter().filter(|member| member.steps > 0).count();
        let may_die = |member: &Member| {
            Some(member.peer.number()) != self.witness && knowing > usize::from(member.steps > 0)
        };
        let victims: Vec<usize> =
            (0..self.alive.len()).filter(|index| may_die(&self.alive[*index])).collect();
        if victims.is_empty() {
            return Ok(());
        }
        let mut victim = self.alive.remove(victims[self.chance.below(victims.len())]);
        // What it told before it is killed counts.
        self.hear(&mut victim)?;
        let number = victim.peer.number();
        self.ledger.killed(number, clock_us());
        victim.peer.kill9()?;
        self.hear(&mut victim)?;
        self.part_with(victim);
        self.note_loneliness();
        Ok(())
    }

    fn part_with(&mut self, member: Member) {
        self.keep_log(&member.peer);
        self.numbers.push_back(member.peer.number());
        self.summary.aborts += member.aborts;
        self.summary.retries += member.retries;
    }

    fn note_loneliness(&mut self) {
        if self.alive.len() < 2 {
            self.lonely = Instant::now();
        }
    }

    /// Hears all peers until then.
    fn watch(&mut self, until: Instant) -> Result<(), Problem> {
        loop {
            self.look()?;
            if Instant::now() >= until {
                return Ok(());
            }
            thread::sleep(LOOK);
        }
    }

    fn look(&mut self) -> Result<(), Problem> {
        self.note_loneliness();
        for index in 0..self.alive.len() {
            let mut member = self.alive.swap_remove(index);
            let heard = self.hear(&mut member).and_then(|()| self.check_life(&mut member));
            self.alive.push(member);
            let last = self.alive.len() - 1;
            self.alive.swap(index, last);
            heard?;
        }
        if self.master.is_running() { Ok(()) } else { Err(self.master.problem("ended")) }
    }

    /// Takes in what a peer printed.
    fn hear(&mut self, member: &mut Member) -> Result<(), Problem> {
        for line in member.peer.take_lines() {
            let Ok(answer) = line.parse::<Answer>() else { continue };
            match answer.outcome {
                Outcome::Failed => return Err(member.peer.problem(format!("failed: {answer}"))),
                Outcome::Ok => {}
                Outcome::Step => {
                    let noted = self.ledger.note(member.peer.number(), member.revision, &answer);
                    noted.map_err(|what| member.peer.problem(what))?;
                    member.steps += 1;
                    member.revision = Some(answer.number("revision"));
                    member.world = answer.number("world");
                    member.aborts = answer.number("aborts");
                    member.retries = answer.number("retries");
                    member.progress = Instant::now();
                }
            }
        }
        Ok(())
    }

    fn check_life(&self, member: &mut Member) -> Result<(), Problem> {
        if !member.told_to_stop && !member.peer.is_running() {
            return Err(member.peer.problem("ended by itself"));
        }
        let idle = member.progress.max(self.lonely).elapsed();
        if idle > STUCK_AFTER {
            let others = self.alive.len().saturating_sub(1);
            let stuck =
                format!("is stuck: no step for {idle:?}, with {others} others alive{}", stacks(&member.peer));
            let what = member.peer.problem(stuck);
            return Err(Problem::new(format!("{what}\n{}", self.master.problem("is the master"))));
        }
        Ok(())
    }

    /// Brings the population to a fixed size, and measures the master and a witness when all have settled.
    fn calm(&mut self) -> Result<(Usage, Usage), Problem> {
        let deadline = Instant::now() + STUCK_AFTER;
        while self.alive.len() != CALM || self.alive.iter().all(|member| member.steps == 0) {
            if self.alive.len() < CALM {
                self.join()?;
            } else if self.alive.len() > CALM {
                self.kill()?;
            }
            self.watch(Instant::now() + LOOK)?;
        }
        let from: Vec<u64> = self.alive.iter().map(|member| member.steps).collect();
        let settled =
            |member: &Member, from: u64| member.steps >= from + CALM_STEPS && member.world == CALM as u64;
        while !self.alive.iter().zip(&from).all(|(member, from)| settled(member, *from)) {
            self.watch(Instant::now() + LOOK)?;
            if Instant::now() > deadline {
                let worlds: Vec<_> = self.alive.iter().map(|m| (m.peer.number(), m.steps, m.world)).collect();
                let what =
                    format!("can't bring {CALM} peers together: (number, steps, world) are {worlds:?}");
                return Err(self.master.problem(what));
            }
        }
        if self.witness.is_none() {
            let chosen = self.chance.below(self.alive.len());
            self.witness = Some(self.alive[chosen].peer.number());
        }
        let witness = self.alive.iter().find(|member| Some(member.peer.number()) == self.witness);
        let witness = witness.map_or(&*self.master, |member| &*member.peer);
        Ok((least(&self.master)?, least(witness)?))
    }

    /// All are told to stop; the master ends with nobody left.
    fn end(&mut self, empty: Usage) -> Result<(), Problem> {
        for member in &mut self.alive {
            member.told_to_stop = true;
            member.peer.tell("stop")?;
            member.peer.tell("exit")?;
        }
        while let Some(mut member) = self.alive.pop() {
            let status = member.peer.wait_exit(END_MAX)?;
            if !status.success() {
                return Err(member.peer.problem("was told to stop and did not end well"));
            }
            self.ledger.left(member.peer.number(), clock_us());
            self.hear(&mut member)?;
            if !member.peer.lines().iter().any(|line| line.starts_with("ok loop")) {
                return Err(member.peer.problem("did not end its loop"));
            }
            self.part_with(member);
        }
        compare_descriptors(&self.master, empty, least(&self.master)?)?;
        self.master.terminate()?;
        self.master.wait_for_line("ended", END_MAX)?;
        let status = self.master.wait_exit(END_MAX)?;
        if status.success() { Ok(()) } else { Err(self.master.problem("did not end well")) }
    }

    fn keep_all_logs(&self) {
        self.keep_log(&self.master);
        for member in &self.alive {
            self.keep_log(&member.peer);
        }
        eprintln!("the logs of this churn are in {:?}", self.churn.logs);
    }

    /// Logs are of help, not of the matter: if they can't be written, the problem itself is still told.
    fn keep_log(&self, process: &Process) {
        let name = format!("{}-{}.log", process.name().replace(' ', "-"), process.pid());
        let lines = [process.error_lines(), process.lines()].concat().join("\n");
        let _ = fs::create_dir_all(&self.churn.logs);
        let _ = fs::write(self.churn.logs.join(name), lines);
    }
}

/// The least that a process holds within a moment: what it has for a moment only is no leak.
fn least(process: &Process) -> Result<Usage, Problem> {
    let mut least: Option<Usage> = None;
    for _ in 0..10 {
        let now = process.usage().map_err(|error| process.problem(format!("can't be measured: {error}")))?;
        least = Some(least.map_or(now, |least| Usage {
            descriptors: least.descriptors.min(now.descriptors),
            threads: least.threads.min(now.threads),
            resident_bytes: least.resident_bytes.min(now.resident_bytes),
            anonymous_bytes: least.anonymous_bytes.min(now.anonymous_bytes),
            processor_ticks: now.processor_ticks,
        }));
        thread::sleep(LOOK);
    }
    least.ok_or_else(|| process.problem("was not measured"))
}

fn compare(process: &Process, before: Usage, after: Usage) -> Result<(), Problem> {
    compare_descriptors(process, before, after)?;
    if after.anonymous_bytes > before.anonymous_bytes + SLACK_BYTES {
        return Err(process.problem(format!("holds more memory than before: {before:?}, then {after:?}")));
    }
    Ok(())
}

fn compare_descriptors(process: &Process, before: Usage, after: Usage) -> Result<(), Problem> {
    if after.descriptors > before.descriptors + SLACK || after.threads > before.threads + SLACK {
        let open = usage::descriptors(process.pid()).unwrap_or_default();
        return Err(process.problem(format!("leaks: {before:?}, then {after:?}; open are {open:?}")));
    }
    Ok(())
}

/// What the threads of a process wait for, as far as the system tells.
fn stacks(process: &Process) -> String {
    let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", process.pid())) else { return String::new() };
    let mut text = String::new();
    for task in tasks.flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        text += &format!("\n  thread {} waits in {}", read("comm").trim(), read("wchan"));
    }
    text
}

/// Microseconds of the clock that all processes share.
fn clock_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
