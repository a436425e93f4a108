//! Names of masters and peers, and the interfaces that they are reached by.

use super::{route, within};
use ringfold_fabric::host;
use ringfold_proto::doctor::Finding;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// How long a name may take to be resolved.
const RESOLVE_MAX: Duration = Duration::from_secs(10);

/// Resolves `host:port`.
pub(super) fn resolve(text: &str) -> Result<Vec<SocketAddr>, Finding> {
    const CHECK: &str = "names.resolution";
    let remedy = "check the spelling, /etc/hosts and the name server in /etc/resolv.conf, or use the address";
    let owned = text.to_owned();
    let resolved = within(RESOLVE_MAX, "resolve", move || {
        owned.to_socket_addrs().map(Iterator::collect::<Vec<_>>).map_err(|error| error.to_string())
    });
    match resolved {
        None => {
            let late = format!("{text}: no answer of the name server within {} s", RESOLVE_MAX.as_secs());
            Err(Finding::fail(CHECK, late, remedy))
        }
        Some(Err(error)) => Err(Finding::fail(CHECK, format!("{text} cannot be resolved: {error}"), remedy)),
        Some(Ok(found)) if found.is_empty() => {
            Err(Finding::fail(CHECK, format!("{text} has no address"), remedy))
        }
        Some(Ok(found)) => Ok(found),
    }
}

/// Judges what a name resolves to. Addresses need no check.
pub(super) fn resolution(text: &str, found: &[SocketAddr]) -> Option<Finding> {
    const CHECK: &str = "names.resolution";
    let name = text.rsplit_once(':').map_or(text, |(name, _)| name);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<_> = found.iter().map(|address| address.ip().to_string()).collect();
    if bare.parse::<IpAddr>().is_ok() {
        return None;
    }
    let text = format!("{name} resolves to {}", addresses.join(", "));
    Some(match name != "localhost" && found.iter().all(|address| address.ip().is_loopback()) {
        true => Finding::warn(
            CHECK,
            format!("{text}, which is only this host: other hosts reach somebody else by that name"),
            "give the name an address of the network in /etc/hosts or in the name server",
        ),
        false => Finding::ok(CHECK, text),
    })
}

/// The interface that an address is reached by, and why.
pub(super) fn interface(to: IpAddr) -> Finding {
    const CHECK: &str = "names.interface";
    let ip = to.to_canonical();
    let Some(source) = host::source_address(ip) else {
        return Finding::fail(
            CHECK,
            format!("this host has no route to {ip}"),
            "check that the network interface is up (`ip addr`) and that there is a route (`ip route`)",
        );
    };
    if source == ip || ip.is_loopback() {
        return Finding::ok(CHECK, format!("{ip} is on this host"));
    }
    let Some(route) = route::lookup(ip) else {
        return Finding::ok(CHECK, format!("{ip} is reached from {source}"));
    };
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", route.interface)).unwrap_or_default();
    let mtu = if mtu.is_empty() { String::new() } else { format!(", MTU {}", mtu.trim()) };
    Finding::ok(CHECK, format!("{ip} is reached by {} from {source}{mtu}: {route}", route.interface))
}

/// Whether others can reach the address that this host listens on. `targets` are those that should, and the source addresses of
/// packets to them.
pub(super) fn listen_address(bind: IpAddr, targets: &[(String, IpAddr)], are_peers: bool) -> Option<Finding> {
    const CHECK: &str = "names.listen-address";
    if bind.is_unspecified() || targets.is_empty() {
        return None;
    }
    let is_away = |(_, source): &&(String, IpAddr)| *source != bind && !source.is_loopback();
    let (label, source) = targets.iter().find(is_away)?;
    let remedy = format!(
        "listen on {source} or on all addresses: leave out --bind here, and `bind` or `listen_address` in the program"
    );
    let text = format!(
        "this host would listen on {bind}, but packets to {label} leave from {source}: {}",
        if bind.is_loopback() { "no other host can reach it" } else { "others may not reach it" }
    );
    Some(if bind.is_loopback() || are_peers {
        Finding::fail(CHECK, text, remedy)
    } else {
        Finding::warn(CHECK, text, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::doctor::Judgement::{Fail, Ok as Good, Warn};

    #[test]
    fn names_that_mean_only_this_host_are_warned_of() {
        let judged = |text: &str, found: &[&str]| {
            let found: Vec<_> = found.iter().map(|text| text.parse().unwrap()).collect();
            resolution(text, &found).map_or(Good, |finding| finding.judgement)
        };
        assert_eq!(judged("head:48148", &["127.0.1.1:48148"]), Warn);
        assert_eq!(judged("head:48148", &["10.0.0.1:48148"]), Good);
        assert_eq!(judged("localhost:48148", &["127.0.0.1:48148"]), Good);
        assert_eq!(judged("[::1]:48148", &["[::1]:48148"]), Good);
        let failed = resolve("no.such.host.invalid:1").unwrap_err();
        assert!(failed.judgement == Fail && failed.text.contains("no.such.host.invalid"), "{failed:?}");
    }

    #[test]
    fn an_address_of_another_interface_is_judged_by_who_needs_it() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let targets = [("a:1".to_owned(), at("10.0.0.2"))];
        let judged = |bind, are_peers| listen_address(at(bind), &targets, are_peers).map(|f| f.judgement);
        assert_eq!(judged("10.0.0.2", true), None);
        assert_eq!(judged("0.0.0.0", true), None);
        assert_eq!(judged("10.99.0.1", true), Some(Fail));
        assert_eq!(judged("10.99.0.1", false), Some(Warn));
        assert_eq!(judged("127.0.0.1", false), Some(Fail));
    }

    #[test]
    fn this_host_reaches_itself() {
        let here = interface("127.0.0.1".parse().unwrap());
        assert!(here.judgement == Good && here.text.contains("on this host"), "{here:?}");
    }
}
