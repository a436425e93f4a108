//! Records the steps of all peers and checks that they agree.

use super::summary::Summary;
use crate::PeerReply;
use std::collections::BTreeMap;

/// The number of steps kept.
const REVISIONS_MAX: usize = 20_000;
/// An abort later than this after a kill is not counted as its effect.
const EFFECT_MAX_US: u64 = 10_000_000;
/// How long after its death a peer may appear in reported results: a busy machine reports late.
const LATE_REPORT_US: u64 = 10_000_000;

/// The steps of a run. Each revision has one state, the same on all peers.
#[derive(Default)]
pub(super) struct StepLog {
    steps: BTreeMap<u64, Step>,
    /// The times of all kills in microseconds.
    kills: Vec<u64>,
    /// The time of death of each number; none while its peer lives.
    died: BTreeMap<u32, u64>,
    from_kill_to_error: Vec<u64>,
    from_kill_to_result: Vec<u64>,
    reports: u64,
    slowest_us: u64,
}

/// The result of a step, which must be the same on all peers. `reporter` is the first that reported it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Step {
    world: u64,
    participants: u64,
    result_digest: String,
    state: String,
    reporter: u32,
}

impl StepLog {
    pub fn joined(&mut self, number: u32) {
        self.died.remove(&number);
    }

    pub fn killed(&mut self, number: u32, at_us: u64) {
        self.kills.push(at_us);
        self.died.insert(number, at_us);
    }

    /// A peer that left counts as dead, but not as killed.
    pub fn left(&mut self, number: u32, at_us: u64) {
        self.died.insert(number, at_us);
    }

    /// Records a step of a peer. `before` is the revision of its previous step.
    pub fn record(&mut self, reporter: u32, before: Option<u64>, reply: &PeerReply) -> Result<(), String> {
        let revision = reply.number("revision");
        if before.is_some_and(|before| revision != before + 1) {
            return Err(format!("made step {revision} after step {}", before.unwrap_or(0)));
        }
        let step = Step {
            world: reply.number("world"),
            participants: reply.number("participants"),
            result_digest: reply.text("digest").to_owned(),
            state: reply.text("state").to_owned(),
            reporter,
        };
        self.check_participants(&step, reply.number("at_us"))?;
        self.time(reply);
        match self.steps.get(&revision) {
            Some(known) if Step { reporter, ..known.clone() } != step => {
                return Err(format!(
                    "reports {step:?} for step {revision}, but peer {} reports {known:?}",
                    known.reporter
                ));
            }
            Some(_) => {}
            None => drop(self.steps.insert(revision, step)),
        }
        if self.steps.len() > REVISIONS_MAX {
            self.steps.pop_first();
        }
        Ok(())
    }

    /// A participant must have been alive.
    fn check_participants(&self, step: &Step, at_us: u64) -> Result<(), String> {
        for (&number, &died) in &self.died {
            if step.participants >> number & 1 == 1 && died + LATE_REPORT_US < at_us {
                let ago = (at_us - died) / 1000;
                return Err(format!("includes peer {number}, which was killed {ago} ms before: {step:?}"));
            }
        }
        Ok(())
    }

    fn time(&mut self, reply: &PeerReply) {
        self.reports += 1;
        self.slowest_us = self.slowest_us.max(reply.number("us"));
        let failed = reply.number("failed_at_us");
        let kill = self.kills.iter().rev().find(|kill| **kill <= failed);
        if let Some(kill) = kill.filter(|kill| failed - **kill < EFFECT_MAX_US) {
            self.from_kill_to_error.push(failed - kill);
            self.from_kill_to_result.push(reply.number("at_us").saturating_sub(*kill));
        }
    }

    /// The newest reported step.
    pub fn newest(&self) -> u64 {
        self.steps.last_key_value().map_or(0, |(revision, _)| *revision)
    }

    pub fn summarise(self, summary: &mut Summary) {
        summary.steps = self.newest();
        summary.reports = self.reports;
        summary.kills = self.kills.len() as u64;
        summary.slowest_step_us = self.slowest_us;
        summary.interrupted_steps = self.from_kill_to_error.len() as u64;
        summary.from_kill_to_error_us = median(self.from_kill_to_error);
        summary.from_kill_to_result_us = median(self.from_kill_to_result);
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(revision: u64, participants: &str, state: &str, failed_at_us: u64, at_us: u64) -> PeerReply {
        let line = format!(
            "step loop revision={revision} world=2 participants={participants} digest=00 state={state} \
             failed_at_us={failed_at_us} at_us={at_us} us=5"
        );
        line.parse().expect("an reply")
    }

    #[test]
    fn forks_gaps_and_dead_participants_are_detected() {
        let mut step_log = StepLog::default();
        step_log.record(0, None, &step(7, "0x3", "aa", 0, 10)).expect("the first report");
        step_log.record(1, Some(6), &step(7, "0x3", "aa", 0, 11)).expect("the same");
        step_log.record(1, Some(6), &step(7, "0x3", "ab", 0, 11)).expect_err("a fork");
        step_log.record(1, Some(6), &step(7, "0x7", "aa", 0, 11)).expect_err("other members");
        step_log.record(1, Some(6), &step(8, "0x3", "aa", 0, 11)).expect_err("a gap");
        step_log.killed(1, 100);
        step_log.record(0, Some(7), &step(8, "0x3", "aa", 0, 101)).expect("reported late");
        step_log
            .record(0, Some(8), &step(9, "0x3", "aa", 0, 100 + LATE_REPORT_US + 1))
            .expect_err("a dead participant");
    }

    #[test]
    fn an_abort_is_timed_from_the_previous_kill() {
        let mut step_log = StepLog::default();
        step_log.killed(2, 1000);
        step_log.killed(3, 5000);
        step_log.record(0, None, &step(1, "0x3", "aa", 1200, 1500)).expect("a step");
        step_log.record(0, Some(1), &step(2, "0x3", "ab", 0, 1600)).expect("an undisturbed step");
        let mut summary = Summary::default();
        step_log.summarise(&mut summary);
        assert_eq!((summary.from_kill_to_error_us, summary.from_kill_to_result_us), (200, 500));
        assert_eq!((summary.interrupted_steps, summary.kills, summary.steps, summary.reports), (1, 2, 2, 2));
    }
}
