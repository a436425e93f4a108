//! Measures a point with all systems in turn, so that whatever the machine does meanwhile hits all alike.

use super::interrupt::Interrupted;
use super::point::Point;
use super::progress::Progress;
use super::statistics::{Figures, Run};
use super::system::System;
use super::team::{Readiness, Team};
use anyhow::Result;
use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Batches of calls per system and point; their median is told.
    pub(crate) runs: u32,
    /// How long all of them take together, about.
    pub(crate) time: Duration,
    /// Calls at least before the first one counts.
    pub(crate) warmup: u64,
    /// Whether results are looked at.
    pub(crate) check: bool,
}

/// A system in the measurement. Its team is gone when it has failed.
#[derive(Debug)]
pub(crate) struct Contestant {
    pub(crate) system: System,
    pub(crate) team: Option<Team>,
    pub(crate) about: String,
}

/// What came of a point with one system.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Outcome {
    Measured {
        figures: Figures,
        /// `ok`, or what is wrong; nothing if nobody looked.
        check: Option<String>,
    },
    /// There is no such thing.
    Unsupported(String),
    /// It failed, now or before.
    Failed(String),
}

/// Fewer calls than this are no run.
const CALLS_MIN: u64 = 2;
/// More calls than this tell nothing more.
const CALLS_MAX: u64 = 10_000_000;

/// What a team takes part in a point with.
struct Entry {
    check: Option<String>,
    calls: u64,
    call: Duration,
    runs: Vec<Run>,
}

/// Fails only if the user wants it to end.
pub(crate) fn measure(
    point: &Point,
    world: usize,
    contestants: &mut [Contestant],
    effort: Effort,
    progress: &mut Progress,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::with_capacity(contestants.len());
    let mut entries: Vec<Option<Entry>> = Vec::with_capacity(contestants.len());
    for contestant in contestants.iter_mut() {
        progress.step(&format!("{}: warm-up", contestant.system));
        let (entry, outcome) = match contestant.attempt(|team| enter(team, point, effort))? {
            Ok(Ok(entry)) => (Some(entry), None),
            Ok(Err(unsupported)) => (None, Some(Outcome::Unsupported(unsupported))),
            Err(failed) => (None, Some(Outcome::Failed(failed))),
        };
        entries.push(entry);
        outcomes.push(outcome);
    }
    for run in 0..effort.runs {
        for (contestant, (entry, outcome)) in
            contestants.iter_mut().zip(entries.iter_mut().zip(&mut outcomes))
        {
            let Some(current) = entry else { continue };
            progress.step(&format!("{}: run {} of {}", contestant.system, run + 1, effort.runs));
            // After a pause, and with others' data in the caches, the first calls are slow; they do not count.
            let lead = (current.calls / 20).max(1);
            let expected =
                current.call.saturating_mul((lead + current.calls).min(u64::from(u32::MAX)) as u32);
            match contestant.attempt(|team| team.time(lead, current.calls, expected))? {
                Ok(run) => current.runs.push(run),
                Err(failed) => {
                    *outcome = Some(Outcome::Failed(failed));
                    *entry = None;
                }
            }
        }
    }
    let conclude = |(entry, outcome): (Option<Entry>, Option<Outcome>)| {
        let figures =
            entry.and_then(|e| Figures::of(point, world, &e.runs).map(|figures| (figures, e.check)));
        outcome
            .or(figures.map(|(figures, check)| Outcome::Measured { figures, check }))
            .unwrap_or_else(|| Outcome::Failed("nothing was measured".into()))
    };
    Ok(entries.into_iter().zip(outcomes).map(conclude).collect())
}

/// Prepares, checks, warms up, and finds out how many calls make a run.
fn enter(team: &mut Team, point: &Point, effort: Effort) -> Result<Result<Entry, String>> {
    let check = match team.prepare(*point, effort.check)? {
        Readiness::Ready(check) => check,
        Readiness::Unsupported(why) => return Ok(Err(why)),
    };
    let target_ns = (effort.time / effort.runs.max(1)).as_nanos() as u64;
    let mut calls = 1;
    let mut lead = effort.warmup;
    loop {
        let run = team.time(lead, calls, Duration::ZERO)?;
        let call_ns = (run.elapsed_ns / calls).max(1);
        let enough = (target_ns / call_ns).clamp(CALLS_MIN, CALLS_MAX);
        // A pilot of an eighth of the time is as good as any; a shorter one only says by how much to go on.
        if calls * 8 >= enough || calls >= CALLS_MAX {
            return Ok(Ok(Entry {
                check,
                calls: enough,
                call: Duration::from_nanos(call_ns),
                runs: Vec::new(),
            }));
        }
        calls = (enough / 8).clamp(calls * 2, calls * 16).min(CALLS_MAX);
        lead = 0;
    }
}

impl Contestant {
    /// What the team made of it, or why it has failed, after which there is no team any more.
    fn attempt<T>(&mut self, work: impl FnOnce(&mut Team) -> Result<T>) -> Result<Result<T, String>> {
        let Some(team) = &mut self.team else { return Ok(Err("it failed before".into())) };
        match work(team) {
            Ok(done) => Ok(Ok(done)),
            Err(error) if error.is::<Interrupted>() => Err(error),
            Err(error) => {
                self.team = None;
                Ok(Err(format!("{error:#}")))
            }
        }
    }
}
