//! The routes of this host, as the kernel lists them in `/proc/net`.

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A flag of a route: it can be used.
const UP: u32 = 1;

/// One route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Route {
    pub interface: String,
    network: IpAddr,
    prefix: u32,
    gateway: Option<IpAddr>,
    metric: u32,
}

/// Why the route is used.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.prefix, self.gateway) {
            (0, Some(gateway)) => write!(f, "it is the default route, through {gateway}"),
            (0, None) => f.write_str("it is the default route"),
            (prefix, Some(gateway)) => {
                write!(f, "the route to {}/{prefix} goes through {gateway}", self.network)
            }
            (prefix, None) => write!(f, "it is in the network {}/{prefix} of that interface", self.network),
        }
    }
}

/// The routes in `/proc/net/route`.
pub(super) fn parse_ipv4(text: &str) -> Vec<Route> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The kernel prints addresses as numbers of the host's byte order.
        let address = |field: &str| {
            u32::from_str_radix(field, 16).ok().map(|number| Ipv4Addr::from(number.to_le_bytes()))
        };
        let (network, gateway, mask) =
            (address(fields.get(1)?)?, address(fields.get(2)?)?, address(fields.get(7)?)?);
        let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        (flags & UP != 0).then_some(Route {
            interface: (*fields.first()?).to_owned(),
            network: network.into(),
            prefix: mask.to_bits().leading_ones(),
            gateway: (!gateway.is_unspecified()).then_some(gateway.into()),
            metric: fields.get(6)?.parse().ok()?,
        })
    };
    text.lines().skip(1).filter_map(parse).collect()
}

/// The routes in `/proc/net/ipv6_route`.
pub(super) fn parse_ipv6(text: &str) -> Vec<Route> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address = |field: &str| u128::from_str_radix(field, 16).ok().map(Ipv6Addr::from_bits);
        let number = |field: &str| u32::from_str_radix(field, 16).ok();
        let (network, gateway) = (address(fields.first()?)?, address(fields.get(4)?)?);
        let flags = number(fields.get(8)?)?;
        (flags & UP != 0).then_some(Route {
            interface: (*fields.get(9)?).to_owned(),
            network: network.into(),
            prefix: number(fields.get(1)?)?,
            gateway: (!gateway.is_unspecified()).then_some(gateway.into()),
            metric: number(fields.get(5)?)?,
        })
    };
    text.lines().filter_map(parse).filter(|route| route.interface != "lo").collect()
}

/// The route to an address: the one with the longest prefix, and of those the one with the lowest metric.
pub(super) fn find(routes: &[Route], to: IpAddr) -> Option<&Route> {
    let contains = |route: &&Route| match (route.network, to) {
        (IpAddr::V4(network), IpAddr::V4(to)) => {
            let shift = 32 - route.prefix.min(32);
            let top = |address: Ipv4Addr| u64::from(address.to_bits()) >> shift;
            top(network) == top(to)
        }
        (IpAddr::V6(network), IpAddr::V6(to)) => {
            let shift = 128 - route.prefix.min(128);
            let top = |address: Ipv6Addr| address.to_bits().checked_shr(shift).unwrap_or(0);
            top(network) == top(to)
        }
        _ => false,
    };
    routes.iter().filter(contains).min_by_key(|route| (core::cmp::Reverse(route.prefix), route.metric))
}

/// The route of this host to an address.
pub(super) fn lookup(to: IpAddr) -> Option<Route> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let routes = match to {
        IpAddr::V4(_) => parse_ipv4(&read("/proc/net/route")),
        IpAddr::V6(_) => parse_ipv6(&read("/proc/net/ipv6_route")),
    };
    find(&routes, to).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPV4: &str = "\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	FE00000A	0003	0	0	100	00000000	0	0	0
wlan0	00000000	FE00A8C0	0003	0	0	600	00000000	0	0	0
eth0	0000000A	00000000	0001	0	0	100	00FFFFFF	0	0	0
eth1	0000100A	0100000A	0003	0	0	0	0000FFFF	0	0	0
eth2	0000000A	00000000	0000	0	0	0	00FFFFFF	0	0	0
nonsense
";

    #[test]
    fn the_longest_prefix_and_the_lowest_metric_win() {
        let routes = parse_ipv4(IPV4);
        assert_eq!(routes.len(), 4);
        let found = |to: &str| {
            let route = find(&routes, to.parse().unwrap()).unwrap();
            format!("{}: {route}", route.interface)
        };
        assert_eq!(found("10.0.0.7"), "eth0: it is in the network 10.0.0.0/24 of that interface");
        assert_eq!(found("10.16.3.4"), "eth1: the route to 10.16.0.0/16 goes through 10.0.0.1");
        assert_eq!(found("192.0.2.1"), "eth0: it is the default route, through 10.0.0.254");
        assert_eq!(find(&routes[2..], "192.0.2.1".parse().unwrap()), None);
    }

    #[test]
    fn routes_of_ipv6_are_read() {
        let text = "\
fd000077000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth1
00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000001 00000000 80200001       lo
";
        let routes = parse_ipv6(text);
        assert_eq!(routes.len(), 2);
        let found = |to: &str| find(&routes, to.parse().unwrap()).unwrap().interface.clone();
        assert_eq!((found("fd00:77::5"), found("2001:db8::1")), ("eth0".into(), "eth1".into()));
    }
}
