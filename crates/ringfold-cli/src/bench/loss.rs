//! Measures all-reduces that lose a peer on emulated hosts: `ringfold bench --lab PROFILE --kill-at 80%`.
//!
//! Each reduce that loses a peer has its own processes. They first do a plain and a resumable reduce, which are timed and find
//! the bandwidths of the links. Then the last rank is killed with -9 in the middle of another one. With `resume` the calls of
//! the survivors continue; without it they fail and are repeated.

mod rank;
mod report;

use super::arguments::Bench;
use super::children::{Children, lines, next};
use super::interrupt::Interrupt;
use super::lab::{BenchLab, LabOptions};
use super::output::{print, write};
use crate::invocation::Invocation;
use crate::lab::LabMaster;
use crate::size::ByteSize;
use anyhow::{Context, Result, bail};
pub use rank::LossRankArguments;
use rank::{Order, RankLine, Reduced};
use report::{LossReport, LossRun};
use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::str::FromStr;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long a step of a run may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(900);
/// How often a run may be repeated whose reduce was complete before the kill.
const REPEATS_MAX: u32 = 4;
/// With more ranks the sums of f32 would not be exact.
const WORLD_MAX: usize = 12;

/// When a peer is killed, as a share of a full reduce.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct KillAt(pub(super) f64);

impl FromStr for KillAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        match percent {
            Some(percent) if percent > 0.0 && percent < 100.0 => Ok(Self(percent / 100.0)),
            _ => Err(format!("invalid time {text:?}: must be more than 0% and less than 100%")),
        }
    }
}

/// Measures and prints.
pub(super) fn run(
    bench: &Bench,
    kill_at: KillAt,
    invocation: &Invocation,
    interrupt: &Interrupt,
) -> Result<()> {
    let options = bench.lab()?.context("no emulated network")?;
    let sizes = bench.given_sizes().context("--kill-at needs --sizes")?;
    let mut reports = Vec::new();
    for &world in &bench.world {
        let world = world as usize;
        if !(3..=WORLD_MAX).contains(&world) {
            bail!("invalid number of ranks {world}: must be 3..={WORLD_MAX}, of which one is killed");
        }
        for &size in &sizes {
            let measurement = Measurement { options: &options, world, size, kill_at, invocation, interrupt };
            let mut report = LossReport::new(bench.lab.as_deref().unwrap_or_default(), world, size, kill_at);
            if !bench.is_quiet() {
                print(&report.header())?;
            }
            for number in 1..=bench.effort().runs {
                for resume in [true, false] {
                    let run = measurement.run(number, resume, bench.effort().warmup)?;
                    if !bench.is_quiet() {
                        print(&run.row())?;
                    }
                    report.runs.push(run);
                }
            }
            if !bench.is_quiet() {
                print(&report.summary())?;
            }
            reports.push(report);
        }
    }
    if let Some(path) = &bench.json {
        write(path, &format!("{}\n", report::json(&reports)?))?;
    }
    Ok(())
}

/// What all runs of a size have in common.
struct Measurement<'a> {
    options: &'a LabOptions,
    world: usize,
    size: ByteSize,
    kill_at: KillAt,
    invocation: &'a Invocation,
    interrupt: &'a Interrupt,
}

impl Measurement<'_> {
    /// Loses a rank in the middle of a reduce.
    fn run(&self, number: u32, resume: bool, warmup: u64) -> Result<LossRun> {
        for _ in 0..=REPEATS_MAX {
            if let Some(run) = self.try_run(number, resume, warmup)? {
                return Ok(run);
            }
        }
        bail!(
            "{} reduces in a row were complete before the kill: the times vary too much, or the size is too small",
            REPEATS_MAX + 1
        )
    }

    /// Starts the processes, and loses one of them. None if the reduce was complete before.
    fn try_run(&self, number: u32, resume: bool, warmup: u64) -> Result<Option<LossRun>> {
        let lab = BenchLab::start(self.options, self.world)?;
        let master = LabMaster::start(lab.first(), self.invocation, &[])?;
        let mut ranks = self.start_ranks(&lab, &master)?;
        for _ in 0..warmup {
            ranks.reduce(Order { resume: false }, self.interrupt)?;
        }
        let plain = ranks.reduce(Order { resume: false }, self.interrupt)?;
        let full = ranks.reduce(Order { resume: true }, self.interrupt)?;
        let after_s = self.kill_at.0 * full.seconds;
        let Some(lost) = ranks.lose_one(Order { resume }, after_s, self.interrupt)? else { return Ok(None) };
        let survivors = ranks.reduce(Order { resume: false }, self.interrupt)?;
        Ok(Some(LossRun {
            run: number,
            resume,
            plain_s: plain.seconds,
            full_s: full.seconds,
            survivors_s: survivors.seconds,
            kill_s: lost.kill_s,
            rest_s: lost.step.seconds - lost.kill_s,
            calls: lost.step.calls,
            sent_bytes: lost.step.sent_bytes,
        }))
    }

    fn start_ranks(&self, lab: &BenchLab, master: &LabMaster) -> Result<Ranks> {
        let mut ranks = Ranks { children: Children(Vec::new()), inputs: Vec::new(), outputs: Vec::new() };
        for rank in 0..self.world {
            let mut command = self.invocation.command()?;
            command.args(["bench-loss-rank", "--master", &master.address, "--rank", &rank.to_string()]);
            command.args(["--world", &self.world.to_string(), "--count", &(self.size.0 / 4).to_string()]);
            let mut command = lab.enclose(rank, &command);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            ranks.children.0.push(command.spawn().context("cannot start a rank")?);
            let child = ranks.children.0.last_mut().context("no rank")?;
            ranks.inputs.push(child.stdin.take().context("a rank has no input")?);
            ranks.outputs.push(lines(child.stdout.take())?);
        }
        Ok(ranks)
    }
}

