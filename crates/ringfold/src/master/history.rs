//! What the events of the last minutes amount to: the last of them, and how much was reduced in each second.

use super::counters::Counters;
use super::snapshot::Snapshot;
use super::status::{EventEntry, HistorySecond, Status, ThroughputStatus};
use crate::journal::{Printable, format_time};
use ringfold_proto::event::{Event, Level};
use ringfold_proto::id::{GroupId, Tag};
use ringfold_proto::message::Outcome;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

/// Events that are kept for the status.
const EVENTS_MAX: usize = 200;

/// Seconds that are kept.
const SECONDS_MAX: usize = 300;

/// Rates are averages of this many seconds.
const RATE_SECONDS: usize = 10;

/// Sequences of operations whose last one is remembered.
const TAGS_MAX: usize = 4096;

/// Operations of one sequence that are further apart are not two steps of one loop.
const STEP_MAX: Duration = Duration::from_secs(600);

/// A reader of the events of the master.
pub(super) struct History {
    began: Instant,
    events: VecDeque<EventEntry>,
    /// The last one is the current second.
    seconds: VecDeque<Second>,
    current: u64,
    committed: u64,
    aborted: u64,
    bytes: u64,
    last_commit: HashMap<(GroupId, Tag), Instant>,
    events_total: u64,
    pub(super) counters: Counters,
}

#[derive(Clone, Copy, Default)]
struct Second {
    operations: u64,
    aborted: u64,
    bytes: u64,
    /// The sum of the times between two operations of one tag, and how many there were.
    steps: (f64, u64),
}

impl Second {
    fn step_s(&self) -> Option<f64> {
        let (sum, count) = self.steps;
        (count > 0).then(|| sum / count as f64)
    }
}

impl History {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            events: VecDeque::new(),
            seconds: VecDeque::from([Second::default()]),
            current: 0,
            committed: 0,
            aborted: 0,
            bytes: 0,
            last_commit: HashMap::new(),
            events_total: 0,
            counters: Counters::default(),
        }
    }

    /// Records an event.
    pub(super) fn note(&mut self, now: Instant, event: &Event) {
        self.advance(now);
        self.counters.note(event);
        if let Event::OpDecided { op, outcome, bytes } = event {
            let second = self.seconds.back_mut();
            let Some(second) = second else { return };
            match outcome {
                Outcome::Committed { .. } => {
                    second.operations += 1;
                    second.bytes += bytes;
                    self.committed += 1;
                    self.bytes += bytes;
                    if self.last_commit.len() >= TAGS_MAX {
                        self.last_commit.clear();
                    }
                    let before = self.last_commit.insert((op.epoch.group, op.tag), now);
                    if let Some(step) = before.map(|at| now - at).filter(|step| *step < STEP_MAX) {
                        second.steps.0 += step.as_secs_f64();
                        second.steps.1 += 1;
                        self.counters.steps.observe(step.as_secs_f64());
                    }
                }
                Outcome::Aborted(_) => {
                    second.aborted += 1;
                    self.aborted += 1;
                }
            }
        }
        let level = event.level();
        if level != Level::Debug {
            if self.events.len() >= EVENTS_MAX {
                self.events.pop_front();
            }
            self.events_total += 1;
            let time = format_time(SystemTime::now());
            let level = level.name().to_owned();
            self.events.push_back(EventEntry { time, level, text: Printable(event).to_string() });
        }
    }

    /// A status that was just made, and what a reader of several of them needs.
    pub(super) fn snapshot(&self, status: Status) -> Snapshot {
        Snapshot {
            status,
            events_total: self.events_total,
            seconds_total: self.current,
            counters: self.counters.clone(),
        }
    }

    /// The last events, the newest last.
    pub(super) fn events(&self) -> Vec<EventEntry> {
        self.events.iter().cloned().collect()
    }

    pub(super) fn throughput(&mut self, now: Instant) -> ThroughputStatus {
        self.advance(now);
        // The current second is not over.
        let complete = self.seconds.iter().rev().skip(1).take(RATE_SECONDS);
        let mut sum = Second::default();
        let mut seconds = 0;
        for second in complete {
            seconds += 1;
            sum.operations += second.operations;
            sum.bytes += second.bytes;
            sum.steps = (sum.steps.0 + second.steps.0, sum.steps.1 + second.steps.1);
        }
        let per_s = |count: u64| count as f64 / f64::from(seconds.max(1));
        ThroughputStatus {
            operations_per_s: per_s(sum.operations),
            bytes_per_s: per_s(sum.bytes),
            step_s: sum.step_s(),
            operations_total: self.committed,
            aborted_total: self.aborted,
            bytes_total: self.bytes,
        }
    }

    /// The complete seconds, the oldest first.
    pub(super) fn seconds(&mut self, now: Instant) -> Vec<HistorySecond> {
        self.advance(now);
        let complete = self.seconds.len() - 1;
        let entry = |second: &Second| HistorySecond {
            operations: second.operations,
            aborted: second.aborted,
            bytes: second.bytes,
            step_s: second.step_s(),
        };
        self.seconds.iter().take(complete).map(entry).collect()
    }

    /// Begins the seconds that have passed.
    fn advance(&mut self, now: Instant) {
        let second = now.saturating_duration_since(self.began).as_secs();
        let passed = second.saturating_sub(self.current).min(SECONDS_MAX as u64);
        self.current = self.current.max(second);
        for _ in 0..passed {
            if self.seconds.len() > SECONDS_MAX {
                self.seconds.pop_front();
            }
            self.seconds.push_back(Second::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::cause::{Cause, Wait};
    use ringfold_proto::id::OpId;

    #[test]
    fn rates_are_averages_of_complete_seconds() {
        let began = Instant::now();
        let mut history = History::new(began);
        let op = OpId::default();
        let committed = Event::OpDecided { op, outcome: Outcome::COMMITTED, bytes: 100 };
        for tenth in 0..20 {
            history.note(began + Duration::from_millis(100 * tenth), &committed);
        }
        let aborted = Outcome::Aborted(Cause::Timeout(Wait::for_master()));
        history
            .note(began + Duration::from_millis(2_500), &Event::OpDecided { op, outcome: aborted, bytes: 1 });
        let rates = history.throughput(began + Duration::from_millis(3_500));
        assert!(
            (rates.operations_per_s - 20.0 / 3.0).abs() < 1e-9
                && (rates.bytes_per_s - 2000.0 / 3.0).abs() < 1e-9
        );
        assert!((rates.step_s.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!((rates.operations_total, rates.aborted_total, rates.bytes_total), (20, 1, 2000));
        let seconds = history.seconds(began + Duration::from_millis(3_500));
        assert_eq!(
            seconds.iter().map(|s| (s.operations, s.aborted)).collect::<Vec<_>>(),
            [(10, 0), (10, 0), (0, 1)]
        );
        assert_eq!(history.seconds(began + Duration::from_secs(100_000)).len(), SECONDS_MAX);
    }

    #[test]
    fn events_are_bounded_and_printable() {
        let (began, mut history) = (Instant::now(), History::new(Instant::now()));
        let who = ringfold_proto::cause::PeerName { peer: Default::default(), name: "a\x1b[31m".into() };
        for _ in 0..EVENTS_MAX + 5 {
            history.note(began, &Event::Registered(who.clone()));
        }
        assert_eq!(history.events().len(), EVENTS_MAX);
        assert_eq!(history.events()[0].text, "a\u{fffd}[31m is registered");
    }
}
