//! Which source gets the next part, and whose parts are requested again: pure decisions by measured rates.

use super::limits::{
    OWED_BYTES_FIRST, OWED_BYTES_MAX, OWED_BYTES_MIN, OWED_TIME, PACE_MEMORY, STRAGGLE_FACTOR,
    STRAGGLE_MARGIN,
};
use core::time::Duration;

/// What a source delivers, and what it owes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Pace {
    /// Bytes that it sent while it was awaited, and the seconds that took. Older ones count less.
    bytes: f64,
    seconds: f64,
    /// The round-trip time of the path to it.
    pub(super) round_trip: Duration,
    /// Bytes that were requested from it and have not arrived.
    pub(super) owed: u64,
}

impl Pace {
    /// Counts what arrived while it was awaited.
    pub(super) fn add(&mut self, bytes: u64, time: Duration) {
        self.bytes += bytes as f64;
        self.seconds += time.as_secs_f64();
        let excess = self.seconds / PACE_MEMORY.as_secs_f64();
        if excess > 1.0 {
            (self.bytes, self.seconds) = (self.bytes / excess, self.seconds / excess);
        }
    }

    /// Bytes per second, once something has arrived.
    pub(super) fn rate(&self) -> Option<f64> {
        (self.bytes > 0.0).then(|| self.bytes / self.seconds.max(1e-6))
    }

    /// The seconds that so many bytes take, requested now.
    pub(super) fn seconds_for(&self, bytes: u64) -> Option<f64> {
        self.rate().map(|rate| self.round_trip.as_secs_f64() + bytes as f64 / rate)
    }

    /// Bytes that it may owe: enough to keep its path full while the next request travels.
    fn owed_max(&self) -> u64 {
        let time = (2 * self.round_trip + OWED_TIME).as_secs_f64();
        let bytes = self.rate().map_or(OWED_BYTES_FIRST, |rate| (rate * time) as u64);
        bytes.clamp(OWED_BYTES_MIN, OWED_BYTES_MAX)
    }

    /// Whether it gets another part while so many bytes are queued, the part included. `others` are the other sources.
    ///
    /// All sources shall end together: none gets more than it delivers in the time in which all deliver the rest.
    pub(super) fn may_take(&self, part: u64, queued: u64, others: &[Self]) -> bool {
        if self.owed >= self.owed_max() {
            return false;
        }
        let (Some(rate), false) = (self.rate(), others.is_empty()) else {
            // Nothing is known of it. Towards the end it gets an even share.
            return self.owed == 0 || self.owed < queued / (others.len() as u64 + 1);
        };
        let of_others: f64 = others.iter().filter_map(Self::rate).sum();
        let owed: u64 = others.iter().filter(|other| other.rate().is_some()).map(|other| other.owed).sum();
        let mine = (self.owed + part) as f64 / rate;
        if self.owed > 0 {
            let all = (self.owed + owed + queued) as f64 / (rate + of_others);
            return mine <= all + part as f64 / rate;
        }
        // An idle source takes the part unless the others are done with everything long before.
        let without_it = (owed + queued) as f64 / of_others;
        of_others == 0.0 || mine <= f64::from(STRAGGLE_FACTOR) * without_it + STRAGGLE_MARGIN.as_secs_f64()
    }

