//! The events that a peer of the demo reports to its parent: one line of JSON each, on standard output.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// Longer reasons are cut, so that lines are bounded.
const REASON_CHARS_MAX: usize = 600;

/// Microseconds of the system clock, which all processes of the machine share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Timestamp(u64);

impl Timestamp {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// An event of a peer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum PeerEvent {
    /// The peer was accepted.
    Joined,
    /// A topology update changed the number of peers.
    Voted { took: Duration },
    /// The peer received shared state.
    Synced { rx_bytes: u64, took: Duration },
    /// The peer begins the all-reduce of this step.
    Began { step: u64 },
    /// The all-reduce was aborted and will be retried.
    Aborted { step: u64, why: String },
    /// No other peer is left.
    Alone { step: u64 },
    /// The step is done; `hash` is of the weights after it.
    Stepped { step: u64, world: u32, reduce: Duration, retries: u32, tx_bytes: u64, loss: f32, hash: u64 },
    /// All steps are done.
    Finished { step: u64, hash: u64 },
    /// The peer gives up.
    Failed { why: String },
}

/// An event and its time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TimedEvent {
    pub(crate) at: Timestamp,
    pub(crate) event: PeerEvent,
}

/// A reason in one line of bounded length.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_a_round_trip() {
        let us = Duration::from_micros;
        for event in [
            PeerEvent::Joined,
            PeerEvent::Voted { took: us(0) },
            PeerEvent::Synced { rx_bytes: 1 << 40, took: us(123) },
            PeerEvent::Began { step: 1 },
            PeerEvent::Aborted { step: 2, why: one_line("peer C was lost:\n its connection broke") },
            PeerEvent::Alone { step: 2 },
            PeerEvent::Stepped {
                step: 12,
                world: 4,
                reduce: us(5123),
                retries: 1,
                tx_bytes: 9,
                loss: 0.25,
                hash: 0x1234_abcd,
            },
            PeerEvent::Finished { step: 60, hash: u64::MAX },
            PeerEvent::Failed { why: String::new() },
        ] {
            let event = TimedEvent { at: Timestamp(1_700_000_000_000_000), event };
            let line = serde_json::to_string(&event).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<TimedEvent>(&line).unwrap(), event);
        }
    }

    #[test]
    fn incomplete_and_unknown_lines_are_rejected() {
        for text in
            ["", "12", r#"{"at":12}"#, r#"{"at":12,"event":{"Began":{}}}"#, r#"{"at":12,"event":"Sang"}"#]
        {
            assert!(serde_json::from_str::<TimedEvent>(text).is_err(), "{text}");
        }
    }
}
