//! What the machine decided, for the log.

use core::fmt;
use ringfold_proto::cause::Departure;
use ringfold_proto::event::Event;

/// Tells of an event, as loudly as it deserves.
pub(super) fn report(event: &Event) {
    let words = Printable(event);
    match event {
        Event::Departed(_, Departure::Left) => tracing::info!(target: "ringfold::master", "{words}"),
        Event::Departed(..)
        | Event::Refused(..)
        | Event::EdgeDistrusted(..)
        | Event::StillWaiting(..)
        | Event::StateRejected(..)
        | Event::RevisionReset(..) => tracing::warn!(target: "ringfold::master", "{words}"),
        Event::Registered(_)
        | Event::Accepted(..)
        | Event::Rebound(_)
        | Event::EpochOpened(..)
        | Event::RestoreBegan(_)
        | Event::Returned(_)
        | Event::RestoreEnded(_)
        | Event::RunEnded(..)
        | Event::EpochKept(_)
        | Event::Demoted(_) => tracing::info!(target: "ringfold::master", "{words}"),
        Event::EpochProposed(..)
        | Event::TourAsked(..)
        | Event::TourAnswered(..)
        | Event::OpDecided(..)
        | Event::RoundDecided(..)
        | Event::RoundFailed(..)
        | Event::ProbeAssigned(..)
        | Event::Probed(..)
        | Event::StateElected(..) => tracing::debug!(target: "ringfold::master", "{words}"),
    }
}

/// Words that may hold a name which a peer chose: nothing in it can steer a terminal or forge a line.
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
    fn names_can_not_steer_a_terminal() {
        assert_eq!(Printable("a\x1b[31m\nb").to_string(), "a\u{fffd}[31m\u{fffd}b");
    }
}
