//! What all peers said about their steps, and whether it fits together.

use super::summary::Summary;
use crate::Answer;
use std::collections::BTreeMap;

/// Steps that are remembered; nobody is that far behind.
const REVISIONS_MAX: usize = 20_000;
/// An abort that comes later than this after a kill is not told as its effect.
const EFFECT_MAX_US: u64 = 10_000_000;
/// How long after its death a peer may still have a part in what is reported: results that were there already, told
/// late by a busy machine.
const AFTERLIFE_US: u64 = 10_000_000;

/// The steps of a run. There is one state for each revision, whoever tells of it.
#[derive(Default)]
pub(super) struct Ledger {
    steps: BTreeMap<u64, Step>,
    /// When somebody was killed, in microseconds of the clock.
    kills: Vec<u64>,
    /// When the peer with a number was killed last; nothing while it lives.
    died: BTreeMap<u32, u64>,
    from_kill_to_error: Vec<u64>,
    from_kill_to_result: Vec<u64>,
    reports: u64,
    slowest_us: u64,
}

/// What must be the same on all peers that made a step.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Step {
    world: u64,
    parts: u64,
    parity: String,
    state: String,
    teller: u32,
}

impl Ledger {
    pub fn born(&mut self, number: u32) {
        self.died.remove(&number);
    }

    pub fn killed(&mut self, number: u32, at_us: u64) {
        self.kills.push(at_us);
        self.died.insert(number, at_us);
    }

    /// A peer that goes by itself is counted as one that died, but is no kill.
    pub fn left(&mut self, number: u32, at_us: u64) {
        self.died.insert(number, at_us);
    }

    /// A peer made a step; `before` is the revision of the one before.
    pub fn note(&mut self, teller: u32, before: Option<u64>, answer: &Answer) -> Result<(), String> {
        let revision = answer.number("revision");
        if before.is_some_and(|before| revision != before + 1) {
            return Err(format!("made step {revision} after step {}", before.unwrap_or(0)));
        }
        let step = Step {
            world: answer.number("world"),
            parts: answer.number("parts"),
            parity: answer.text("parity").to_owned(),
            state: answer.text("state").to_owned(),
            teller,
        };
        self.check_parts(&step, answer.number("at_us"))?;
        self.time(answer);
        match self.steps.get(&revision) {
            Some(known) if Step { teller, ..known.clone() } != step => {
                return Err(format!(
                    "tells {step:?} of step {revision}, but peer {} {known:?}",
                    known.teller
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

    /// Whoever is counted must have been there.
    fn check_parts(&self, step: &Step, at_us: u64) -> Result<(), String> {
        for (&number, &died) in &self.died {
            if step.parts >> number & 1 == 1 && died + AFTERLIFE_US < at_us {
                let ago = (at_us - died) / 1000;
                return Err(format!("counts peer {number}, which was killed {ago} ms before: {step:?}"));
            }
        }
        Ok(())
    }

    fn time(&mut self, answer: &Answer) {
        self.reports += 1;
        self.slowest_us = self.slowest_us.max(answer.number("us"));
        let failed = answer.number("failed_at_us");
        let kill = self.kills.iter().rev().find(|kill| **kill <= failed);
        if let Some(kill) = kill.filter(|kill| failed - **kill < EFFECT_MAX_US) {
            self.from_kill_to_error.push(failed - kill);
            self.from_kill_to_result.push(answer.number("at_us").saturating_sub(*kill));
        }
    }

    /// The newest step that anybody told of.
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

    fn told(revision: u64, parts: &str, state: &str, failed_at_us: u64, at_us: u64) -> Answer {
        let line = format!(
            "step loop revision={revision} world=2 parts={parts} parity=00 state={state} \
             failed_at_us={failed_at_us} at_us={at_us} us=5"
        );
        line.parse().expect("an answer")
    }

    #[test]
    fn forks_gaps_and_ghosts_are_seen() {
        let mut ledger = Ledger::default();
        ledger.note(0, None, &told(7, "0x3", "aa", 0, 10)).expect("the first tells what is so");
        ledger.note(1, Some(6), &told(7, "0x3", "aa", 0, 11)).expect("the same");
        ledger.note(1, Some(6), &told(7, "0x3", "ab", 0, 11)).expect_err("a fork");
        ledger.note(1, Some(6), &told(7, "0x7", "aa", 0, 11)).expect_err("other members");
        ledger.note(1, Some(6), &told(8, "0x3", "aa", 0, 11)).expect_err("a gap");
        ledger.killed(1, 100);
        ledger.note(0, Some(7), &told(8, "0x3", "aa", 0, 101)).expect("told late");
        ledger.note(0, Some(8), &told(9, "0x3", "aa", 0, 100 + AFTERLIFE_US + 1)).expect_err("a ghost");
    }

    #[test]
    fn an_abort_is_timed_from_the_kill_before_it() {
        let mut ledger = Ledger::default();
        ledger.killed(2, 1000);
        ledger.killed(3, 5000);
        ledger.note(0, None, &told(1, "0x3", "aa", 1200, 1500)).expect("a step");
        ledger.note(0, Some(1), &told(2, "0x3", "ab", 0, 1600)).expect("an undisturbed step");
        let mut summary = Summary::default();
        ledger.summarise(&mut summary);
        assert_eq!((summary.from_kill_to_error_us, summary.from_kill_to_result_us), (200, 500));
        assert_eq!((summary.interrupted_steps, summary.kills, summary.steps, summary.reports), (1, 2, 2, 2));
    }
}
