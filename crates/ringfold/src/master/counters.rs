//! What the events of a master amount to since it was started, for metrics.

use ringfold_proto::cause::Departure;
use ringfold_proto::event::Event;
use ringfold_proto::message::Phase;

/// Counts of events.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Counters {
    pub joins: u64,
    pub joins_rejected: u64,
    pub admissions: u64,
    /// In the order of [`DEPARTURE_REASONS`].
    pub departures: [u64; DEPARTURE_REASONS.len()],
    pub suspicions: u64,
    pub reconnections: u64,
    pub epochs: u64,
    pub syncs: u64,
    pub states_rejected: u64,
    pub wait_warnings: u64,
    pub takeovers: u64,
    pub steps: Histogram,
}

/// The names of the reasons for which peers depart.
pub(super) const DEPARTURE_REASONS: [&str; 4] = ["left", "lost", "evicted", "protocol_violation"];

impl Counters {
    /// Counts an event.
    pub(super) fn note(&mut self, event: &Event) {
        let counter = match event {
            Event::Registered(_) => &mut self.joins,
            Event::JoinRejected(..) => &mut self.joins_rejected,
            Event::Accepted(..) => &mut self.admissions,
            Event::Departed(_, how) => &mut self.departures[reason(how)],
            Event::Suspected(_) => &mut self.suspicions,
            Event::Reconnected(_) => &mut self.reconnections,
            Event::EpochOpened(..) => &mut self.epochs,
            Event::RoundDecided(Phase::Sync, _) => &mut self.syncs,
            Event::StateRejected(..) => &mut self.states_rejected,
            Event::StillWaiting(..) => &mut self.wait_warnings,
            Event::Leads(_) => &mut self.takeovers,
            _ => return,
        };
        *counter += 1;
    }
}

fn reason(how: &Departure) -> usize {
    match how {
        Departure::Left => 0,
        Departure::ConnectionLost | Departure::Silent | Departure::Died | Departure::NotReturned => 1,
        Departure::Evicted(_)
        | Departure::Unreachable
        | Departure::NotEstablished
        | Departure::EvictedBefore
        | Departure::StateRejected(_) => 2,
        Departure::Misbehaved(_) => 3,
    }
}

/// Times between two operations of one tag, by their length.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Histogram {
    /// How many are not longer than each of [`Histogram::BOUNDS`], and longer than the one before it.
    pub counts: [u64; Self::BOUNDS.len()],
    pub count: u64,
    pub sum: f64,
}

impl Histogram {
    /// Seconds: from collectives of one host to steps of large models.
    pub(super) const BOUNDS: [f64; 14] =
        [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

    pub(super) fn observe(&mut self, value: f64) {
        if let Some(count) = Self::BOUNDS.iter().position(|bound| value <= *bound) {
            self.counts[count] += 1;
        }
        self.count += 1;
        self.sum += value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::cause::PeerName;
    use ringfold_proto::id::PeerId;

    #[test]
    fn departures_are_counted_by_reason() {
        let mut counters = Counters::default();
        let who = PeerName { name: "a".into(), peer: PeerId(1) };
        let reasons = [Departure::Left, Departure::Died, Departure::Silent, Departure::Evicted("x".into())];
        for how in reasons {
            counters.note(&Event::Departed(who.clone(), how));
        }
        counters.note(&Event::Registered(who));
        assert_eq!((counters.departures, counters.joins), ([1, 2, 1, 0], 1));
    }

    #[test]
    fn times_are_counted_once_each_and_those_beyond_the_last_bound_too() {
        let mut steps = Histogram::default();
        for value in [0.001, 0.002, 0.02, 1e4] {
            steps.observe(value);
        }
        assert_eq!((steps.counts[..4].to_vec(), steps.count), (vec![1, 1, 0, 1], 4));
        assert_eq!(steps.counts.iter().sum::<u64>(), 3);
    }
}
