//! Runs the churn test for a given time and prints its figures.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::Parser;
use ringfold_lab::churn::Churn;
use ringfold_lab::network::Profile;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Peers join and are killed while the others train. All results are checked.
#[derive(Parser)]
struct Arguments {
    /// The duration in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The maximum number of peers.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(3..=10))]
    peers: u64,
    /// The minimum time between two events; the maximum is twice this.
    #[arg(long, default_value_t = 500)]
    pause_ms: u64,
    /// The seed of all decisions [default: a new one each time].
    #[arg(long)]
    seed: Option<u64>,
    /// The options of the peers' training loop.
    #[arg(long, default_value = "tags=3 count=20000 bytes=65536 keys=4")]
    training: String,
    /// The timeouts: default or short.
    #[arg(long, default_value = "default")]
    timing: String,
    /// An emulated network, whose paths are cut and whose connections are reset: a profile's name or file.
    #[arg(long)]
    network: Option<String>,
    /// The directory for the output of all processes after a failure.
    #[arg(long)]
    logs: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let programs =
        std::env::current_exe()?.parent().context("cannot find the directory of this program")?.to_owned();
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
        timing_preset: arguments.timing,
        network: arguments.network.as_deref().map(Profile::load).transpose()?,
        logs: arguments.logs.unwrap_or_else(|| std::env::temp_dir().join(format!("churn-{seed}"))),
    };
    println!("{}", churn.run()?);
    Ok(())
}
