//! A switch and hosts, made of network namespaces. Links can be taken down, paths cut, rates limited.
//!
//! The switch is a bridge in its own namespace, so the namespace of the caller is not changed. Each host has one link
//! (`eth0`) to it. All hosts have static neighbour entries. To cut the path from one host to another, the entry gets
//! the hardware address of the switch, which drops the packets silently, in this direction only. This needs only
//! namespaces, bridges and veth pairs.

mod iproute;

use crate::usage::is_alive;
use iproute::{Namespace, ip, tc};
use rustix::process::geteuid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of a host is the last byte of its address.
pub const HOSTS_MAX: usize = 64;

/// The start of the names of all namespaces; the id of the creating process follows.
const PREFIX: &str = "ringfold-";
/// The directory of `ip netns`.
const NAMESPACES: &str = "/run/netns";
/// The hardware address of the switch, which has no IP address and drops packets.
const SWITCH_LINK_ADDRESS: &str = "02:52:46:ff:ff:ff";

/// A switch and its hosts. Dropping it removes them and kills all processes in them.
#[derive(Debug)]
pub struct Network {
    switch: Namespace,
    hosts: Vec<Host>,
}

/// One host of a network.
#[derive(Debug)]
pub struct Host {
    index: usize,
    namespace: Namespace,
    has_ipv6: bool,
}

impl Network {
    /// Whether this machine supports such networks. The error is what is missing.
    pub fn available() -> Result<(), String> {
        static AVAILABLE: OnceLock<Result<(), String>> = OnceLock::new();
        AVAILABLE
            .get_or_init(|| {
                if Command::new("ip").arg("-V").output().is_err() {
                    return Err("the command ip (package iproute2)".into());
                }
                if !geteuid().is_root() {
                    return Err("root, for network namespaces".into());
                }
                // A trial shows what else is missing.
                Self::new(2).and_then(|network| network.rate(network.host(0), 100)).map(drop)
            })
            .clone()
    }

    /// Creates a network. The error is what the machine lacks.
    pub fn new(hosts: usize) -> Result<Self, String> {
        assert!((1..=HOSTS_MAX).contains(&hosts), "a network has 1 to {HOSTS_MAX} hosts");
        remove_stale();
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let switch = Namespace::make(format!("{name}-switch"))?;
        let mut network = Self { switch, hosts: Vec::new() };
        let bridge = format!(
            "link add bridge0 address {SWITCH_LINK_ADDRESS} type bridge mcast_snooping 0\nlink set bridge0 up"
        );
        ip(&network.switch, &bridge).map_err(|e| format!("bridges: {e}"))?;
        for index in 0..hosts {
            let host = network.connect(index, format!("{name}-h{index}"))?;
            network.hosts.push(host);
        }
        for host in &network.hosts {
            network.set_paths(host, &network.hosts, PathState::Open)?;
        }
        Ok(network)
    }

    /// The host with this index.
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// All hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The names of its namespaces, as `ip netns` lists them.
    pub fn namespaces(&self) -> Vec<String> {
        let hosts = self.hosts.iter().map(|host| &host.namespace);
        hosts.chain([&self.switch]).map(|namespace| namespace.name.clone()).collect()
    }

    /// Takes a host's link down. The host sees that the link is down, the others see silence.
    pub fn link_down(&self, host: &Host) -> Result<(), String> {
        ip(&self.switch, &format!("link set {} down", host.port()))
    }

    /// Takes the link up again.
    pub fn link_up(&self, host: &Host) -> Result<(), String> {
        ip(&self.switch, &format!("link set {} up", host.port()))
    }

    /// Drops all packets between two hosts, silently.
    pub fn cut(&self, one: &Host, other: &Host) -> Result<(), String> {
        self.cut_one_way(one, other)?;
        self.cut_one_way(other, one)
    }

    /// Drops all packets from one host to another, silently. The other direction stays open.
    pub fn cut_one_way(&self, from: &Host, to: &Host) -> Result<(), String> {
        self.set_paths(from, [to], PathState::Cut)
    }

    /// Undoes a cut in both directions.
    pub fn mend(&self, one: &Host, other: &Host) -> Result<(), String> {
        self.set_paths(one, [other], PathState::Open)?;
        self.set_paths(other, [one], PathState::Open)
    }

