//! Measures collectives on this machine, in the style of nccl-tests, beside other libraries if they are there.

mod elastic;
mod fixed;
mod floor;
mod interrupt;
mod kind;
mod machine;
mod measure;
mod nest;
mod order;
mod pattern;
mod plan;
mod plot;
mod point;
mod progress;
mod rank;
mod report;
mod session;
mod statistics;
mod system;
mod table;
mod team;
mod tune;
mod usage;

pub use rank::RankArguments;

use crate::command::{FAILURE, SUCCESS};
use crate::invocation::Invocation;
use crate::size::ByteSize;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use interrupt::{Interrupt, Interrupted};
use kind::{Kind, Place};
use measure::Effort;
use point::{Point, Sizes, parse_dtype, parse_op};
use report::{Options, Report};
use ringfold::{DType, ReduceOp};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use system::System;

/// What a process answers that was ended by SIGINT.
const INTERRUPTED: i32 = 130;

const COLUMNS: &str = "\
Columns: bytes and count are of the whole tensor (all_gather, gather: the output; reduce_scatter, scatter, all_to_all: the
input). time is that of one call, of the slowest rank: the median of the runs, with the fastest and the slowest run beside it.
algbw is bytes / time in 10^9 bytes per second; busbw is algbw times nccl-tests' factor: 2(n-1)/n for all_reduce, (n-1)/n for
all_gather, reduce_scatter, gather, scatter and all_to_all, 1 for the others. cpu s/GB is the processor time of all ranks by
10^9 bytes; faults are page faults per call, of all ranks; memory is the peak of all ranks by the bytes of their buffers. x
is how many times as long as Ringfold another system took. transfer is from the first rank to the last and back; its figures
are of one way.

docs/performance.md describes the JSON.";

/// What is measured, and how.
#[derive(Args, Clone, Debug)]
#[command(after_help = COLUMNS)]
pub struct Bench {
    /// Which: all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, all_to_all, transfer, barrier, all
    #[arg(long, value_name = "NAMES", default_value = "all_reduce", value_delimiter = ',')]
    collective: Vec<String>,
    /// Sizes and ranges of sizes, as in 4B..64KiB,1MiB
    #[arg(long, value_name = "SIZES", conflicts_with_all = ["min", "max"])]
    sizes: Option<Sizes>,
    /// The smallest size
    #[arg(long, value_name = "SIZE", default_value = "4B")]
    min: ByteSize,
    /// The largest size
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    max: ByteSize,
    /// Each size of a range is so many times the one before
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Numbers of ranks
    #[arg(long, value_name = "N", default_value = "2", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=64))]
    world: Vec<u64>,
    /// Element types: f32, f64, f16, bf16, i8 to i64, u8 to u64
    #[arg(long, value_name = "TYPES", default_value = "f32", value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<DType>,
    /// How elements are combined: sum, avg, prod, max, min, band, bor, bxor
    #[arg(long, default_value = "sum", value_parser = parse_op)]
    op: ReduceOp,
    /// What the ranks talk through
    #[arg(long, value_name = "MEDIA", default_value = "shm", value_delimiter = ',')]
    media: Vec<Medium>,
    /// Whether the result replaces the input, where there is a choice
    #[arg(long, default_value = "usual")]
    place: Places,
    /// Split the payload over so many operations at once (elastic only)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    concurrent: u64,
    /// Whether each rank has a core of its own
    #[arg(long, default_value = "own")]
    bind: Bind,
    /// Batches of calls per point and system
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// How long the batches of a point take together, per system, about
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    time_ms: u64,
    /// Calls before the first one counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: u64,
    /// Do not look at results
    #[arg(long)]
    no_check: bool,
    /// Look at the result of a first call of each point; this is the default
    #[arg(long, conflicts_with = "no_check")]
    check: bool,
    /// Measure these as well, in turn with ours: gloo, openmpi
    #[arg(long, value_name = "SYSTEMS", value_delimiter = ',')]
    against: Vec<System>,
    /// The Python that has torch, for gloo [default: the environment that scripts/python-env makes, or python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Measure what the machine itself can do: copies of memory, TCP on loopback, hand-overs. Without sizes, only that
    #[arg(long)]
    floor: bool,
    /// Say for each point how it is done, and why
    #[arg(long)]
    explain: bool,
    /// Offer this tuning to the group
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Measure what plans cost here, and write a tuning that groups and masters can be given; nothing else is measured
    #[arg(long, value_name = "FILE", conflicts_with_all = ["against", "json", "markdown", "plot", "tuning"])]
    tune: Option<PathBuf>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Write tables for a document
    #[arg(long, value_name = "FILE|-")]
    markdown: Option<PathBuf>,
    /// Draw time against size
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// What ranks talk through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Medium {
    /// A group of fixed ranks, through shared memory
    Shm,
    /// A group of fixed ranks, through TCP on loopback
    Tcp,
    /// An elastic run with a master: all_reduce
    Elastic,
}

