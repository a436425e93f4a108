//! Measures a master with many peers: `ringfold bench --master --peers 10,100,1000`.
//!
//! The master is a process of its own. The peers are scripted sessions of this process: real control connections over
//! loopback with the real peer machine, but without data. All of them are served by one thread.

mod crowd;
mod scripted_peer;
mod swarm;

use super::interrupt::Interrupt;
use super::output::print;
use super::statistics::median;
use crate::demo::start_master;
use crate::invocation::Invocation;
use crate::serving::raise_descriptor_limit;
use anyhow::{Context, Result};
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;
use swarm::{Swarm, Traffic};

/// Votes and commits that are not measured.
const WARMUP: u32 = 10;

/// Joins and losses of one measurement, for each commit.
const MEMBERSHIP_SHARE: u32 = 20;

const HEADER: &str = "\
# peers  event      runs    p50 ms    p99 ms    max ms   KiB to master  KiB from it   master cpu ms  peers' cpu ms";

/// Measures joins while many connections of one address never authenticate.
pub(super) fn run_crowded(
    count: u64,
    rounds: u32,
    invocation: &Invocation,
    interrupt: &Interrupt,
) -> Result<()> {
    crowd::run(count as usize, (rounds / MEMBERSHIP_SHARE).max(2), invocation, interrupt)
}

/// Measures and prints a table for each number of peers.
pub(super) fn run(peers: &[u64], rounds: u32, invocation: &Invocation, interrupt: &Interrupt) -> Result<()> {
    raise_descriptor_limit();
    print(HEADER)?;
    for &count in peers {
        measure(count as usize, rounds, invocation, interrupt)
            .with_context(|| format!("the measurement with {count} peers failed"))?;
    }
    Ok(())
}

fn measure(count: usize, rounds: u32, invocation: &Invocation, interrupt: &Interrupt) -> Result<()> {
    let (master, address) = start_master(invocation)?;
    let address: SocketAddr = address.parse().context("invalid address of the master")?;
    let mut swarm = Swarm::new(address, interrupt.clone())?;
    let pid = master.id();
    let repeated = (rounds / MEMBERSHIP_SHARE).max(2);
    let table = |event, times: &[Duration], cost| print(&row(count, event, times, cost));

    let (times, cost) = repeat(pid, &mut swarm, 1, |swarm| swarm.start(count))?;
    table("all join", &times, cost)?;
    for _ in 0..WARMUP {
        swarm.commit()?;
        swarm.vote()?;
    }
    let (times, cost) = repeat(pid, &mut swarm, rounds, Swarm::vote)?;
    table("vote", &times, cost)?;
    let (times, cost) = repeat(pid, &mut swarm, rounds, Swarm::commit)?;
    table("commit", &times, cost)?;
    let (mut joins, mut losses, mut reopened) = (Vec::new(), Vec::new(), Vec::new());
    let (mut join_cost, mut loss_cost) = (Cost::default(), Cost::default());
    for _ in 0..repeated {
        let (times, cost) = repeat(pid, &mut swarm, 1, Swarm::join)?;
        joins.extend(times);
        join_cost += cost;
        // The times at which all know of the loss, and at which all have the next epoch.
        let (times, cost) = repeat(pid, &mut swarm, 1, |swarm| {
            let (seen, open) = swarm.lose()?;
            reopened.push(open);
            Ok(seen)
        })?;
        losses.extend(times);
        loss_cost += cost;
    }
    table("join", &joins, join_cost)?;
    table("loss", &losses, loss_cost)?;
    table(" reopened", &reopened, Cost::default())?;
    let peak = memory_peak_bytes(pid) as f64 / f64::from(1 << 20);
    print(&format!("{count:7}  peak resident memory of the master: {peak:.1} MiB"))
}

/// What a measurement cost in total.
#[derive(Clone, Copy, Default)]
struct Cost {
    traffic: Traffic,
    master_ns: u64,
    peers_ns: u64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.traffic.to_master += other.traffic.to_master;
        self.traffic.from_master += other.traffic.from_master;
        self.master_ns += other.master_ns;
        self.peers_ns += other.peers_ns;
    }
}

/// Repeats an event. Returns the time of each, and the cost of all.
fn repeat(
    master: u32,
    swarm: &mut Swarm,
    times: u32,
    mut event: impl FnMut(&mut Swarm) -> Result<Duration>,
) -> Result<(Vec<Duration>, Cost)> {
    let before = (swarm.traffic, cpu_ns(&master.to_string()), cpu_ns("self"));
    let times: Result<Vec<_>> = (0..times).map(|_| event(swarm)).collect();
    let traffic = Traffic {
        to_master: swarm.traffic.to_master - before.0.to_master,
        from_master: swarm.traffic.from_master - before.0.from_master,
    };
    let master_ns = cpu_ns(&master.to_string()).saturating_sub(before.1);
    let peers_ns = cpu_ns("self").saturating_sub(before.2);
    Ok((times?, Cost { traffic, master_ns, peers_ns }))
}

fn row(peers: usize, event: &str, times: &[Duration], cost: Cost) -> String {
    let mut ms: Vec<_> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    ms.sort_by(f64::total_cmp);
    let p50 = median(&ms).unwrap_or(0.0);
    let (p99, max) = (percentile(&ms, 99), percentile(&ms, 100));
    let runs = ms.len();
    let each = |total: u64, unit: f64| total as f64 / unit / runs.max(1) as f64;
    let (to, from) = (each(cost.traffic.to_master, 1024.0), each(cost.traffic.from_master, 1024.0));
    let (master, own) = (each(cost.master_ns, 1e6), each(cost.peers_ns, 1e6));
    format!(
        "{peers:7}  {event:9} {runs:5}  {p50:8.2}  {p99:8.2}  {max:8.2}  {to:14.1}  {from:11.1}  {master:14.2}  {own:13.2}"
    )
}

/// A percentile of sorted values; zero if there are none.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Processor time of all threads of a process that have not ended.
fn cpu_ns(process: &str) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let spent = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.filter_map(spent).sum()
}

fn memory_peak_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