    /// Limits the rate of a host's link in each direction.
    pub fn rate(&self, host: &Host, mbit: u32) -> Result<(), String> {
        // The bucket holds 10 ms of traffic, and at least a few full packets.
        let burst_bytes = (u64::from(mbit) * 1_000_000 / 8 / 100).max(32 * 1024);
        for (namespace, device) in [(&host.namespace, "eth0"), (&self.switch, &*host.port())] {
            let limit = format!(
                "qdisc replace dev {device} root tbf rate {mbit}mbit burst {burst_bytes} latency 100ms"
            );
            tc(namespace, &limit).map_err(|e| format!("limits of the rate (tbf): {e}"))?;
        }
        Ok(())
    }

    /// Removes the rate limit of a host's link, which must have one.
    pub fn unlimited(&self, host: &Host) -> Result<(), String> {
        tc(&host.namespace, "qdisc del dev eth0 root")?;
        tc(&self.switch, &format!("qdisc del dev {} root", host.port()))
    }

    /// Creates a host and connects it.
    fn connect(&self, index: usize, name: String) -> Result<Host, String> {
        let namespace = Namespace::make(name)?;
        let mut host = Host { index, namespace, has_ipv6: false };
        let (port, link, inside) = (host.port(), host.link_address(), &host.namespace.name);
        let pair = format!(
            "link add {port} type veth peer name eth0 address {link} netns {inside}\n\
             link set {port} master bridge0 up"
        );
        ip(&self.switch, &pair).map_err(|e| format!("veth pairs: {e}"))?;
        let up = format!("link set lo up\naddr add {}/24 dev eth0\nlink set eth0 up", host.ipv4());
        ip(&host.namespace, &up).map_err(|e| format!("IPv4 in namespaces: {e}"))?;
        // Most tests do not need IPv6, and some machines have none.
        host.has_ipv6 = ip(&host.namespace, &format!("addr add {}/64 dev eth0 nodad", ipv6(index))).is_ok();
        Ok(host)
    }

    /// Opens or cuts the paths from one host to others. It affects live connections at once.
    fn set_paths<'a>(
        &self,
        from: &Host,
        to: impl IntoIterator<Item = &'a Host>,
        state: PathState,
    ) -> Result<(), String> {
        let mut script = String::new();
        for to in to.into_iter().filter(|to| to.index != from.index) {
            let link = match state {
                PathState::Open => to.link_address(),
                PathState::Cut => SWITCH_LINK_ADDRESS.to_owned(),
            };
            for address in to.addresses() {
                script += &format!("neigh replace {address} lladdr {link} dev eth0 nud permanent\n");
            }
        }
        ip(&from.namespace, &script)
    }
}

impl Host {
    /// Its index in the network.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its IPv4 address.
    pub fn ipv4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.index as u8 + 1)
    }

    /// Its IPv6 address, if the machine has IPv6.
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        self.has_ipv6.then(|| ipv6(self.index))
    }

    /// Its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        [Some(IpAddr::V4(self.ipv4())), self.ipv6().map(IpAddr::V6)].into_iter().flatten()
    }

    /// A command that runs on this host. Signals reach the program itself.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace.name]).arg(program);
        command
    }

    /// The switch's end of its link.
    fn port(&self) -> String {
        format!("port{}", self.index)
    }

    fn link_address(&self) -> String {
        format!("02:52:46:00:00:{:02x}", self.index + 1)
    }
}

#[derive(Clone, Copy)]
enum PathState {
    Open,
    Cut,
}

fn ipv6(index: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, index as u16 + 1)
}

/// Removes the namespaces of processes that were killed.
fn remove_stale() {
    let Ok(folder) = std::fs::read_dir(NAMESPACES) else { return };
    for entry in folder.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if creator(&name).is_some_and(|pid| !is_alive(pid)) {
            drop(Namespace { name });
        }
    }
}

/// The process that created a namespace, by its name.
fn creator(namespace: &str) -> Option<u32> {
    namespace.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_namespaces_have_a_creator() {
        assert_eq!(creator("ringfold-4711-0-switch"), Some(4711));
        assert_eq!(creator("ringfold-x-0-switch"), None);
        assert_eq!(creator("ringfold-4711"), None);
        assert_eq!(creator("4711-0-switch"), None);
    }
}
