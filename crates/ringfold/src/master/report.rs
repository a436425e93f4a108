//! Logs the events of the master machine.

use core::fmt;
use ringfold_proto::cause::Departure;
use ringfold_proto::event::Event;

pub(super) fn report(event: &Event) {
    let text = Printable(event);
    match event {
        Event::Departed(_, Departure::Left) => tracing::info!(target: "ringfold::master", "{text}"),
        Event::Departed(..)
        | Event::JoinRejected(..)
        | Event::EdgeDistrusted(..)
        | Event::OutOfStep(..)
        | Event::StillWaiting(..)
        | Event::StateRejected(..)
        | Event::SteppedDown(..)
        | Event::Leaderless
        | Event::NoMajority { .. }
        | Event::MasterGone(..)
        | Event::ListsDiffer { .. }
        | Event::AwaitsReturn { .. }
        | Event::ReplicaIncomplete { .. }
        | Event::Recovered(..)
        | Event::RevisionReset(..) => tracing::warn!(target: "ringfold::master", "{text}"),
        Event::Registered(_)
        | Event::Accepted(..)
        | Event::Suspected(_)
        | Event::Reconnected(_)
        | Event::EpochOpened(..)
        | Event::RestoreBegan(_)
        | Event::Returned(_)
        | Event::RestoreEnded(_)
        | Event::RunEnded(..)
        | Event::Replanned(..)
        | Event::EpochKept(_)
        | Event::Stands(_)
        | Event::Leads(_)
        | Event::MasterHere(..)
        | Event::Follows(..)
        | Event::Demoted(_) => tracing::info!(target: "ringfold::master", "{text}"),
        Event::EpochProposed(..)
        | Event::TourRequested(..)
        | Event::TourFound(..)
        | Event::OpDecided(..)
        | Event::RoundDecided(..)
        | Event::RoundFailed(..)
        | Event::ProbeAssigned(..)
        | Event::Probed(..)
        | Event::StateElected(..) => tracing::debug!(target: "ringfold::master", "{text}"),
    }
}

/// Text of peers without control characters, which could control a terminal or forge a line.
pub(super) struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for c in self.0.to_string().chars() {
            f.write_char(if c.is_control() { '\u{fffd}' } else { c })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(Printable("a\x1b[31m\nb").to_string(), "a\u{fffd}[31m\u{fffd}b");
    }
}
