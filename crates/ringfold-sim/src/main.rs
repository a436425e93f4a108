//! Command line of the simulator.

use clap::Parser;
use ringfold_sim::{PlantedBug, RunReport};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Simulates complete Ringfold runs in virtual time: masters, up to 12 peers, and faults, from a seed.
#[derive(Parser)]
#[command(name = "ringfold-sim", version)]
struct Options {
    /// Replay one seed and print its log.
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run the seeds from A to B, B excluded; 0..1000 if missing.
    #[arg(long, value_name = "A..B", value_parser = parse_range)]
    seeds: Option<(u64, u64)>,
    /// With --seeds: run every Nth of them. Seeds with several masters are 5, 14, 23, and so on.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    step: u64,
    /// Plant a bug that the oracle must find.
    #[arg(long, value_name = "BUG", ignore_case = true)]
    plant: Option<PlantedBug>,
    /// Number of threads; 0 means one per core.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// With --seed: print only the summary.
    #[arg(long)]
    quiet: bool,
    /// With --seeds: stop after this many seeds with violations.
    #[arg(long, default_value_t = 1)]
    violations: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match options.seed {
        Some(seed) => replay(seed, &options),
        None => run_many(&options),
    }
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let (low, high) = text.split_once("..").ok_or("invalid range: must be A..B")?;
    let number = |s: &str| s.replace('_', "").parse::<u64>().map_err(|e| format!("{s:?}: {e}"));
    let (low, high) = (number(low)?, number(high)?);
    if low < high { Ok((low, high)) } else { Err("invalid range: A must be below B".into()) }
}

fn replay(seed: u64, options: &Options) -> ExitCode {
    let report = ringfold_sim::replay(seed, options.plant);
    if !options.quiet {
        let mut out = std::io::stdout().lock();
        // A closed pipe is not an error.
        let _ = report.log.iter().try_for_each(|line| writeln!(out, "{line}"));
    }
    println!(
        "seed {seed}: {} in {} steps; {} reduces committed, {} aborted, {} syncs",
        report.end, report.steps, report.committed, report.aborted, report.synced
    );
    for violation in &report.violations {
        println!("VIOLATION {violation}");
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The totals of many runs.
#[derive(Default)]
struct Totals {
    seeds: u64,
    steps: u64,
    committed: u64,
    aborted: u64,
    synced: u64,
    resumed: u64,
    violated: u64,
    /// When progress was last printed, in seconds.
    printed_at: u64,
}

/// The seeds that are run if none are given.
const SEEDS: (u64, u64) = (0, 1000);

/// The interval of progress lines.
const PROGRESS_SECONDS: u64 = 5;

fn run_many(options: &Options) -> ExitCode {
    let (low, high) = options.seeds.unwrap_or(SEEDS);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = if options.jobs == 0 { cores } else { options.jobs };
    let (next, totals, start) = (AtomicU64::new(low), Mutex::new(Totals::default()), Instant::now());
    let run_seeds = || {
        loop {
            let seed = next.fetch_add(options.step, Ordering::Relaxed);
            if seed >= high || totals.lock().expect("no run panicked").violated >= options.violations {
                return;
            }
            let report = ringfold_sim::run(seed, options.plant);
            totals.lock().expect("no run panicked").add(&report, options, start);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(run_seeds);
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let Totals { seeds, steps, committed, aborted, synced, resumed, violated, .. } =
        totals.into_inner().expect("no run panicked");
    println!(
        "{seeds} seeds in {seconds:.1} s ({:.0} seeds/s, {:.0} steps/s): {committed} reduces committed, {aborted} aborted, {resumed} resumed, {synced} syncs, {violated} seeds with violations",
        seeds as f64 / seconds,
        steps as f64 / seconds,
    );
    if violated == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Totals {
    /// Adds a run, and prints its violation and the progress.
    fn add(&mut self, report: &RunReport, options: &Options, start: Instant) {
        self.seeds += 1;
        self.steps += report.steps;
        self.committed += report.committed;
        self.aborted += report.aborted;
        self.synced += report.synced;
        self.resumed += report.resumed;
        if let Some(violation) = report.violations.first() {
            self.violated += 1;
            let (seed, planted) =
                (report.seed, options.plant.map(|bug| format!(" --plant {bug:?}")).unwrap_or_default());
            println!("seed {seed}: VIOLATION {violation}");
            println!("  replay: cargo run --release -p ringfold-sim -- --seed {seed}{planted}");
        }
        let elapsed = start.elapsed();
        if elapsed.as_secs() >= self.printed_at + PROGRESS_SECONDS {
            self.printed_at = elapsed.as_secs();
            let (low, high) = options.seeds.unwrap_or(SEEDS);
            let (seeds, all) = (self.seeds, (high - low).div_ceil(options.step));
            eprintln!("{seeds} of {all} seeds, {:.0}/s", seeds as f64 / elapsed.as_secs_f64());
        }
    }
}
