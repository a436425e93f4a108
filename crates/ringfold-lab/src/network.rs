//! Hosts made of network namespaces, and emulated links between them.
//!
//! Each host has one device (`eth0`), a TUN device. One thread reads the packets that hosts send, delays, queues, loses
//! or drops them (`model.rs`), and writes them to their receivers. The namespace of the caller is not changed. This needs
//! only namespaces and TUN devices.

mod emulator;
mod iproute;
mod link;
mod model;
mod packet;
mod profile;
mod tun;
mod user_namespace;

use crate::usage::is_alive;
use emulator::Emulator;
use iproute::{Namespace, ip};
pub use link::{AccessLink, Firewall, PathSettings};
pub use model::PathCounters;
pub use profile::{Profile, ProfileError};
use rustix::process::geteuid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tun::Tun;
pub use user_namespace::in_user_namespace;

/// The number of a host is the last byte of its address.
pub const HOSTS_MAX: usize = 64;

/// The start of the names of all namespaces; the id of the creating process follows.
const PREFIX: &str = "ringfold-";
/// The device of each host.
const DEVICE: &str = "eth0";
/// Packets that wait in a device until the emulator reads them.
const DEVICE_QUEUE: usize = 10_000;
/// The largest packet of Ethernet.
pub const MTU: usize = 1500;

/// Hosts and the links between them. Dropping it removes them and kills all processes in them.
#[derive(Debug)]
pub struct Network {
    // Dropped first: the devices are in the namespaces.
    emulator: Emulator,
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
                Self::new(2).map(drop)
            })
            .clone()
    }

    /// Creates a network without delays and limits. The error is what the machine lacks.
    pub fn new(hosts: usize) -> Result<Self, String> {
        Self::with_mtu(hosts, MTU)
    }

    /// Creates a network with the links of a profile.
    pub fn with_profile(profile: &Profile, hosts: usize) -> Result<Self, String> {
        let network = Self::with_mtu(hosts, profile.mtu)?;
        for from in network.hosts() {
            network.set_access(from, profile.access(from.index));
            network.set_firewall(from, profile.firewall(from.index));
            for to in network.hosts().iter().filter(|to| to.index != from.index) {
                network.set_path(from, to, profile.path(from.index, to.index));
            }
        }
        Ok(network)
    }

    /// Creates a network whose packets have at most this size.
    pub fn with_mtu(hosts: usize, mtu: usize) -> Result<Self, String> {
        assert!((1..=HOSTS_MAX).contains(&hosts), "a network has 1 to {HOSTS_MAX} hosts");
        remove_stale();
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let (mut made, mut tuns) = (Vec::new(), Vec::new());
        for index in 0..hosts {
            let (host, tun) = Host::create(index, format!("{name}-h{index}"), mtu)?;
            made.push(host);
            tuns.push(tun);
        }
        let seed = 0x5249_4e47_464f_4c44 ^ u64::from(std::process::id());
        Ok(Self { emulator: Emulator::start(tuns, seed)?, hosts: made })
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
        self.hosts.iter().map(|host| host.namespace.name.clone()).collect()
    }

    /// Sets one direction of the path between two hosts.
    pub fn set_path(&self, from: &Host, to: &Host, settings: PathSettings) {
        self.emulator.model().set_path(from.index, to.index, settings);
    }

    /// Sets the link of a host to the network.
    pub fn set_access(&self, host: &Host, access: AccessLink) {
        self.emulator.model().set_access(host.index, access);
    }

    /// Puts a firewall in front of a host, or removes it.
    pub fn set_firewall(&self, host: &Host, firewall: Option<Firewall>) {
        self.emulator.model().set_firewall(host.index, firewall);
    }

    /// Sets the congestion control of TCP on all hosts.
    pub fn set_congestion_control(&self, name: &str) -> Result<(), String> {
        for host in &self.hosts {
            let setting = format!("net.ipv4.tcp_congestion_control={name}");
            let output = host.command("sysctl").args(["-qw", &setting]).output();
            let output = output.map_err(|error| format!("cannot run sysctl: {error}"))?;
            if !output.status.success() {
                return Err(format!(
                    "cannot set the congestion control {name}: {}; the kernel must have it and allow it: \
                     sysctl net.ipv4.tcp_available_congestion_control net.ipv4.tcp_allowed_congestion_control",
                    String::from_utf8_lossy(&output.stderr).trim()
                ));
            }
        }
        Ok(())
    }

    /// What became of the packets from one host to another.
    pub fn counters(&self, from: &Host, to: &Host) -> PathCounters {
        self.emulator.model().counters(from.index, to.index)
    }

    /// Resets the TCP connections between two hosts, or only those with this port at either end.
    pub fn reset_connections(&self, one: &Host, other: &Host, port: Option<u16>) {
        self.emulator.model().reset(self.emulator.now(), [one.index, other.index], port);
    }

    /// Takes a host's link down. The host sees that the link is down, the others see silence.
    pub fn link_down(&self, host: &Host) -> Result<(), String> {
        self.set_link(host, false)
    }

    /// Takes the link up again.
    pub fn link_up(&self, host: &Host) -> Result<(), String> {
        self.set_link(host, true)
    }

    /// Drops all packets between two hosts, silently.
    pub fn cut(&self, one: &Host, other: &Host) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Drops all packets from one host to another, silently. The other direction stays open.
    pub fn cut_one_way(&self, from: &Host, to: &Host) {
        self.emulator.model().set_cut(from.index, to.index, true);
    }

    /// Undoes a cut in both directions.
    pub fn mend(&self, one: &Host, other: &Host) {
        let mut model = self.emulator.model();
        model.set_cut(one.index, other.index, false);
        model.set_cut(other.index, one.index, false);
    }

    fn set_link(&self, host: &Host, is_up: bool) -> Result<(), String> {
        self.emulator.model().set_down(host.index, !is_up);
        let set = self.emulator.tun(host.index).set_carrier(is_up);
        set.map_err(|error| format!("the carrier of a TUN device: {error}"))
    }
}

impl Host {
    fn create(index: usize, name: String, mtu: usize) -> Result<(Self, Tun), String> {
        let namespace = Namespace::make(name)?;
        let tun = Tun::create(&namespace, DEVICE)?;
        let mut host = Self { index, namespace, has_ipv6: false };
        let up = format!(
            "link set lo up\nlink set {DEVICE} mtu {mtu} txqueuelen {DEVICE_QUEUE} up\naddr add {}/24 dev {DEVICE}",
            host.ipv4()
        );
        ip(&host.namespace, &up).map_err(|e| format!("IPv4 in namespaces: {e}"))?;
        // Most tests do not need IPv6, and some machines have none.
        host.has_ipv6 =
            ip(&host.namespace, &format!("addr add {}/64 dev {DEVICE} nodad", ipv6(index))).is_ok();
        Ok((host, tun))
    }

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

    /// The same command on this host: program, arguments and environment.
    pub fn enclose(&self, command: &Command) -> Command {
        let mut enclosed = self.command(command.get_program());
        enclosed.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => enclosed.env(name, value),
                None => enclosed.env_remove(name),
            };
        }
        enclosed
    }
}

fn ipv6(index: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, index as u16 + 1)
}

/// Removes the namespaces of processes that were killed.
fn remove_stale() {
    let Ok(folder) = std::fs::read_dir(iproute::DIRECTORY) else { return };
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
        assert_eq!(creator("ringfold-4711-0-h1"), Some(4711));
        assert_eq!(creator("ringfold-x-0-h1"), None);
        assert_eq!(creator("ringfold-4711"), None);
        assert_eq!(creator("4711-0-h1"), None);
    }
}
