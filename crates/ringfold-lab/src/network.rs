//! A switch and some hosts, made of network namespaces; cables can be pulled, ways cut, lines made slow.
//!
//! The switch is a bridge in a namespace of its own, so nothing is changed in the namespace of the caller. Each
//! host has one line (`eth0`) to it. Who is at which hardware address is written down on every host from the
//! start, so no neighbour is ever asked for. That is also how a way is cut: the sender is given the hardware
//! address of the switch itself for the receiver. Its packets are taken and lost without a word to anyone, one way
//! only, and nothing is needed of the kernel but namespaces, bridges and veth pairs.

mod iproute;

use crate::usage::is_alive;
use iproute::{Namespace, ip, tc};
use rustix::process::geteuid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Hosts that fit: the last byte of their addresses is their number.
pub const HOSTS_MAX: usize = 64;

/// What the names of all namespaces begin with; the number of the process that made it follows.
const PREFIX: &str = "ringfold-";
/// Where `ip netns` keeps them.
const NAMESPACES: &str = "/run/netns";
/// The hardware address of the switch. It has no other address, so what is sent to it is lost.
const SWITCH_LINK_ADDRESS: &str = "02:52:46:ff:ff:ff";

/// A switch and its hosts. They are gone when this is dropped, with all processes that still run in them.
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
    /// Whether this machine can have such networks. If not, what it lacks.
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
                // What else may be missing shows when it is used.
                Self::new(2).and_then(|network| network.rate(network.host(0), 100)).map(drop)
            })
            .clone()
    }

    /// Makes a network. An error says what the machine lacks.
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
            network.set_ways(host, &network.hosts, Way::Open)?;
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

    /// Pulls a host's cable: it sees that its line is dead, the others see silence.
    pub fn link_down(&self, host: &Host) -> Result<(), String> {
        ip(&self.switch, &format!("link set {} down", host.port()))
    }

    /// Puts the cable back.
    pub fn link_up(&self, host: &Host) -> Result<(), String> {
        ip(&self.switch, &format!("link set {} up", host.port()))
    }

    /// No packet passes between two hosts any more, either way. Nobody is told.
    pub fn cut(&self, one: &Host, other: &Host) -> Result<(), String> {
        self.cut_one_way(one, other)?;
        self.cut_one_way(other, one)
    }

    /// No packet of the one reaches the other any more; the other way stays open. Nobody is told.
    pub fn cut_one_way(&self, from: &Host, to: &Host) -> Result<(), String> {
        self.set_ways(from, [to], Way::Cut)
    }

    /// Undoes a cut, both ways.
    pub fn mend(&self, one: &Host, other: &Host) -> Result<(), String> {
        self.set_ways(one, [other], Way::Open)?;
        self.set_ways(other, [one], Way::Open)
    }

    /// Limits a host's line, in each direction.
    pub fn rate(&self, host: &Host, mbit: u32) -> Result<(), String> {
        // A bucket holds 10 ms of traffic, and at least a few full packets.
        let burst_bytes = (u64::from(mbit) * 1_000_000 / 8 / 100).max(32 * 1024);
        for (namespace, device) in [(&host.namespace, "eth0"), (&self.switch, &*host.port())] {
            let limit = format!(
                "qdisc replace dev {device} root tbf rate {mbit}mbit burst {burst_bytes} latency 100ms"
            );
            tc(namespace, &limit).map_err(|e| format!("limits of the rate (tbf): {e}"))?;
        }
        Ok(())
    }

    /// Takes away the limit of a host's line. It must have one.
    pub fn unlimited(&self, host: &Host) -> Result<(), String> {
        tc(&host.namespace, "qdisc del dev eth0 root")?;
        tc(&self.switch, &format!("qdisc del dev {} root", host.port()))
    }

    /// Makes a host and plugs it in.
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
        // Machines without IPv6 are common, and most tests do without.
        host.has_ipv6 = ip(&host.namespace, &format!("addr add {}/64 dev eth0 nodad", ipv6(index))).is_ok();
        Ok(host)
    }

    /// Says where packets from one host to others go. Live connections follow at once.
    fn set_ways<'a>(
        &self,
        from: &Host,
        to: impl IntoIterator<Item = &'a Host>,
        way: Way,
    ) -> Result<(), String> {
        let mut script = String::new();
        for to in to.into_iter().filter(|to| to.index != from.index) {
            let link = match way {
                Way::Open => to.link_address(),
                Way::Cut => SWITCH_LINK_ADDRESS.to_owned(),
            };
            for address in to.addresses() {
                script += &format!("neigh replace {address} lladdr {link} dev eth0 nud permanent\n");
            }
        }
        ip(&from.namespace, &script)
    }
}

impl Host {
    /// Its place in the network.
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

    /// A command that runs on this host. The process that it starts is the program's own, so signals reach it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace.name]).arg(program);
        command
    }

    /// The switch's end of its cable.
    fn port(&self) -> String {
        format!("port{}", self.index)
    }

    fn link_address(&self) -> String {
        format!("02:52:46:00:00:{:02x}", self.index + 1)
    }
}

#[derive(Clone, Copy)]
enum Way {
    Open,
    Cut,
}

fn ipv6(index: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, index as u16 + 1)
}

/// Removes what processes that were killed left behind.
fn remove_stale() {
    let Ok(folder) = std::fs::read_dir(NAMESPACES) else { return };
    for entry in folder.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if maker(&name).is_some_and(|pid| !is_alive(pid)) {
            drop(Namespace { name });
        }
    }
}

/// The process that made a namespace, if it is one of ours.
fn maker(namespace: &str) -> Option<u32> {
    namespace.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespaces_of_ours_have_a_maker() {
        assert_eq!(maker("ringfold-4711-0-switch"), Some(4711));
        assert_eq!(maker("ringfold-x-0-switch"), None);
        assert_eq!(maker("ringfold-4711"), None);
        assert_eq!(maker("4711-0-switch"), None);
    }
}
