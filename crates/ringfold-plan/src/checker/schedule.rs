//! In which order things happen: who is polled, which link delivers, when a put is read and reported.

use super::symbol::mix;
use core::fmt;

/// An order of events: reproducible from its two parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// What it is biased to.
    pub policy: Policy,
    /// Where chance begins.
    pub seed: u64,
}

/// What a schedule is biased to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Nothing.
    Even,
    /// One rank does, and gets, something only when nobody else can.
    SlowRank,
    /// What was handed over last is delivered first, as far as links keep their order.
    NewestFirst,
    /// Memory is read, and puts are reported as flushed, only when nothing else can happen.
    LateFlush,
    /// Memory is read, and puts are reported as flushed, before they are delivered.
    EarlyFlush,
    /// Ranks begin only when nothing else can happen.
    LateStart,
}

impl Schedule {
    /// The n-th schedule: policies take turns, so a few numbers in a row have all of them.
    pub fn numbered(n: u64) -> Self {
        let policy = match n % 6 {
            0 => Policy::Even,
            1 => Policy::LateFlush,
            2 => Policy::SlowRank,
            3 => Policy::NewestFirst,
            4 => Policy::EarlyFlush,
            _ => Policy::LateStart,
        };
        Self { policy, seed: n }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "schedule {:?} of seed {}", self.policy, self.seed)
    }
}

/// Something that can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    Start(usize),
    Poll(usize),
    Deliver { from: usize, to: usize, at: u64 },
    ReadAhead { from: usize, to: usize },
    Report(usize),
}

/// Chooses by a schedule.
#[derive(Clone, Debug)]
pub(super) struct Chooser {
    policy: Policy,
    slow: usize,
    state: u64,
}

impl Chooser {
    pub(super) fn new(schedule: Schedule, world: usize) -> Self {
        let state = mix(0x0dd5, schedule.seed);
        Self { policy: schedule.policy, slow: state as usize % world, state }
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.state = mix(self.state, 1);
        (self.state >> 16) as usize % end
    }

    /// One of what can happen. Those that the policy puts off come last of all.
    pub(super) fn pick(&mut self, choices: &[Choice]) -> Choice {
        let newest = self.policy == Policy::NewestFirst && self.below(4) > 0;
        let n = self.below(usize::MAX);
        let eager = choices.iter().filter(|choice| !self.puts_off(choice)).count();
        let candidates = || choices.iter().filter(|choice| eager == 0 || !self.puts_off(choice));
        if newest && let Some(last) = candidates().max_by_key(|choice| newness(choice)) {
            return *last;
        }
        let wanted = if eager > 0 { eager } else { choices.len() };
        candidates().nth(n % wanted).copied().unwrap_or(choices[0])
    }

    fn puts_off(&self, choice: &Choice) -> bool {
        match (self.policy, *choice) {
            (Policy::SlowRank, Choice::Start(r) | Choice::Poll(r) | Choice::Report(r)) => r == self.slow,
            (Policy::SlowRank, Choice::Deliver { to, .. }) => to == self.slow,
            (Policy::LateFlush, Choice::ReadAhead { .. } | Choice::Report(_)) => true,
            (Policy::EarlyFlush, Choice::Deliver { .. }) => true,
            (Policy::LateStart, Choice::Start(_)) => true,
            _ => false,
        }
    }
}

fn newness(choice: &Choice) -> Option<u64> {
    if let Choice::Deliver { at, .. } = choice { Some(*at) } else { None }
}
