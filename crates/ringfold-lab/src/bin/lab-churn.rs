//! Peers come and are killed for as long as one likes; the figures at the end.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::Parser;
use ringfold_lab::churn::Churn;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Peers come and are killed, the others train on, and everything is checked.
#[derive(Parser)]
struct Arguments {
    /// How long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The most peers at once.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(3..=10))]
    peers: u64,
    /// The time between two events, at least; and at most twice of it.
    #[arg(long, default_value_t = 500)]
    pause_ms: u64,
    /// Decides what happens; another one each time if it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// The options of the peers' training loop.
    #[arg(long, default_value = "tags=3 count=20000 bytes=65536 keys=4")]
    training: String,
    /// The deadlines: default or short.
    #[arg(long, default_value = "default")]
    timing: String,
    /// Where all that was printed is put when something is wrong.
    #[arg(long)]
    logs: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let programs = std::env::current_exe()?.parent().context("a folder of programs")?.to_owned();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = arguments.seed.unwrap_or(since.map_or(0, |since| since.as_nanos() as u64) % 1_000_000_007);
    println!("seed {seed}");
    let churn = Churn {
        master: programs.join("lab-master"),
        peer: programs.join("lab-peer"),
        time: Duration::from_secs(arguments.seconds),
        peers_max: arguments.peers as usize,
        pause: Duration::from_millis(arguments.pause_ms),
        seed,
        training: arguments.training,
        pace: arguments.timing,
        logs: arguments.logs.unwrap_or_else(|| std::env::temp_dir().join(format!("churn-{seed}"))),
    };
    println!("{}", churn.run()?);
    Ok(())
}
