//! Measurements on emulated hosts: `ringfold bench --lab`.

use super::bench_op::BenchOp;
use super::point::Point;
use crate::lab;
use anyhow::{Result, bail};
use ringfold::MASTER_PORT;
use ringfold_lab::network::Profile;
use ringfold_lab::{Host, Network};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// The bytes of the headers of IP and TCP in each packet, with the timestamps that Linux sends.
const HEADER_BYTES: usize = 52;

/// The network that is emulated for the ranks.
#[derive(Clone, Debug)]
pub(crate) struct LabOptions {
    pub(crate) profile: Profile,
    /// The number of hosts; one per rank if there is none.
    pub(crate) hosts: Option<usize>,
    pub(crate) congestion_control: Option<String>,
}

/// The emulated hosts of a setting. The master is on the first one.
#[derive(Debug)]
pub(crate) struct BenchLab {
    network: Network,
    profile: Profile,
    world: usize,
    /// The masters that were started on the first host.
    masters: AtomicU16,
}

impl BenchLab {
    pub(crate) fn start(options: &LabOptions, world: usize) -> Result<Self> {
        let hosts = options.hosts.unwrap_or(world);
        if hosts > world {
            bail!("invalid number of hosts {hosts}: there are {world} ranks");
        }
        let network = lab::network(&options.profile, hosts, options.congestion_control.as_deref())?;
        Ok(Self { network, profile: options.profile.clone(), world, masters: AtomicU16::new(0) })
    }

    /// The host of a rank. Consecutive ranks share a host.
    pub(crate) fn host(&self, rank: usize) -> &Host {
        self.network.host(rank * self.network.hosts().len() / self.world)
    }

    /// The first host, with the master.
    pub(crate) fn first(&self) -> &Host {
        self.network.host(0)
    }

    /// The port of the next master on the first host: each variant of Ringfold has one.
    pub(crate) fn next_master_port(&self) -> u16 {
        MASTER_PORT + self.masters.fetch_add(1, Ordering::Relaxed)
    }

    /// A command on the host of a rank.
    pub(crate) fn enclose(&self, rank: usize, command: &Command) -> Command {
        let mut enclosed = self.host(rank).enclose(command);
        enclosed.env("GLOO_SOCKET_IFNAME", "eth0");
        enclosed
    }

    /// The bits per second at which the last host can receive from all others, headers included, and the least time in
    /// which it can fetch so many bytes from them.
    pub(crate) fn fetch_floor(&self, bytes: u64) -> (f64, Duration) {
        let last = self.network.hosts().len() - 1;
        let rate = |rate: Option<u64>| rate.map_or(f64::INFINITY, |rate| rate as f64);
        let up = |host| rate(self.profile.access(host).up).min(rate(self.profile.path(host, last).rate));
        let bits = rate(self.profile.access(last).down).min((0..last).map(up).sum());
        let share = 1.0 - HEADER_BYTES as f64 / self.profile.mtu as f64;
        (bits, Duration::from_secs_f64(bytes as f64 * 8.0 / share / bits))
    }

    /// The least time of a call that repeats, in microseconds; none for other collectives than all_reduce.
    ///
    /// With n hosts and B bytes, every host has to send at least B, and all together 2(n - 1) B. The last byte takes the
    /// longest path, and then the vote that it has arrived takes the longest path to the master. The commit's way back
    /// overlaps the next call.
    pub(crate) fn floor_us(&self, point: &Point) -> Option<f64> {
        let hosts = self.network.hosts().len();
        if point.kind != BenchOp::AllReduce || hosts < 2 {
            return None;
        }
        let share = 1.0 - HEADER_BYTES as f64 / self.profile.mtu as f64;
        let bits = point.bytes() as f64 * 8.0 / share;
        let others = |host: usize| (0..hosts).filter(move |other| *other != host);
        let rate = |rate: Option<u64>| rate.map_or(f64::INFINITY, |rate| rate as f64);
        let up = |host: usize| {
            let paths: f64 = others(host).map(|to| rate(self.profile.path(host, to).rate)).sum();
            paths.min(rate(self.profile.access(host).up))
        };
        let down = |host: usize| {
            let paths: f64 = others(host).map(|from| rate(self.profile.path(from, host).rate)).sum();
            paths.min(rate(self.profile.access(host).down))
        };
        let slowest = (0..hosts).map(|host| up(host).min(down(host))).fold(f64::INFINITY, f64::min);
        let total: f64 = (0..hosts).map(up).sum();
        let seconds = (bits / slowest).max(bits * 2.0 * (hosts - 1) as f64 / total);
        let longest =
            |from: usize| others(from).map(|to| self.profile.path(from, to).delay).max().unwrap_or_default();
        let data: Duration = (0..hosts).map(longest).max().unwrap_or_default();
        let vote = (1..hosts).map(|host| self.profile.path(host, 0).delay).max().unwrap_or_default();
        Some((seconds + data.as_secs_f64() + vote.as_secs_f64()) * 1e6)
    }
}
