//! A rank of a measurement in which one is killed.

use super::super::output::print;
use crate::exit_code::SUCCESS;
use anyhow::{Context, Result, bail};
use clap::Args;
use ringfold::{AllReduce, Communicator};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, stdin};
use std::thread;
use std::time::{Duration, Instant};

/// How long a rank waits at the start until all ranks have joined.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
const VOTE_PAUSE: Duration = Duration::from_millis(5);
/// The most calls until a rank has the result.
const CALLS_MAX: u32 = 20;
/// The period of the values of a rank; a prime.
const PERIOD: usize = 1021;

/// The arguments of the hidden command `bench-loss-rank`.
#[derive(Args, Clone, Debug)]
pub struct LossRankArguments {
    /// The address of the master.
    #[arg(long)]
    master: String,
    #[arg(long)]
    rank: usize,
    #[arg(long)]
    world: usize,
    /// The elements of the buffer.
    #[arg(long)]
    count: usize,
}

/// A reduce that all ranks are to do, once each is ready.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) resume: bool,
}

/// One line of a rank.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum RankLine {
    /// Its buffer is filled.
    Ready,
    /// It has a result, all elements of which are right.
    Reduced(Reduced),
}

/// The result of a reduce on a rank. Times are those of the clock that all processes of a machine share.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Reduced {
    pub(super) begun_ns: u64,
    pub(super) done_ns: u64,
    /// The peers that the result is of.
    pub(super) world: usize,
    /// The calls until there was a result.
    pub(super) calls: u32,
    /// Of the operation that gave the result.
    pub(super) sent_bytes: u64,
}

/// Nanoseconds of the monotonic clock, the same in all processes.
pub(super) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl LossRankArguments {
    /// Joins, reduces as told on standard input until its end, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let communicator = self.join()?;
        let mut buffer = vec![0.0; self.count];
        let mut lines = stdin().lock().lines();
        while let Some(line) = lines.next().transpose()? {
            let order: Order = serde_json::from_str(&line).context("invalid line of the measurement")?;
            fill(&mut buffer, self.rank);
            print(&serde_json::to_string(&RankLine::Ready)?)?;
            if lines.next().transpose()?.is_none() {
                break;
            }
            let reduced = reduce(&communicator, &mut buffer, order)?;
            check(&buffer, reduced.world)?;
            print(&serde_json::to_string(&RankLine::Reduced(reduced))?)?;
        }
        Ok(SUCCESS)
    }

    /// Connects, and waits until all ranks are members.
    fn join(&self) -> Result<Communicator> {
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
        Ok(communicator)
    }
}

/// Reduces until there is a result.
fn reduce(communicator: &Communicator, buffer: &mut [f32], order: Order) -> Result<Reduced> {
    let options = if order.resume { AllReduce::sum().resume() } else { AllReduce::sum() };
    let begun_ns = now_ns();
    for calls in 1..=CALLS_MAX {
        match communicator.all_reduce(buffer, options) {
            Ok(info) => {
                let (world, sent_bytes) = (info.world as usize, info.tx_bytes);
                return Ok(Reduced { begun_ns, done_ns: now_ns(), world, calls, sent_bytes });
            }
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error).context("all-reduce failed"),
        }
    }
    bail!("no result after {CALLS_MAX} calls")
}

/// A value of a rank: sums are exact, and differ for different ranks.
fn value(rank: usize, index: usize) -> f32 {
    (index % PERIOD) as f32 + (1 << rank) as f32 * 1024.0
}

fn fill(buffer: &mut [f32], rank: usize) {
    let period: Vec<f32> = (0..PERIOD).map(|index| value(rank, index)).collect();
    buffer.chunks_mut(PERIOD).for_each(|piece| piece.copy_from_slice(&period[..piece.len()]));
}

/// Fails if an element is not the sum of the values of the first ranks.
fn check(buffer: &[f32], world: usize) -> Result<()> {
    let period: Vec<f32> = (0..PERIOD).map(|index| (0..world).map(|rank| value(rank, index)).sum()).collect();
    for (number, piece) in buffer.chunks(PERIOD).enumerate() {
        if let Some(at) = (0..piece.len()).find(|at| piece[*at] != period[*at]) {
            let (index, found, right) = (number * PERIOD + at, piece[at], period[at]);
            bail!("wrong result: element {index} is {found} and not {right}, the sum over {world} ranks");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_with_a_wrong_element_or_another_rank_is_found() {
        let mut sum: Vec<f32> = (0..5000).map(|i| (0..3).map(|rank| value(rank, i)).sum()).collect();
        assert!(check(&sum, 3).is_ok());
        assert!(check(&sum, 4).is_err());
        sum[4999] += 1.0;
        assert!(check(&sum, 3).unwrap_err().to_string().contains("element 4999"));
        let mut own = vec![0.0; 3000];
        fill(&mut own, 2);
        assert!((0..3000).all(|index| own[index] == value(2, index)));
    }

    #[test]
    fn sums_over_all_ranks_are_exact() {
        let world = super::super::WORLD_MAX;
        let sum: f32 = (0..world).map(|rank| value(rank, PERIOD - 1)).sum();
        let exact: u64 = (0..world).map(|rank| (PERIOD as u64 - 1) + (1024 << rank)).sum();
        assert_eq!(sum as u64, exact);
        assert!(exact < 1 << 24);
    }
}
