//! A status for a reader that follows the run, and needs to know what is new.

use super::counters::Counters;
use super::status::{EventEntry, HistorySecond, MasterInfo, Status, ThroughputStatus};
use ringfold_proto::status::RunStatus;
use serde::Serialize;

/// A status, and how much there was before it.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub status: Status,
    /// Events since the master was started. The last of them are in the status.
    pub events_total: u64,
    /// The same for complete seconds.
    pub seconds_total: u64,
    pub counters: Counters,
}

/// What a reader has seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Seen {
    pub events: u64,
    pub seconds: u64,
}

/// A status with only some of its events and seconds, in the same form.
#[derive(Serialize)]
struct PartialStatus<'a> {
    #[serde(flatten)]
    run: &'a RunStatus,
    master: &'a MasterInfo,
    throughput: &'a ThroughputStatus,
    history: &'a [HistorySecond],
    events: &'a [EventEntry],
    time: &'a str,
}

impl Snapshot {
    /// What a reader of this snapshot has seen.
    pub(super) fn seen(&self) -> Seen {
        Seen { events: self.events_total, seconds: self.seconds_total }
    }

    /// The status as JSON, without the events and seconds that were seen; none if some that were not are missing.
    pub(super) fn since(&self, seen: Seen) -> Option<serde_json::Result<String>> {
        let status = &self.status;
        let partial = PartialStatus {
            run: &status.run,
            master: &status.master,
            throughput: &status.throughput,
            history: last(&status.history, self.seconds_total.checked_sub(seen.seconds)?)?,
            events: last(&status.events, self.events_total.checked_sub(seen.events)?)?,
            time: &status.time,
        };
        Some(serde_json::to_string(&partial))
    }

    /// Whether people would see a difference to an earlier one, apart from times.
    pub(super) fn differs_from(&self, earlier: &Self) -> bool {
        self.seen() != earlier.seen()
            || self.status.master.active != earlier.status.master.active
            || timeless(&self.status.run) != timeless(&earlier.status.run)
    }
}

/// The last elements of a list, if it has so many.
fn last<T>(list: &[T], count: u64) -> Option<&[T]> {
    let from = list.len().checked_sub(usize::try_from(count).ok()?)?;
    list.get(from..)
}

/// Without what changes as time passes.
fn timeless(run: &RunStatus) -> RunStatus {
    let mut run = run.clone();
    for peer in &mut run.peers {
        (peer.heard_s, peer.call_s) = (0.0, None);
    }
    run.masters.iter_mut().for_each(|master| master.heard_s = None);
    for wait in &mut run.waits {
        (wait.waited_s, wait.text) = (0.0, String::new());
        wait.missing.iter_mut().for_each(|missing| missing.heard_s = None);
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_what_was_not_seen_and_nothing_is_skipped() {
        assert_eq!(last(&[1, 2, 3], 2), Some(&[2, 3][..]));
        assert_eq!(last(&[1, 2, 3], 0), Some(&[][..]));
        assert_eq!(last(&[1, 2, 3], 4), None);
        assert_eq!(last(&[1], u64::MAX), None);
    }
}
