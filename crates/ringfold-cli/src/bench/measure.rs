//! Measures a point with all systems in turn, so that disturbances of the machine affect all of them alike.

use super::interrupt::Interrupted;
use super::point::Point;
use super::statistics::{Batch, Figures};
use super::system::System;
use super::system_ranks::{Readiness, SystemRanks};
use super::variant::Variant;
use crate::progress::Progress;
use anyhow::Result;
use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Batches of calls per system and point; the median is reported.
    pub(crate) runs: u32,
    /// The approximate time of all batches together.
    pub(crate) time: Duration,
    /// The number of calls before the first batch.
    pub(crate) warmup: u64,
    /// Whether results are checked.
    pub(crate) check: bool,
}

/// A system in the measurement. Its ranks end when it fails.
#[derive(Debug)]
pub(crate) struct MeasuredSystem {
    pub(crate) system: System,
    pub(crate) variant: Variant,
    pub(crate) ranks: Option<SystemRanks>,
    pub(crate) about: String,
}

/// The result of a point with one system.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum PointOutcome {
    Measured {
        figures: Figures,
        /// `ok`, or the error; none without a check.
        check: Option<String>,
    },
    /// The system does not support the point.
    Unsupported(String),
    /// The system failed, now or at an earlier point.
    Failed(String),
}

/// The least and the greatest number of calls per batch.
const CALLS_MIN: u64 = 2;
const CALLS_MAX: u64 = 10_000_000;

/// The state of one system at a point.
struct PointRuns {
    check: Option<String>,
    calls: u64,
    call: Duration,
    runs: Vec<Batch>,
}

/// Measures a point. Fails only if a signal interrupts it.
pub(crate) fn measure(
    point: &Point,
    world: usize,
    systems: &mut [MeasuredSystem],
    effort: Effort,
    progress: &mut Progress,
) -> Result<Vec<PointOutcome>> {
    let mut states: Vec<Result<PointRuns, PointOutcome>> = Vec::with_capacity(systems.len());
    for measured in systems.iter_mut() {
        if !measured.variant.applies_to(point.kind) {
            states.push(Err(PointOutcome::Unsupported(format!("the same as {}", Variant::PLAIN))));
            continue;
        }
        progress.step(&format!("{}: warm-up", measured.name()));
        states.push(match measured.attempt(|ranks| prepare(ranks, point, effort))? {
            Ok(prepared) => prepared.map_err(PointOutcome::Unsupported),
            Err(failed) => Err(PointOutcome::Failed(failed)),
        });
    }
    for run in 0..effort.runs {
        for (measured, state) in systems.iter_mut().zip(&mut states) {
            let Ok(current) = state else { continue };
            progress.step(&format!("{}: run {} of {}", measured.name(), run + 1, effort.runs));
            // The first calls after the other systems' turns are slow; they are not timed.
            let lead = (current.calls / 20).max(1);
            let expected =
                current.call.saturating_mul((lead + current.calls).min(u64::from(u32::MAX)) as u32);
            match measured.attempt(|ranks| ranks.time(lead, current.calls, expected))? {
                Ok(run) => current.runs.push(run),
                Err(failed) => *state = Err(PointOutcome::Failed(failed)),
            }
        }
    }
    let conclude = |state: Result<PointRuns, PointOutcome>| match state {
        Err(outcome) => outcome,
        Ok(PointRuns { runs, check, .. }) => match Figures::of(point, world, &runs) {
            Some(figures) => PointOutcome::Measured { figures, check },
            None => PointOutcome::Failed("no batch completed".into()),
        },
    };
    Ok(states.into_iter().map(conclude).collect())
}

/// Prepares, checks, warms up, and determines the number of calls per batch.
fn prepare(ranks: &mut SystemRanks, point: &Point, effort: Effort) -> Result<Result<PointRuns, String>> {
    let check = match ranks.prepare(*point, effort.check)? {
        Readiness::Ready(check) => check,
        Readiness::Unsupported(why) => return Ok(Err(why)),
    };
    let target_ns = (effort.time / effort.runs.max(1)).as_nanos() as u64;
    let mut calls = 1;
    let mut lead = effort.warmup;
    let mut expected = Duration::ZERO;
    if lead > 0 {
        // On a slow network warming up takes minutes.
        let first = ranks.time(0, 1, Duration::ZERO)?;
        lead -= 1;
        expected = Duration::from_nanos(first.elapsed_ns.saturating_mul(lead + 1));
    }
    loop {
        let run = ranks.time(lead, calls, expected)?;
        let call_ns = (run.elapsed_ns / calls).max(1);
        let enough = (target_ns / call_ns).clamp(CALLS_MIN, CALLS_MAX);
        // A pilot of at least an eighth of a batch is exact enough; a shorter one is repeated with more calls.
        if calls * 8 >= enough || calls >= CALLS_MAX {
            let call = Duration::from_nanos(call_ns);
            return Ok(Ok(PointRuns { check, calls: enough, call, runs: Vec::new() }));
        }
        calls = (enough / 8).clamp(calls * 2, calls * 16).min(CALLS_MAX);
        lead = 0;
    }
}

impl MeasuredSystem {
    /// Whether it is Ringfold without a variant, which the others are compared with.
    pub(crate) fn is_plain_ringfold(&self) -> bool {
        self.system == System::Ringfold && self.variant == Variant::PLAIN
    }

    /// `gloo`, `ringfold`, `ringfold, integrity all`.
    pub(crate) fn name(&self) -> String {
        match self.variant {
            Variant::PLAIN => self.system.to_string(),
            variant => format!("{}, {variant}", self.system),
        }
    }

    /// Runs `work` with the ranks. If it fails, the ranks end and the inner result is the reason.
    fn attempt<T>(&mut self, work: impl FnOnce(&mut SystemRanks) -> Result<T>) -> Result<Result<T, String>> {
        let Some(ranks) = &mut self.ranks else { return Ok(Err("failed at an earlier point".into())) };
        match work(ranks) {
            Ok(done) => Ok(Ok(done)),
            Err(error) if error.is::<Interrupted>() => Err(error),
            Err(error) => {
                self.ranks = None;
                Ok(Err(format!("{error:#}")))
            }
        }
    }
}
