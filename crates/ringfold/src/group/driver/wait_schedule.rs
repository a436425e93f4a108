//! When a rank says that it waits, and when it asks the ranks that it waits for.

use core::time::Duration;
use ringfold_proto::time::Time;

/// How long ranks have to answer before a report.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// The reports of one wait: warnings after a time, twice that time, and so on. Before each of them, and before the
/// deadline, the awaited ranks are asked what they do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WaitSchedule {
    /// Since when it waits.
    pub(super) since: Time,
    /// How often it has warned.
    warnings: u32,
    asked: Option<Asked>,
}

/// When ranks were asked, before which report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    report: Time,
    at: Time,
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitDue {
    /// Ask the awaited ranks.
    Ask,
    Warn,
}

/// When the reports of a wait come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReportTimes {
    /// The time to the first warning; none if there is no warning.
    pub(super) warn_after: Option<Duration>,
    pub(super) deadline: Time,
}

impl WaitSchedule {
    pub(super) fn new(since: Time) -> Self {
        Self { since, warnings: 0, asked: None }
    }

    /// It has made progress, and waits again since then.
    pub(super) fn restart(&mut self, since: Time) {
        if since > self.since {
            *self = Self::new(since);
        }
    }

    /// When [`Self::take_due`] has something; never, if only the deadline is left.
    pub(super) fn next(&self, times: &ReportTimes) -> Option<Time> {
        let (report, is_warning) = self.report(times);
        // A rank that was stopped itself asks late, and gives the others their time.
        let wait = report.since(self.since);
        let lead = (wait / 2).min(ANSWER_MAX);
        match self.asked.filter(|asked| asked.report == report) {
            Some(asked) => is_warning.then(|| report.max(asked.at + lead)),
            None => Some(self.since + (wait - lead)),
        }
    }

    /// What is due now.
    pub(super) fn take_due(&mut self, now: Time, times: &ReportTimes) -> Option<WaitDue> {
        self.next(times).filter(|at| *at <= now)?;
        let (report, _) = self.report(times);
        if self.asked.is_none_or(|asked| asked.report != report) {
            self.asked = Some(Asked { report, at: now });
            return Some(WaitDue::Ask);
        }
        // Warnings that were missed are not made up for.
        while self.warning(times).is_some_and(|at| at <= now) {
            self.warnings += 1;
        }
        Some(WaitDue::Warn)
    }

    /// The next report, and whether it is a warning.
    fn report(&self, times: &ReportTimes) -> (Time, bool) {
        match self.warning(times) {
            Some(warning) if warning <= times.deadline => (warning, true),
            _ => (times.deadline, false),
        }
    }

    fn warning(&self, times: &ReportTimes) -> Option<Time> {
        let factor = 1_u32.checked_shl(self.warnings)?;
        Some(self.since + times.warn_after?.checked_mul(factor)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// What happens at which millisecond until some time.
    fn events(schedule: &mut WaitSchedule, times: &ReportTimes, until: u64) -> Vec<(u64, WaitDue)> {
        let mut events = Vec::new();
        while let Some(next) = schedule.next(times).filter(|next| *next < at(until)) {
            let due = schedule.take_due(next, times).expect("it is due");
            events.push((next.0 / 1_000_000, due));
        }
        events
    }

    #[test]
    fn warnings_double_and_ranks_are_asked_before_each_and_before_the_deadline() {
        use WaitDue::{Ask, Warn};
        let times = ReportTimes { warn_after: Some(Duration::from_secs(5)), deadline: at(100_030_000) };
        let mut schedule = WaitSchedule::new(at(0));
        let first = events(&mut schedule, &times, 35_000);
        let expected =
            [(4000, Ask), (5000, Warn), (9000, Ask), (10_000, Warn), (19_000, Ask), (20_000, Warn)];
        assert_eq!(first, expected);
        let times = ReportTimes { deadline: at(30_000), ..times };
        assert_eq!(events(&mut schedule, &times, 90_000), [(29_000, Ask)], "the deadline is not a warning");
        let short = ReportTimes { warn_after: Some(Duration::from_millis(200)), deadline: at(600) };
        let mut schedule = WaitSchedule::new(at(0));
        let found = events(&mut schedule, &short, 10_000);
        assert_eq!(found[..2], [(100, Ask), (200, Warn)]);
        assert_eq!(found.iter().filter(|(_, due)| *due == Warn).count(), 2, "{found:?}");
    }

    #[test]
    fn progress_starts_again_and_without_warnings_only_the_deadline_counts() {
        let times = ReportTimes { warn_after: Some(Duration::from_secs(5)), deadline: at(60_000) };
        let mut schedule = WaitSchedule::new(at(0));
        events(&mut schedule, &times, 12_000);
        schedule.restart(at(11_000));
        assert_eq!(schedule, WaitSchedule::new(at(11_000)));
        schedule.restart(at(10_000));
        assert_eq!(schedule.next(&times), Some(at(15_000)));
        let never = ReportTimes { warn_after: None, ..times };
        assert_eq!(events(&mut schedule, &never, 90_000), [(59_000, WaitDue::Ask)]);
    }

    #[test]
    fn a_rank_that_was_stopped_asks_before_it_warns_and_warns_once() {
        let times = ReportTimes { warn_after: Some(Duration::from_secs(5)), deadline: at(600_000) };
        let mut schedule = WaitSchedule::new(at(0));
        assert_eq!(schedule.take_due(at(33_000), &times), Some(WaitDue::Ask));
        assert_eq!(schedule.take_due(at(33_100), &times), None);
        assert_eq!(schedule.next(&times), Some(at(34_000)));
        assert_eq!(schedule.take_due(at(34_000), &times), Some(WaitDue::Warn));
        assert_eq!(schedule.next(&times), Some(at(39_000)), "the next warning is at 40 s");
    }
}