impl Medium {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Elastic => "elastic",
        }
    }
}

/// Which forms of a collective are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Places {
    /// The one that most users call
    Usual,
    /// In place
    In,
    /// Out of place
    Out,
    /// All that there are
    Both,
}

/// Where ranks may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Bind {
    /// As each system does it by itself: Open MPI binds two ranks to two cores, Ringfold and Gloo leave it to the kernel
    Own,
    /// Anywhere
    None,
    /// Rank r on core r, and on the first again when there are no more
    Core,
}

impl Bind {
    fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::None => "none",
            Self::Core => "core",
        }
    }
}

/// What the processes of a set of points share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    pub(crate) medium: Medium,
    pub(crate) world: usize,
    /// Operations at once.
    pub(crate) concurrent: usize,
    pub(crate) bind: Bind,
}

impl Setting {
    /// The core that a rank is bound to, if it is.
    pub(crate) fn core(&self, rank: usize) -> Option<usize> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (self.bind == Bind::Core).then_some(rank % cores)
    }
}

impl Bench {
    /// Measures, prints, and returns the exit code; it is 0 only if all results were right. Ranks are this command again.
    pub fn run(&self, again: &Invocation) -> Result<i32> {
        let interrupt = Interrupt::by_signals()?;
        let kinds = self.kinds()?;
        match self.measure(&kinds, again, &interrupt) {
            Err(error) if error.is::<Interrupted>() => Ok(INTERRUPTED),
            Err(error) => Err(error),
            Ok(good) => Ok(if good { SUCCESS } else { FAILURE }),
        }
    }

    fn measure(&self, kinds: &[Kind], again: &Invocation, interrupt: &Interrupt) -> Result<bool> {
        let effort = self.effort();
        if let Some(path) = &self.tune {
            let world = self.world.first().map_or(2, |world| *world as usize);
            let tuning = tune::tune((world.max(2), self.bind), effort, again, interrupt)?;
            crate::tuning_file::write(path, &tuning)?;
            return Ok(true);
        }
        let options = Options {
            runs: effort.runs,
            time_ms: self.time_ms,
            warmup: effort.warmup,
            check: effort.check,
            bind: self.bind.name(),
        };
        let mut report = Report::new(options);
        let mut good = true;
        if self.floor {
            let floor = floor::Floor::measure(interrupt, |what| eprintln!("{what}"))?;
            if !self.is_quiet() {
                print(&format!("# {}\n{floor}", report.machine))?;
            }
            report.floor = Some(floor);
        }
        if !self.floor || self.sizes.is_some() {
            good = session::run(self, kinds, again, interrupt, &mut report)?;
        }
        good &= report.is_good();
        if let Some(path) = &self.json {
            write(path, &format!("{}\n", serde_json::to_string_pretty(&report)?))?;
        }
        if let Some(path) = &self.markdown {
            write(path, &table::markdown(&report))?;
        }
        if let Some(path) = &self.plot {
            write(path, &plot::svg(&report))?;
        }
        Ok(good)
    }

    fn kinds(&self) -> Result<Vec<Kind>> {
        let mut kinds = Vec::new();
        for name in &self.collective {
            match name.as_str() {
                "all" => kinds.extend(Kind::ALL),
                name => kinds.push(name.parse().map_err(|why: String| anyhow::anyhow!(why))?),
            }
        }
        let mut seen = Vec::new();
        kinds.retain(|kind| !seen.contains(kind) && (seen.push(*kind), true).1);
        Ok(kinds)
    }

    fn effort(&self) -> Effort {
        Effort {
            runs: self.runs,
            time: Duration::from_millis(self.time_ms),
            warmup: self.warmup,
            check: !self.no_check,
        }
    }

