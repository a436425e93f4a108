//! Logging of refused connections, limited for each source: strangers must not fill the log.

use super::limits;
use ringfold_fabric::listener::source;
use ringfold_proto::time::Time;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The refused connections of the current period, by source. Those that were not logged are counted, and the count is logged.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    until: Time,
    /// Sources beyond [`limits::REFUSED_SOURCES_MAX`] count as one.
    counts: BTreeMap<Option<IpAddr>, u64>,
}

impl Refusals {
    /// Counts a refused connection. Returns whether to log it.
    pub(super) fn allow_log(&mut self, now: Time, from: SocketAddr) -> bool {
        if self.counts.is_empty() {
            self.until = now + limits::REFUSED_PERIOD;
        }
        let (source, is_full) = (Some(source(from)), self.counts.len() >= limits::REFUSED_SOURCES_MAX);
        let source = source.filter(|_| !is_full || self.counts.contains_key(&source));
        let count = self.counts.entry(source).or_default();
        *count += 1;
        *count <= limits::REFUSALS_LOGGED_MAX
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        (!self.counts.is_empty()).then_some(self.until)
    }

    /// Ends the period if it is over, and logs what was not logged in it.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.until > now {
            return;
        }
        for (source, count) in core::mem::take(&mut self.counts) {
            let source = source.map_or_else(|| "other addresses".into(), |source| source.to_string());
            if let Some(more @ 1..) = count.checked_sub(limits::REFUSALS_LOGGED_MAX) {
                let period = limits::REFUSED_PERIOD;
                tracing::warn!(target: "ringfold::master", "rejected {more} more connections from {source} in {period:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_takes_few_lines() {
        let (mut refusals, mut lines) = (Refusals::default(), 0);
        for number in 0..100_000u32 {
            // A flood from one network, and from many.
            let from = if number % 2 == 0 { [192, 0, 2, 1] } else { (number >> 4).to_be_bytes() };
            lines += u64::from(refusals.allow_log(Time(u64::from(number)), (from, 9).into()));
        }
        let sources = limits::REFUSED_SOURCES_MAX + 1;
        assert_eq!(refusals.counts.len(), sources);
        assert!(lines <= sources as u64 * limits::REFUSALS_LOGGED_MAX, "{lines}");
        assert_eq!(refusals.counts.values().sum::<u64>(), 100_000);
        let end = Time(100_000) + limits::REFUSED_PERIOD;
        assert!(refusals.poll_timeout().is_some_and(|at| at < end));
        refusals.handle_timeout(end);
        assert_eq!(refusals.poll_timeout(), None);
        assert!(refusals.allow_log(end, ([192, 0, 2, 1], 9).into()), "a new period begins");
    }
}
