//! The limits of connections that settings may change. A poller has them, for its connections.

use crate::limits;
use core::time::Duration;
use ringfold_settings::bandwidth::Bandwidth;
use ringfold_settings::{Settings, table};

/// Limits of the connections of a poller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionLimits {
    /// How long the host at the other end may answer nothing; at least 3 s.
    pub unreachable_after: Duration,
    /// How long a TCP connection to one address may take to be made.
    pub connect_max: Duration,
    /// How long a handshake may take.
    pub handshake_max: Duration,
    /// Connections that may be in their handshake at once, at one listener.
    pub handshakes_max: usize,
    /// Bytes of unused slot memory that are kept.
    pub spare_slot_bytes: usize,
    /// Pairs that a relay joins at the same time.
    pub relay_pairs_max: usize,
    /// Connections that wait at a relay.
    pub relay_waiting_max: usize,
    /// The cap of a pair that a relay has joined.
    pub relay_pair_rate: Option<Bandwidth>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            unreachable_after: limits::UNREACHABLE_AFTER,
            connect_max: limits::CONNECT_MAX,
            handshake_max: limits::HANDSHAKE_MAX,
            handshakes_max: limits::handshakes_max(),
            spare_slot_bytes: limits::SPARE_SLOT_BYTES_MAX,
            relay_pairs_max: limits::RELAY_PAIRS_MAX,
            relay_waiting_max: limits::RELAY_WAITING_MAX,
            relay_pair_rate: None,
        }
    }
}

impl ConnectionLimits {
    /// The limits of these settings.
    pub fn of(settings: &Settings) -> Self {
        let default = Self::default();
        let time = |setting, default| settings.time(setting).unwrap_or(default);
        let number = |setting, default| settings.number(setting).unwrap_or(default);
        Self {
            unreachable_after: time(&table::UNREACHABLE_AFTER, default.unreachable_after),
            connect_max: time(&table::CONNECT_MAX, default.connect_max),
            handshake_max: time(&table::HANDSHAKE_MAX, default.handshake_max),
            handshakes_max: number(&table::HANDSHAKES_MAX, default.handshakes_max)
                .min(default.handshakes_max),
            spare_slot_bytes: number(&table::SPARE_SLOT_BYTES, default.spare_slot_bytes),
            relay_pairs_max: number(&table::RELAY_PAIRS_MAX, default.relay_pairs_max),
            relay_waiting_max: number(&table::RELAY_WAITING_MAX, default.relay_waiting_max),
            relay_pair_rate: settings.cap(&table::RELAY_PAIR_RATE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_settings::{Given, USERS};

    #[test]
    fn the_defaults_of_the_settings_are_the_limits_of_this_crate() {
        for user in USERS {
            let settings = Settings::load(user, &Given::default()).unwrap();
            assert_eq!(ConnectionLimits::of(&settings), ConnectionLimits::default());
        }
    }
}