    /// Whether what is printed is for programs.
    fn is_quiet(&self) -> bool {
        [&self.json, &self.markdown].into_iter().flatten().any(|path| path == Path::new("-"))
    }

    /// One set of processes each.
    fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for &world in &self.world {
            for &medium in &self.media {
                let concurrent = if medium == Medium::Elastic { self.concurrent as usize } else { 1 };
                settings.push(Setting { medium, world: world as usize, concurrent, bind: self.bind });
            }
        }
        settings
    }

    /// The points of a setting, the smallest of each series first.
    fn points(&self, kinds: &[Kind], world: usize) -> Result<Vec<Point>> {
        let sizes = match &self.sizes {
            Some(sizes) => sizes.clone(),
            None => Sizes::between(self.min, self.max).map_err(|why| anyhow::anyhow!(why))?,
        };
        let mut points: Vec<Point> = Vec::new();
        for &kind in kinds {
            let usual = kind.places()[0];
            let wanted = |place: &Place| match self.place {
                Places::Both => true,
                // Where there is no choice there is none to make.
                _ if kind.places().len() == 1 => true,
                Places::Usual => *place == usual,
                Places::In => *place == Place::In,
                Places::Out => *place == Place::Out,
            };
            for &dtype in &self.dtype {
                for &place in kind.places().iter().filter(|place| wanted(place)) {
                    for size in sizes.all(self.factor) {
                        let point = Point::new(kind, place, (dtype, self.op), size, world);
                        // Sizes that are rounded to the same one are one.
                        points.extend(point.filter(|point| !points.contains(point)));
                    }
                }
            }
        }
        Ok(points)
    }
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()).context("standard output")
}

/// To a file, or to standard output if it is called `-`.
fn write(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return print(text);
    }
    std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: Bench,
    }

    fn bench(arguments: &[&str]) -> Bench {
        Command::try_parse_from([&["bench"], arguments].concat()).unwrap().bench
    }

    fn points(arguments: &[&str]) -> Vec<String> {
        let bench = bench(arguments);
        let kinds = bench.kinds().unwrap();
        bench.points(&kinds, 4).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn points_are_all_combinations_and_none_twice() {
        assert_eq!(
            points(&["--sizes", "4B,1KiB", "--collective", "all_reduce,barrier,all_gather"]),
            [
                "all_reduce of 4 bytes f32 sum",
                "all_reduce of 1 KiB f32 sum",
                "barrier",
                "all_gather of 16 bytes f32",
                "all_gather of 1 KiB f32"
            ]
        );
        assert_eq!(points(&["--sizes", "1,2,3,4", "--dtype", "f32,u8"]).len(), 5);
        assert_eq!(points(&["--min", "4B", "--max", "64KiB"]).len(), 5);
        assert_eq!(bench(&["--collective", "all,barrier"]).kinds().unwrap(), Kind::ALL);
    }

    #[test]
    fn both_forms_are_measured_where_both_exist() {
        let both = |arguments: &[&str]| points(&[&["--sizes", "4B"], arguments].concat());
        let forms = both(&["--place", "both", "--collective", "all_reduce,broadcast"]);
        assert_eq!(forms.len(), 3, "{forms:?}");
        assert!(forms[1].ends_with("out of place"));
        assert_eq!(both(&["--place", "out"]), ["all_reduce of 4 bytes f32 sum, out of place"]);
    }

    #[test]
    fn there_is_a_setting_for_each_world_and_medium() {
        let settings = bench(&["--world", "2,4", "--media", "shm,elastic", "--concurrent", "8"]).settings();
        let brief: Vec<_> = settings.iter().map(|s| (s.world, s.medium.name(), s.concurrent)).collect();
        assert_eq!(brief, [(2, "shm", 1), (2, "elastic", 8), (4, "shm", 1), (4, "elastic", 8)]);
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in
            [["--world", "0"], ["--dtype", "f31"], ["--media", "x"], ["--against", "nccl"], ["--sizes", "x"]]
        {
            assert!(Command::try_parse_from([&["bench"][..], &wrong].concat()).is_err(), "{wrong:?}");
        }
        assert!(bench(&["--collective", "dance"]).kinds().is_err());
        assert!(points_fail(&["--min", "8B", "--max", "4B"]));
    }

    fn points_fail(arguments: &[&str]) -> bool {
        bench(arguments).points(&[Kind::AllReduce], 2).is_err()
    }
}