/// The processes of a run. The last one may have been killed.
struct Ranks {
    children: Children,
    inputs: Vec<ChildStdin>,
    outputs: Vec<Receiver<String>>,
}

/// A reduce, over all ranks.
struct Step {
    /// From the first call to the last result.
    seconds: f64,
    /// The most calls of a rank until it had the result.
    calls: u32,
    /// The most payload bytes that a rank sent in the operation that gave the result.
    sent_bytes: u64,
}

/// A reduce that lost a rank.
struct LostStep {
    step: Step,
    /// From the first call to the kill.
    kill_s: f64,
}

impl Ranks {
    fn reduce(&mut self, order: Order, interrupt: &Interrupt) -> Result<Step> {
        self.begin(order, interrupt)?;
        let results = self.finish(interrupt)?;
        if let Some(result) = results.iter().find(|result| result.world != results.len()) {
            bail!("a result has {} of {} ranks", result.world, results.len());
        }
        Step::of(&results)
    }

    /// Begins a reduce, kills the last rank after some time, and waits for the others. None if the killed one is in the result.
    fn lose_one(&mut self, order: Order, after_s: f64, interrupt: &Interrupt) -> Result<Option<LostStep>> {
        let begun = Instant::now();
        let began_ns = self.begin(order, interrupt)?;
        let due = began_ns + (after_s * 1e9) as u64;
        while rank::now_ns() < due {
            interrupt.check()?;
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(rank::now_ns()).min(50_000_000)));
            if begun.elapsed() > STEP_TIMEOUT {
                bail!("timed out after {STEP_TIMEOUT:?} waiting for the time of the kill");
            }
        }
        let mut last = self.children.0.pop().context("no rank")?;
        last.kill().context("cannot kill a rank")?;
        let killed_ns = rank::now_ns();
        last.wait().context("cannot wait for a killed rank")?;
        self.inputs.pop();
        self.outputs.pop();
        let results = self.finish(interrupt)?;
        let worlds: Vec<_> = results.iter().map(|result| result.world).collect();
        if worlds.iter().all(|world| *world == results.len() + 1) {
            return Ok(None);
        }
        if worlds.iter().any(|world| *world != results.len()) {
            bail!("the results of {} survivors have {worlds:?} ranks", results.len());
        }
        let first = results.iter().map(|result| result.begun_ns).min().unwrap_or(killed_ns);
        Ok(Some(LostStep { step: Step::of(&results)?, kill_s: killed_ns.saturating_sub(first) as f64 / 1e9 }))
    }

    /// All ranks fill their buffers, and then call. Returns the time of the call.
    fn begin(&mut self, order: Order, interrupt: &Interrupt) -> Result<u64> {
        self.tell(&serde_json::to_string(&order)?, interrupt)?;
        for output in &self.outputs {
            match next(output, interrupt, STEP_TIMEOUT)? {
                RankLine::Ready => {}
                RankLine::Reduced(_) => bail!("a rank has a result too early"),
            }
        }
        let began_ns = rank::now_ns();
        self.tell("go", interrupt)?;
        Ok(began_ns)
    }

    fn tell(&mut self, line: &str, interrupt: &Interrupt) -> Result<()> {
        for input in &mut self.inputs {
            let told = writeln!(input, "{line}").and_then(|()| input.flush());
            if told.is_err() {
                interrupt.check()?;
                bail!("a rank ended early");
            }
        }
        Ok(())
    }

    /// The results of all ranks, which have checked them.
    fn finish(&mut self, interrupt: &Interrupt) -> Result<Vec<Reduced>> {
        let mut results = Vec::new();
        for output in &self.outputs {
            match next(output, interrupt, STEP_TIMEOUT)? {
                RankLine::Reduced(result) => results.push(result),
                RankLine::Ready => bail!("a rank has no result"),
            }
        }
        Ok(results)
    }
}

impl Step {
    fn of(results: &[Reduced]) -> Result<Self> {
        let begun = results.iter().map(|result| result.begun_ns).min().context("no ranks")?;
        let done = results.iter().map(|result| result.done_ns).max().context("no ranks")?;
        Ok(Self {
            seconds: done.saturating_sub(begun) as f64 / 1e9,
            calls: results.iter().map(|result| result.calls).max().unwrap_or(0),
            sent_bytes: results.iter().map(|result| result.sent_bytes).max().unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_kill_is_a_share() {
        assert_eq!("80%".parse(), Ok(KillAt(0.8)));
        assert_eq!("12.5 %".parse(), Ok(KillAt(0.125)));
        for invalid in ["80", "0%", "100%", "-1%", "%", "NaN%", "0.8"] {
            assert!(invalid.parse::<KillAt>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_step_lasts_from_the_first_call_to_the_last_result() {
        let result =
            |begun_ns, done_ns, calls| Reduced { begun_ns, done_ns, world: 2, calls, sent_bytes: done_ns };
        let step =
            Step::of(&[result(1_000_000_000, 5_000_000_000, 1), result(2_000_000_000, 4_000_000_000, 3)]);
        let step = step.unwrap();
        assert_eq!((step.seconds, step.calls, step.sent_bytes), (4.0, 3, 5_000_000_000));
        assert!(Step::of(&[]).is_err());
    }
}
