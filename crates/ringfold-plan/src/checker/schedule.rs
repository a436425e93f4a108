//! The order of events in a run: polls, deliveries, reads and flush reports of puts.

use super::symbol::mix;
use core::fmt;

/// A reproducible order of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The bias.
    pub policy: SchedulePolicy,
    /// The seed of the random choices.
    pub seed: u64,
}

/// The bias of a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchedulePolicy {
    /// None.
    Even,
    /// One rank progresses only when no other can.
    SlowRank,
    /// The newest frame is delivered first, within the order of links.
    NewestFirst,
    /// Puts are read and reported as flushed as late as possible.
    LateFlush,
    /// Puts are read and reported as flushed before they are delivered.
    EarlyFlush,
    /// Ranks start as late as possible.
    LateStart,
}

impl Schedule {
    /// The n-th schedule. Any six consecutive numbers cover all policies.
    pub fn numbered(n: u64) -> Self {
        let policy = match n % 6 {
            0 => SchedulePolicy::Even,
            1 => SchedulePolicy::LateFlush,
            2 => SchedulePolicy::SlowRank,
            3 => SchedulePolicy::NewestFirst,
            4 => SchedulePolicy::EarlyFlush,
            _ => SchedulePolicy::LateStart,
        };
        Self { policy, seed: n }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "schedule {:?} of seed {}", self.policy, self.seed)
    }
}

/// A possible next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NextEvent {
    Start(usize),
    Poll(usize),
    Deliver { from: usize, to: usize, at: u64 },
    ReadAhead { from: usize, to: usize },
    Report(usize),
}

/// Chooses the next event by a schedule.
#[derive(Clone, Debug)]
pub(super) struct Chooser {
    policy: SchedulePolicy,
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

    /// Chooses an event. Those that the policy delays come last.
    pub(super) fn pick(&mut self, choices: &[NextEvent]) -> NextEvent {
        let newest = self.policy == SchedulePolicy::NewestFirst && self.below(4) > 0;
        let n = self.below(usize::MAX);
        let eager = choices.iter().filter(|choice| !self.is_delayed(choice)).count();
        let candidates = || choices.iter().filter(|choice| eager == 0 || !self.is_delayed(choice));
        if newest && let Some(last) = candidates().max_by_key(|choice| newness(choice)) {
            return *last;
        }
        let wanted = if eager > 0 { eager } else { choices.len() };
        candidates().nth(n % wanted).copied().unwrap_or(choices[0])
    }

    fn is_delayed(&self, choice: &NextEvent) -> bool {
        match (self.policy, *choice) {
            (SchedulePolicy::SlowRank, NextEvent::Start(r) | NextEvent::Poll(r) | NextEvent::Report(r)) => {
                r == self.slow
            }
            (SchedulePolicy::SlowRank, NextEvent::Deliver { to, .. }) => to == self.slow,
            (SchedulePolicy::LateFlush, NextEvent::ReadAhead { .. } | NextEvent::Report(_)) => true,
            (SchedulePolicy::EarlyFlush, NextEvent::Deliver { .. }) => true,
            (SchedulePolicy::LateStart, NextEvent::Start(_)) => true,
            _ => false,
        }
    }
}

fn newness(choice: &NextEvent) -> Option<u64> {
    if let NextEvent::Deliver { at, .. } = choice { Some(*at) } else { None }
}
