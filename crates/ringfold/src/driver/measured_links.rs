//! What this peer has measured on its links, and what of it the master should hear.

use ringfold_proto::id::PeerId;
use ringfold_proto::network::{MeasuredLink, Measurement, Path, Throughput};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A number that has changed by more than one part in this many is reported again.
const CHANGE: u32 = 10;
/// The least bytes of an operation from which a throughput is taken.
const BYTES_MIN: u64 = 1 << 20;
/// A throughput that was not reached again for this long is forgotten.
const AGE_MAX: Duration = Duration::from_secs(60);

/// The measurements of a peer.
#[derive(Debug, Default)]
pub(super) struct MeasuredLinks {
    reported: HashMap<PeerId, Path>,
    up: Greatest,
    down: Greatest,
    reported_throughput: Throughput,
}

/// The greatest throughput lately, in KiB/s.
#[derive(Debug, Default)]
struct Greatest {
    value: u32,
    at: Option<Instant>,
}

impl Greatest {
    fn add(&mut self, now: Instant, bytes: u64, elapsed: Duration) {
        if bytes < BYTES_MIN || elapsed.is_zero() {
            return;
        }
        let rate = (bytes as f64 / 1024.0 / elapsed.as_secs_f64()) as u32;
        if rate >= self.value || self.at.is_none_or(|at| now - at > AGE_MAX) {
            *self = Self { value: rate, at: Some(now) };
        }
    }
}

/// Whether a number has changed so much that others should hear of it.
fn is_news(before: u32, now: u32) -> bool {
    now > 0 && before.abs_diff(now) > before / CHANGE
}

impl MeasuredLinks {
    /// An operation has moved so many bytes over the network.
    pub(super) fn note_operation(&mut self, now: Instant, sent: u64, received: u64, elapsed: Duration) {
        self.up.add(now, sent, elapsed);
        self.down.add(now, received, elapsed);
    }

    /// The links whose numbers have changed much, and the throughput; none if there is nothing new.
    pub(super) fn report(&mut self, paths: impl Iterator<Item = (PeerId, Path)>) -> Option<Measurement> {
        let mut links = Vec::new();
        for (peer, path) in paths {
            let before = self.reported.get(&peer).copied().unwrap_or_default();
            // The round trip is known when the link is made; it grows while queues are full.
            let is_nearer = path.round_trip_us > 0
                && (before.round_trip_us == 0
                    || path.round_trip_us < before.round_trip_us - before.round_trip_us / 4);
            if !is_nearer && !is_news(before.kib_per_s, path.kib_per_s) {
                continue;
            }
            let round_trip_us = if is_nearer { path.round_trip_us } else { before.round_trip_us };
            let path = Path { round_trip_us, kib_per_s: path.kib_per_s };
            self.reported.insert(peer, path);
            links.push(MeasuredLink { peer, path });
        }
        let throughput = Throughput { up_kib_per_s: self.up.value, down_kib_per_s: self.down.value };
        let Throughput { up_kib_per_s, down_kib_per_s } = self.reported_throughput;
        let is_new = is_news(up_kib_per_s, throughput.up_kib_per_s)
            || is_news(down_kib_per_s, throughput.down_kib_per_s);
        if links.is_empty() && !is_new {
            return None;
        }
        self.reported_throughput = throughput;
        Some(Measurement { links, throughput })
    }

    /// The link with a peer is new: everything about it is news.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.reported.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_much_is_reported() {
        let mut links = MeasuredLinks::default();
        let path = |round_trip_us, kib_per_s| Path { round_trip_us, kib_per_s };
        let peer = PeerId(1);
        let report = |links: &mut MeasuredLinks, path| {
            links
                .report([(peer, path)].into_iter())
                .map(|found| found.links.iter().map(|l| l.path).collect::<Vec<_>>())
        };
        assert_eq!(report(&mut links, path(0, 0)), None);
        assert_eq!(report(&mut links, path(80_000, 0)), Some(vec![path(80_000, 0)]));
        assert_eq!(report(&mut links, path(160_000, 0)), None, "a queue");
        assert_eq!(report(&mut links, path(160_000, 1000)), Some(vec![path(80_000, 1000)]));
        assert_eq!(report(&mut links, path(80_000, 1050)), None);
        assert_eq!(report(&mut links, path(80_000, 800)), Some(vec![path(80_000, 800)]));
        assert_eq!(report(&mut links, path(10_000, 800)), Some(vec![path(10_000, 800)]), "another way");
        links.forget(peer);
        assert_eq!(report(&mut links, path(90_000, 0)), Some(vec![path(90_000, 0)]));
        let now = Instant::now();
        links.note_operation(now, 100, 32 << 20, Duration::from_secs(1));
        let found = links.report([].into_iter()).unwrap();
        assert_eq!(found.throughput, Throughput { up_kib_per_s: 0, down_kib_per_s: 32 << 10 });
        links.note_operation(now, 0, 16 << 20, Duration::from_secs(1));
        assert_eq!(links.report([].into_iter()), None, "less was needed");
        links.note_operation(now + 2 * AGE_MAX, 0, 16 << 20, Duration::from_secs(1));
        assert_eq!(links.report([].into_iter()).unwrap().throughput.down_kib_per_s, 16 << 10);
    }
}
