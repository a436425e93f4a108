//! Logs the events of the master machine.

use core::fmt;
use ringfold_proto::cause::Departure;
use ringfold_proto::event::Event;

/// How important an event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    Debug,
    Info,
    Warn,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
        }
    }
}

pub(super) fn report(event: &Event) {
    let text = Printable(event);
    match level(event) {
        Level::Debug => tracing::debug!(target: "ringfold::master", "{text}"),
        Level::Info => tracing::info!(target: "ringfold::master", "{text}"),
        Level::Warn => tracing::warn!(target: "ringfold::master", "{text}"),
    }
}

/// How important an event is.
pub(super) fn level(event: &Event) -> Level {
    match event {
        Event::Departed(_, Departure::Left) => Level::Info,
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
        | Event::Draining(_)
        | Event::RevisionReset(..) => Level::Warn,
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
        | Event::Demoted(_) => Level::Info,
        Event::EpochProposed(..)
        | Event::TourRequested(..)
        | Event::TourFound(..)
        | Event::OpDecided { .. }
        | Event::RoundDecided(..)
        | Event::RoundFailed(..)
        | Event::ProbeAssigned(..)
        | Event::Probed(..)
        | Event::StateElected(..) => Level::Debug,
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
