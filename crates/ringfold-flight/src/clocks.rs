//! Aligns the clocks of hosts by what must have happened first.
//!
//! A peer learns of an epoch after the master has proposed it, and the master opens it after all peers have learned of it. Each such
//! pair of records on two hosts limits how far their clocks can be apart. If the clocks may agree, nothing is changed.

use crate::{FlightRecord, FlightSource};
use std::collections::BTreeMap;

/// How far the clock of each file's host is ahead of the reference.
#[derive(Debug)]
pub struct Clocks {
    /// By file, in microseconds.
    offsets: Vec<i64>,
    /// The host of the reference, and the other hosts with their offsets; none if nothing is known.
    reference: String,
    hosts: Vec<(String, Option<i64>)>,
}

/// What many processes see of the same thing. A record of a lower stage happened before each one of a higher stage.
type Milestone = (String, u8);

/// The first and the last record of each milestone on a host.
type Seen = BTreeMap<Milestone, (i64, i64)>;

impl Clocks {
    /// Finds the offsets.
    pub(crate) fn align(files: &[FlightSource]) -> Self {
        let host = |file: &FlightSource| match &file.log.header {
            Some(header) => (header.boot.clone(), header.host.clone()),
            None => (String::new(), file.path.display().to_string()),
        };
        let mut hosts: BTreeMap<(String, String), Seen> = BTreeMap::new();
        for file in files {
            note_milestones(hosts.entry(host(file)).or_default(), &file.log.records);
        }
        let has_master = |file: &&FlightSource| file.log.records.iter().any(|r| r.source == "master");
        let reference = files.iter().find(has_master).or(files.first()).map(host).unwrap_or_default();
        let at_reference = hosts.get(&reference).cloned().unwrap_or_default();
        let offset = |seen: &Seen| Bounds::between(&at_reference, seen).offset();
        let found: BTreeMap<_, _> = hosts
            .iter()
            .map(|(host, seen)| (host.clone(), if *host == reference { Some(0) } else { offset(seen) }))
            .collect();
        let offsets =
            files.iter().map(|file| found.get(&host(file)).copied().flatten().unwrap_or(0)).collect();
        let others = found.into_iter().filter(|(host, _)| *host != reference);
        let hosts = others.map(|((_, name), offset)| (name, offset)).collect();
        Self { offsets, reference: reference.1, hosts }
    }

    /// How many microseconds the clock of a file is ahead.
    pub fn offset(&self, file: usize) -> i64 {
        self.offsets.get(file).copied().unwrap_or(0)
    }

    /// What was done, for people.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let reference = &self.reference;
        self.hosts.iter().map(move |(name, offset)| match offset {
            Some(0) => format!("clock of {name}: agrees with {reference}"),
            None => format!("clock of {name}: not compared with {reference}, they have no events in common"),
            Some(offset) => {
                let (by, way) =
                    (offset.unsigned_abs() as f64 / 1e6, if *offset > 0 { "ahead" } else { "behind" });
                format!("clock of {name}: {by:.6} s {way} of {reference}; its times are corrected by that")
            }
        })
    }
}

fn note_milestones(seen: &mut Seen, records: &[FlightRecord]) {
    let mut last_link = None;
    for record in records {
        let mut note = |milestone: Milestone, micros: i64| {
            let times = seen.entry(milestone).or_insert((micros, micros));
            *times = (times.0.min(micros), times.1.max(micros));
        };
        if record.event == "link_up" && record.source == "rank" {
            last_link = Some(record.micros);
        }
        if let Some(milestone) = milestone(record) {
            if let (3, Some(link)) = (milestone.1, last_link.take_if(|_| record.event == "group_formed")) {
                note((milestone.0.clone(), 1), link);
            }
            note(milestone, record.micros);
        }
    }
}

/// What a record is a milestone of.
fn milestone(record: &FlightRecord) -> Option<Milestone> {
    let epoch = || Some(format!("epoch {}", record.text_of("epoch")?));
    let op = || {
        let (tag, seq) = (record.number_of("tag")?, record.number_of("seq")?);
        Some(format!("op {} {tag} {seq}", record.text_of("epoch")?))
    };
    let is_committed = || record.text_of("outcome") == Some("committed");
    Some(match (record.source.as_str(), record.event.as_str()) {
        ("master", "epoch_proposed") => (epoch()?, 0),
        ("peer", "epoch_proposed") => (epoch()?, 1),
        ("master", "epoch_opened") => (epoch()?, 2),
        ("peer", "epoch_opened") => (epoch()?, 3),
        // An operation that failed may have failed before all have begun it.
        ("peer", "op_started") => (format!("committed {}", op()?), 1),
        ("peer", "op_ended") if is_committed() => (format!("committed {}", op()?), 3),
        ("master", "op_decided") => (op()?, 2),
        ("peer", "op_ended") => (op()?, 3),
        ("rank", "group_formed") => (format!("group {}", record.text_of("group")?), 3),
        _ => return None,
    })
}

/// Between which values the offset of a clock lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Bounds {
    lowest: Option<i64>,
    highest: Option<i64>,
}

impl Bounds {
    fn between(reference: &Seen, other: &Seen) -> Self {
        let mut bounds = Self::default();
        for ((what, stage), (first, last)) in other {
            let here = reference.range((what.clone(), 0)..=(what.clone(), u8::MAX));
            for ((_, at), (ref_first, ref_last)) in here {
                if at < stage {
                    let highest = first.saturating_sub(*ref_last);
                    bounds.highest = Some(bounds.highest.map_or(highest, |known| known.min(highest)));
                } else if at > stage {
                    let lowest = last.saturating_sub(*ref_first);
                    bounds.lowest = Some(bounds.lowest.map_or(lowest, |known| known.max(lowest)));
                }
            }
        }
        bounds
    }

    /// Zero if that is possible; none if nothing is known.
    fn offset(self) -> Option<i64> {
        match (self.lowest, self.highest) {
            (None, None) => None,
            (None, Some(highest)) => Some(highest.min(0)),
            (Some(lowest), None) => Some(lowest.max(0)),
            (Some(lowest), Some(highest)) if lowest <= 0 && 0 <= highest => Some(0),
            (Some(lowest), Some(highest)) => Some(lowest.midpoint(highest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(times: &[(u8, i64)]) -> Seen {
        times.iter().map(|(stage, at)| (("epoch".into(), *stage), (*at, *at))).collect()
    }

    fn offset(shift: i64) -> Option<i64> {
        let reference = seen(&[(0, 1000), (2, 3000)]);
        let peer = seen(&[(1, 1500 + shift), (3, 3500 + shift)]);
        Bounds::between(&reference, &peer).offset()
    }

    #[test]
    fn clocks_that_may_agree_are_left_and_others_are_moved_between_their_bounds() {
        assert_eq!(offset(0), Some(0));
        assert_eq!(offset(400), Some(0));
        for shift in [-5_000_000, 7_000_000] {
            let found = offset(shift).unwrap();
            assert!((found - shift).abs() <= 1500, "{found} for {shift}");
        }
        assert_eq!(Bounds::between(&seen(&[(0, 1)]), &Seen::new()).offset(), None);
        assert_eq!(Bounds { lowest: None, highest: Some(5) }.offset(), Some(0));
        assert_eq!(Bounds { lowest: None, highest: Some(-5) }.offset(), Some(-5));
        assert_eq!(Bounds { lowest: Some(9), highest: None }.offset(), Some(9));
    }
}
