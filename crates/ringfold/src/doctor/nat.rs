//! What translates the addresses of this host.

use ringfold_proto::doctor::Finding;
use std::net::SocketAddr;

/// How another host sees a connection of this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Observation {
    /// Who saw it.
    pub by: String,
    pub local: SocketAddr,
    pub observed: SocketAddr,
    /// Whether the other host could dial back; none if it was not tried.
    pub is_reachable: Option<bool>,
}

impl Observation {
    /// Whether an address was translated on the way.
    pub fn is_translated(&self) -> bool {
        canonical(self.local) != canonical(self.observed)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Judges what others have seen. `mapped` are two connections from one local port to different hosts, if they were made.
pub(super) fn judge(seen: &[Observation], mapped: Option<[SocketAddr; 2]>) -> Option<Finding> {
    const CHECK: &str = "network.nat";
    let translated = seen.iter().find(|seen| seen.is_translated());
    let Some(first) = translated else {
        let first = seen.first()?;
        return Some(Finding::ok(
            CHECK,
            format!(
                "no NAT: {} sees this host at its own address {}",
                first.by,
                first.local.ip().to_canonical()
            ),
        ));
    };
    let observed = first.observed.ip().to_canonical();
    let kind = match mapped {
        Some([one, other]) if canonical(one) == canonical(other) => {
            "the same mapping for all destinations (endpoint-independent)"
        }
        Some(_) => "another mapping for each destination (symmetric)",
        None => "of unknown type, since only one host has seen it",
    };
    let text =
        format!("{} sees this host at {observed}, not at {}: a NAT, {kind}", first.by, first.local.ip());
    let is_reachable =
        seen.iter().filter(|seen| seen.is_translated()).any(|seen| seen.is_reachable == Some(true));
    Some(if is_reachable {
        Finding::ok(CHECK, format!("{text}, which lets connections to this host in"))
    } else {
        Finding::warn(
            CHECK,
            format!("{text}; only this host can open connections"),
            format!(
                "forward a port to this host and let the peer listen there and advertise {observed}; two peers behind NATs need \
                 `ringfold relay`"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::doctor::Judgement::{Ok as Good, Warn};

    fn seen(local: &str, observed: &str, is_reachable: Option<bool>) -> Observation {
        let (local, observed) = (local.parse().unwrap(), observed.parse().unwrap());
        Observation { by: "the master".into(), local, observed, is_reachable }
    }

    #[test]
    fn nats_are_told_by_what_others_see() {
        assert_eq!(judge(&[], None), None);
        let own = judge(&[seen("10.0.0.2:5", "[::ffff:10.0.0.2]:5", Some(false))], None).unwrap();
        assert!(own.judgement == Good && own.text.starts_with("no NAT"), "{own:?}");
        let behind = [seen("10.0.0.2:5", "192.0.2.1:5", Some(false))];
        let one = judge(&behind, None).unwrap();
        assert!(one.judgement == Warn && one.text.contains("unknown type"), "{one:?}");
        let at = |text: &str| text.parse().unwrap();
        let cone = judge(&behind, Some([at("192.0.2.1:7"), at("192.0.2.1:7")])).unwrap();
        assert!(cone.text.contains("endpoint-independent"), "{cone:?}");
        let symmetric = judge(&behind, Some([at("192.0.2.1:7"), at("192.0.2.1:8")])).unwrap();
        assert!(symmetric.text.contains("symmetric"), "{symmetric:?}");
        let forwarded = judge(&[seen("10.0.0.2:5", "192.0.2.1:9", Some(true))], None).unwrap();
        assert_eq!(forwarded.judgement, Good);
    }
}