    /// Whether `idle` would deliver what this one owes so much sooner that it is requested again.
    pub(super) fn is_slower_than(&self, idle: &Self) -> bool {
        let (Some(mine), Some(its)) = (self.rate(), idle.seconds_for(self.owed)) else { return false };
        let mine = self.owed as f64 / mine;
        mine > f64::from(STRAGGLE_FACTOR) * its + STRAGGLE_MARGIN.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const PART: u64 = 1 << 20;
    const MBIT: f64 = 125_000.0;

    fn pace(mbit: f64, round_trip_ms: u64, owed: u64) -> Pace {
        let mut pace = Pace { round_trip: Duration::from_millis(round_trip_ms), owed, ..Pace::default() };
        if mbit > 0.0 {
            pace.add((mbit * MBIT) as u64, Duration::from_secs(1));
        }
        pace
    }

    /// Deals parts to sources of these rates (Mbit/s) and round trips (ms). Returns the seconds until all have arrived, and
    /// the parts of each.
    fn deal(sources: &[(f64, u64)], parts: u64) -> (f64, Vec<u64>) {
        let mut paces: Vec<_> = sources.iter().map(|(_, round_trip)| pace(0.0, *round_trip, 0)).collect();
        let mut due: Vec<VecDeque<f64>> = vec![VecDeque::new(); sources.len()];
        let mut dropped = vec![false; sources.len()];
        let (mut queued, mut now, mut done) = (parts, 0.0, vec![0; sources.len()]);
        while done.iter().sum::<u64>() < parts {
            for source in (0..sources.len()).filter(|source| !dropped[*source]) {
                let (mbit, round_trip) = sources[source];
                loop {
                    let others: Vec<_> = (0..sources.len())
                        .filter(|other| *other != source && !dropped[*other])
                        .map(|at| paces[at])
                        .collect();
                    if queued == 0 || !paces[source].may_take(PART, queued * PART, &others) {
                        break;
                    }
                    queued -= 1;
                    paces[source].owed += PART;
                    // Behind what it sends already.
                    let begin = due[source].back().map_or(now, |last: &f64| last.max(now));
                    let idle = if due[source].is_empty() { round_trip as f64 / 1e3 } else { 0.0 };
                    due[source].push_back(begin + idle + PART as f64 / (mbit * MBIT));
                }
            }
            // What a straggler owes is requested again.
            let idle = (0..sources.len()).find(|at| due[*at].is_empty() && paces[*at].rate().is_some());
            if let (Some(idle), 0) = (idle, queued) {
                for source in 0..sources.len() {
                    if paces[source].is_slower_than(&paces[idle]) {
                        queued += due[source].len() as u64;
                        (paces[source].owed, dropped[source]) = (0, true);
                        due[source].clear();
                    }
                }
                if queued > 0 {
                    continue;
                }
            }
            let next = (0..sources.len()).filter_map(|at| Some((*due[at].front()?, at)));
            let (at, source) = next.min_by(|a, b| a.0.total_cmp(&b.0)).expect("somebody owes something");
            now = at;
            due[source].pop_front();
            done[source] += 1;
            paces[source].owed -= PART;
            paces[source].add(PART, Duration::from_secs_f64(PART as f64 / (sources[source].0 * MBIT)));
        }
        (now, done)
    }

    #[test]
    fn sources_deliver_by_their_rates_and_end_together() {
        for sources in [
            &[(200.0, 40), (200.0, 60), (200.0, 80), (200.0, 100)][..],
            &[(500.0, 10), (200.0, 40), (50.0, 80)],
            &[(1000.0, 200), (10.0, 20)],
            &[(100.0, 100)],
        ] {
            let (seconds, done) = deal(sources, 256);
            let all: f64 = sources.iter().map(|(mbit, _)| mbit).sum();
            let least = 256.0 * PART as f64 / (all * MBIT);
            assert!(seconds < least * 1.15 + 0.4, "{sources:?}: {seconds} s, least {least} s, {done:?}");
            for ((mbit, _), done) in sources.iter().zip(&done) {
                let share = 256.0 * mbit / all;
                assert!((*done as f64 - share).abs() < share * 0.3 + 9.0, "{sources:?}: {done:?}");
            }
        }
    }

    #[test]
    fn a_source_may_owe_what_its_path_holds_within_limits() {
        let (near, far) = (pace(1000.0, 1, 0), pace(1000.0, 200, 0));
        assert!(far.owed_max() > near.owed_max());
        assert!(far.owed_max() as f64 > 1000.0 * MBIT * 0.2, "{}", far.owed_max());
        assert_eq!(pace(1e6, 200, 0).owed_max(), OWED_BYTES_MAX);
        assert_eq!(pace(0.1, 200, 0).owed_max(), OWED_BYTES_MIN);
        assert!(!Pace { owed: far.owed_max(), ..far }.may_take(PART, 1 << 40, &[near]));
    }

    #[test]
    fn a_slow_source_gets_none_of_the_last_parts_but_all_if_it_is_alone() {
        let (slow, fast) = (pace(5.0, 50, 0), pace(500.0, 50, 4 * PART));
        assert!(!slow.may_take(PART, PART, &[fast]));
        assert!(slow.may_take(PART, 200 * PART, &[fast]));
        assert!(slow.may_take(PART, PART, &[]));
        // Of one that has not sent anything nobody knows whether it will.
        assert!(slow.may_take(PART, PART, &[pace(0.0, 50, 4 * PART)]));
    }

    #[test]
    fn only_a_much_slower_source_is_a_straggler() {
        let idle = pace(200.0, 100, 0);
        assert!(pace(5.0, 100, 2 * PART).is_slower_than(&idle));
        assert!(!pace(150.0, 100, 4 * PART).is_slower_than(&idle));
        assert!(!pace(5.0, 100, 0).is_slower_than(&idle));
        assert!(!pace(5.0, 100, 2 * PART).is_slower_than(&pace(0.0, 100, 0)));
    }

    #[test]
    fn a_rate_follows_what_arrives() {
        let mut pace = pace(10.0, 50, 0);
        for _ in 0..40 {
            pace.add((20.0 * MBIT) as u64, Duration::from_millis(100));
        }
        let rate = pace.rate().expect("a rate") / MBIT;
        assert!((180.0..=200.5).contains(&rate), "{rate}");
    }
}
