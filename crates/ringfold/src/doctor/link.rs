//! Judges what a link to another host would be.

use super::explain::Party;
use super::visit::milliseconds;
use crate::settings::{self, Settings, table};
use core::time::Duration;
use ringfold_fabric::limits::QUIC_ROUND_TRIP_MIN;
use ringfold_fabric::probe::Measured;
use ringfold_proto::doctor::{DialBack, Finding};
use std::net::SocketAddr;

/// Slower links are warned of, in bytes per second: 100 Mbit/s.
const RATE_MIN: u64 = 12_500_000;

/// Whether the other host can dial this one.
pub(super) fn dial_back(
    party: Party,
    label: &str,
    observed: SocketAddr,
    port: u16,
    outcome: &DialBack,
) -> Finding {
    let check = party.check("port-back");
    let here = SocketAddr::new(observed.ip(), port);
    let remedy = format!(
        "open TCP port {port} in the firewall of this host, or fix the port of the peers (`listen_ports`) and open that; two hosts \
         that cannot be dialled need `ringfold relay`"
    );
    match outcome {
        DialBack::Reached => Finding::ok(&check, format!("{label} can connect to this host, at {here}")),
        DialBack::Failed { why } => {
            Finding::warn(&check, format!("{label} cannot connect to this host, at {here}: {why}"), remedy)
        }
        DialBack::Stranger => Finding::warn(
            &check,
            format!(
                "{label} reaches another process at {here}, not this one: a NAT forwards the port elsewhere"
            ),
            remedy,
        ),
        DialBack::Busy => Finding::ok(&check, format!("{label} is too busy to connect to this host")),
    }
}

/// How the engine would connect to the other host. `udp` is whether datagrams come back, if that is known.
pub(super) fn streams(
    label: &str,
    to: SocketAddr,
    round_trip: Duration,
    udp: Option<bool>,
    settings: &Settings,
) -> Finding {
    const CHECK: &str = "peer.streams";
    let (streams, may_use_quic) = (settings::streams(settings, None), settings.is_on(&table::QUIC));
    if to.ip().to_canonical().is_loopback() {
        return Finding::ok(CHECK, format!("links with {label} use shared memory"));
    }
    let is_long = round_trip >= QUIC_ROUND_TRIP_MIN;
    let trip = milliseconds(round_trip);
    let tcp = format!("links with {label} use {streams} TCP streams");
    match (is_long, may_use_quic, udp) {
        (true, true, Some(false)) => Finding::warn(
            CHECK,
            format!("UDP to {label} is blocked: {tcp}, which are slower on a round trip of {trip}"),
            format!("open UDP port {} in the firewalls, beside TCP", to.port()),
        ),
        (true, true, _) => {
            Finding::ok(CHECK, format!("links with {label} use QUIC, since the round trip takes {trip}"))
        }
        (true, false, _) => Finding::warn(
            CHECK,
            format!("{tcp}, which are slower on a round trip of {trip}"),
            format!("{} turns QUIC off: remove it", settings.source(&table::QUIC)),
        ),
        (false, ..) => {
            let udp = if udp == Some(false) { "; UDP is blocked, which long links would need" } else { "" };
            Finding::ok(CHECK, format!("{tcp}{udp}"))
        }
    }
}

/// Judges the bandwidth in both directions.
pub(super) fn bandwidth(party: Party, label: &str, measured: Measured) -> Finding {
    let check = party.check("bandwidth");
    let (to, from) = (rate(measured.forward), rate(measured.backward));
    let text = format!("{to} to {label}, {from} from it");
    let least = measured.forward.min(measured.backward).max(1);
    if least >= RATE_MIN {
        return Finding::ok(&check, text);
    }
    let seconds = (100_000_000 / least).max(1);
    Finding::warn(
        &check,
        format!("{text}: a slow link, 100 MB take {seconds} s"),
        "look for what limits it: Wi-Fi, a VPN, a cap of the provider, another transfer; quantisation sends a quarter of the bytes",
    )
}

pub(super) fn no_bandwidth(party: Party, label: &str, why: &str) -> Finding {
    Finding::warn(
        &party.check("bandwidth"),
        format!("the bandwidth to {label} could not be measured: {why}"),
        "run it again; if it fails again, large transfers do not get through",
    )
}

fn rate(bytes: u64) -> String {
    let mbit = bytes as f64 * 8.0 / 1e6;
    if mbit >= 1000.0 { format!("{:.1} Gbit/s", mbit / 1000.0) } else { format!("{mbit:.1} Mbit/s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Given, User};
    use ringfold_proto::doctor::Judgement::{Ok as Good, Warn};

    #[test]
    fn slow_links_are_named_with_what_they_cost() {
        let slow = bandwidth(Party::Peer, "b:1", Measured { forward: 1_250_000, backward: 125_000_000 });
        assert!(slow.judgement == Warn && slow.text.contains("slow link, 100 MB take 80 s"), "{slow:?}");
        assert!(slow.text.starts_with("10.0 Mbit/s to b:1, 1.0 Gbit/s from it"), "{slow:?}");
        let good = Measured { forward: 12_500_000, backward: 12_500_000 };
        assert_eq!(bandwidth(Party::Master, "m", good).judgement, Good);
    }

    #[test]
    fn long_links_use_quic_unless_udp_is_blocked() {
        let at = |to: &str, ms, udp, may| {
            let mut given = Given::default();
            given.set("quic", may);
            let settings = Settings::load(User::Peer, &given).unwrap();
            streams("b", to.parse().unwrap(), Duration::from_millis(ms), udp, &settings)
        };
        let near = at("10.0.0.2:1", 1, Some(true), true);
        assert!(near.judgement == Good && near.text.contains("4 TCP streams"), "{near:?}");
        assert!(at("10.0.0.2:1", 40, Some(true), true).text.contains("use QUIC"));
        let blocked = at("10.0.0.2:1", 40, Some(false), true);
        assert!(blocked.judgement == Warn && blocked.text.contains("UDP to b is blocked"), "{blocked:?}");
        assert_eq!(at("10.0.0.2:1", 40, Some(true), false).judgement, Warn);
        assert!(at("127.0.0.1:1", 0, None, true).text.contains("shared memory"));
    }

    #[test]
    fn dial_backs_are_judged() {
        let judged = |outcome: DialBack| {
            dial_back(Party::Peer, "b", "192.0.2.1:9".parse().unwrap(), 48_150, &outcome).judgement
        };
        assert_eq!((judged(DialBack::Reached), judged(DialBack::Stranger)), (Good, Warn));
        assert_eq!(judged(DialBack::Failed { why: "no answer".into() }), Warn);
    }
}
