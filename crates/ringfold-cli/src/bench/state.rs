//! Measures the fetch of a shared state on emulated hosts: `ringfold bench --lab PROFILE --state SIZE`.
//!
//! All ranks but the last hold the same state. In each run the last one, which holds another, fetches all of it.

use super::arguments::Bench;
use super::children::{Children, lines, next};
use super::interrupt::Interrupt;
use super::lab::BenchLab;
use super::output::print;
use super::statistics::median;
use crate::exit_code::SUCCESS;
use crate::invocation::Invocation;
use crate::lab::LabMaster;
use crate::size::ByteSize;
use anyhow::{Context, Result, bail};
use clap::Args;
use ringfold::{Communicator, SharedState, SyncStrategy};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a rank waits at the start until all ranks have joined.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
const VOTE_PAUSE: Duration = Duration::from_millis(5);
/// How long a run may take.
const RUN_TIMEOUT: Duration = Duration::from_secs(900);

/// The arguments of the hidden command `bench-state-rank`.
#[derive(Args, Clone, Debug)]
pub struct StateRankArguments {
    /// The address of the master.
    #[arg(long)]
    master: String,
    #[arg(long)]
    rank: usize,
    #[arg(long)]
    world: usize,
    /// The bytes of the state.
    #[arg(long)]
    bytes: usize,
    #[arg(long)]
    runs: u32,
}

/// One line of the last rank.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct FetchRun {
    /// The time of a sync in which all hold the same: hashes and votes.
    idle_s: f64,
    /// The time of the sync in which this rank fetches.
    fetch_s: f64,
    received_bytes: u64,
}

impl StateRankArguments {
    /// Joins, takes part in all syncs, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let communicator = Communicator::builder(self.master.as_str())
            .name(format!("rank-{}", self.rank))
            .build()
            .context("cannot create the communicator")?;
        communicator.connect().context("cannot connect to the master")?;
        let begin = Instant::now();
        while (communicator.attributes().group_world as usize) < self.world {
            if begin.elapsed() > JOIN_TIMEOUT {
                bail!("timed out after {JOIN_TIMEOUT:?} waiting for {} peers", self.world);
            }
            match communicator.update_topology() {
                Err(error) if !error.is_retryable() => return Err(error).context("topology update failed"),
                _ => thread::sleep(VOTE_PAUSE),
            }
        }
        let state: Vec<u64> =
            (0..self.bytes as u64 / 8).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let mut mine = state.clone();
        let is_last = self.rank + 1 == self.world;
        for run in 0..self.runs {
            let revision = u64::from(run) * 2;
            let (idle_s, _) = sync(&communicator, &mut mine, revision)?;
            if is_last {
                mine.fill(0);
            }
            let (fetch_s, received_bytes) = sync(&communicator, &mut mine, revision + 1)?;
            if mine != state {
                bail!("the fetched state is wrong");
            }
            if is_last {
                print(&serde_json::to_string(&FetchRun { idle_s, fetch_s, received_bytes })?)?;
            }
        }
        Ok(SUCCESS)
    }
}

/// Syncs the state. Returns the seconds it took, and the bytes that arrived.
fn sync(communicator: &Communicator, state: &mut [u64], revision: u64) -> Result<(f64, u64)> {
    let began = Instant::now();
    let mut shared = SharedState::new(revision).add("state", state);
    let info = communicator.sync_shared_state(&mut shared, SyncStrategy::EnforcePopular)?;
    Ok((began.elapsed().as_secs_f64(), info.rx_bytes))
}

/// Measures and prints.
pub(super) fn run(
    bench: &Bench,
    bytes: ByteSize,
    invocation: &Invocation,
    interrupt: &Interrupt,
) -> Result<()> {
    let options = bench.lab()?.context("no emulated network")?;
    let runs = bench.effort().runs;
    for &world in &bench.world {
        let world = world as usize;
        if world < 3 {
            bail!(
                "invalid number of ranks {world}: a fetch needs two sources that agree, and a rank that fetches"
            );
        }
        let lab = BenchLab::start(&options, world)?;
        let master = LabMaster::start(lab.first(), invocation, &[])?;
        let mut ranks = Children(Vec::new());
        for rank in 0..world {
            let mut command = invocation.command()?;
            command.args(["bench-state-rank", "--master", &master.address, "--rank", &rank.to_string()]);
            command.args(["--world", &world.to_string(), "--bytes", &bytes.0.to_string()]);
            command.args(["--runs", &runs.to_string()]);
            let mut command: Command = lab.enclose(rank, &command);
            let output = if rank + 1 == world { Stdio::piped() } else { Stdio::null() };
            command.stdin(Stdio::null()).stdout(output);
            ranks.0.push(command.spawn().context("cannot start a rank")?);
        }
        let lines = lines(ranks.0.last_mut().and_then(|last| last.stdout.take()))?;
        let (rate, floor) = lab.fetch_floor(bytes.0);
        let floor = floor.as_secs_f64();
        let sources = world - 1;
        let mbit = rate / 1e6;
        print(&format!(
            "{bytes} from {sources} sources, which can send {mbit:.0} Mbit/s to the newcomer; floor {floor:.2} s"
        ))?;
        print("run    time s   fetch s   share   received bytes")?;
        let mut times = Vec::new();
        for run in 1..=runs {
            let FetchRun { idle_s, fetch_s, received_bytes } = next(&lines, interrupt, RUN_TIMEOUT)?;
            let net = (fetch_s - idle_s).max(0.001);
            print(&format!(
                "{run:3}  {fetch_s:8.2}  {net:8.2}  {:5.1} %  {received_bytes}",
                floor / fetch_s * 100.0
            ))?;
            times.push((fetch_s, net));
        }
        let column = |of: fn(&(f64, f64)) -> f64| times.iter().map(of).collect::<Vec<_>>();
        let (whole, net) = (column(|time| time.0), column(|time| time.1));
        let least = whole.iter().copied().fold(f64::INFINITY, f64::min);
        let most = whole.iter().copied().fold(0.0, f64::max);
        if let (Some(whole), Some(net)) = (median(&whole), median(&net)) {
            print(&format!(
                "median {whole:.2} s ({least:.2} - {most:.2}), of which the fetch {net:.2} s: {:.1} % of {mbit:.0} Mbit/s",
                floor / whole * 100.0
            ))?;
        }
    }
    Ok(())
}
