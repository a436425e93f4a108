//! The arguments of `ringfold bench`, and the points and settings that they describe.

use super::bench_op::{BenchOp, Placement};
use super::lab::LabOptions;
use super::loss::KillAt;
use super::measure::Effort;
use super::point::{Point, Sizes, parse_dtype, parse_op};
use super::quantize::parse_quantization;
use super::setting::{BenchMedium, Bind, Setting};
use super::system::System;
use super::variant::{Variant, parse_integrity};
use crate::size::ByteSize;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use ringfold::{DType, Integrity, Quantization, ReduceOp};
use ringfold_lab::network::Profile;
use std::path::{Path, PathBuf};
use std::time::Duration;

const COLUMNS: &str = "\
Columns: bytes and count are those of the whole tensor (all_gather, gather: the output; reduce_scatter, scatter, all_to_all:
the input). time is the time of one call on the slowest rank: the median of the runs; min and max are the fastest and the
slowest run. algbw is bytes / time in 10^9 bytes per second. busbw is algbw times the factor of nccl-tests: 2(n-1)/n for
all_reduce, (n-1)/n for all_gather, reduce_scatter, gather, scatter and all_to_all, 1 for the others. cpu s/GB is the
processor time of all ranks per 10^9 bytes. faults is the number of page faults per call of all ranks. memory is the peak
memory of all ranks divided by the size of their buffers. overhead is the time of a variant (--integrity, --reproducible) in
addition to that of the plain collective. x is the time of another system divided by the time of Ringfold.
transfer sends from the first rank to the last and back; its time is half of the round trip.

docs/performance.md describes the JSON.";

/// The arguments of `ringfold bench`.
#[derive(Args, Clone, Debug)]
#[command(after_help = COLUMNS)]
pub struct Bench {
    /// Collectives to measure: all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, all_to_all,
    /// transfer, barrier, all
    #[arg(long, value_name = "NAMES", default_value = "all_reduce", value_delimiter = ',')]
    collective: Vec<String>,
    /// Sizes and ranges of sizes, for example 4B..64KiB,1MiB
    #[arg(long, value_name = "SIZES", conflicts_with_all = ["min", "max"])]
    pub(super) sizes: Option<Sizes>,
    /// The smallest size
    #[arg(long, value_name = "SIZE", default_value = "4B")]
    min: ByteSize,
    /// The largest size
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    max: ByteSize,
    /// The factor between consecutive sizes of a range
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Numbers of ranks
    #[arg(long, value_name = "N", default_value = "2", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(super) world: Vec<u64>,
    /// Element types: f32, f64, f16, bf16, i8 to i64, u8 to u64
    #[arg(long, value_name = "TYPES", default_value = "f32", value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<DType>,
    /// The reduction: sum, avg, prod, max, min, band, bor, bxor
    #[arg(long, default_value = "sum", value_parser = parse_op)]
    op: ReduceOp,
    /// Transports between the ranks
    #[arg(long, value_name = "MEDIA", default_value = "shm", value_delimiter = ',')]
    media: Vec<BenchMedium>,
    /// Encrypt connections by TCP: as if the transport were tls and not tcp. With RINGFOLD_TLS_CA, RINGFOLD_TLS_CERT and
    /// RINGFOLD_TLS_KEY the ranks use these certificates
    #[arg(long)]
    tls: bool,
    /// Measure an elastic run on emulated hosts: a name (`ringfold lab profiles`) or a JSON file. The floor is the least
    /// time that this network allows
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["media", "tune", "floor"])]
    pub(super) lab: Option<String>,
    /// The number of emulated hosts [default: one per rank]
    #[arg(long, value_name = "N", requires = "lab", value_parser = clap::value_parser!(u64).range(1..=64))]
    hosts: Option<u64>,
    /// The congestion control of TCP on the emulated hosts, for example reno or cubic [default: that of this machine]
    #[arg(long, value_name = "NAME", requires = "lab")]
    congestion_control: Option<String>,
    /// Measure how long the last rank takes to fetch a shared state of this size from all others. Nothing else is measured
    #[arg(long, value_name = "SIZE", requires = "lab",
        conflicts_with_all = ["sizes", "against", "integrity", "reproducible", "json", "markdown", "plot", "explain", "tuning",
        "hosts"])]
    pub(super) state: Option<ByteSize>,
    /// Kill the last rank with -9 at this share of a full all-reduce, for example 80%, and measure when the others have the
    /// result: with `resume` and without it. Nothing else is measured
    #[arg(long, value_name = "SHARE", requires_all = ["lab", "sizes"],
        conflicts_with_all = ["state", "collective", "dtype", "op", "place", "concurrent", "quantize", "no_check", "time_ms",
        "against", "markdown", "plot", "explain", "tuning"])]
    pub(super) kill_at: Option<KillAt>,
    /// Measure in place or out of place, for collectives that have both forms
    #[arg(long, default_value = "usual")]
    place: PlacementChoice,
    /// Allocate the buffers in shared memory: large all-reduces and reduce-scatters of shm read them in place
    #[arg(long, conflicts_with_all = ["lab", "cuda", "master"])]
    shared_buffers: bool,
    /// Split each payload over N concurrent operations (elastic only)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    concurrent: u64,
    /// Quantise all-reduces of floats: minmax:u8, minmax:u16, zeropoint:i8, ... (elastic and lab only). Results are not
    /// checked
    #[arg(long, value_name = "KIND:TYPE", value_parser = parse_quantization)]
    quantize: Option<Quantization>,
    /// Also measure with checked payloads, compared results (only all_reduce), or both: rows of their own, measured in turn with the
    /// plain collective
    #[arg(long, value_name = "payloads|results|all", num_args = 0..=1, default_missing_value = "all",
        value_parser = parse_integrity)]
    integrity: Option<Integrity>,
    /// Also measure reproducible reductions: rows of their own, measured in turn with the plain collective
    #[arg(long, conflicts_with = "quantize")]
    reproducible: bool,
    /// Whether ranks are bound to cores
    #[arg(long, default_value = "own")]
    pub(super) bind: Bind,
    /// The number of runs (batches of calls) per point and system
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// The approximate time of all runs of a point together, per system
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(super) time_ms: u64,
    /// The number of calls before the first run
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: u64,
    /// Do not check results
    #[arg(long)]
    no_check: bool,
    /// Check the result of the first call of each point (the default)
    #[arg(long, conflicts_with = "no_check")]
    check: bool,
    /// Other systems to measure, interleaved with Ringfold
    #[arg(long, value_name = "SYSTEMS", value_delimiter = ',')]
    pub(super) against: Vec<System>,
    /// The Python with torch, for gloo [default: the environment of scripts/python-env, or python3]
    #[arg(long, value_name = "PATH")]
    pub(super) python: Option<PathBuf>,
    /// Measure the hardware: memory copies, TCP on loopback, round trips between threads. Without --sizes nothing else is
    /// measured
    #[arg(long)]
    pub(super) floor: bool,
    /// Measure all-reduces of CUDA tensors (f32 sum) by packets and in place, with 2 to 16 ranks that share the first CUDA
    /// device, and print which is used now. With --explain: only say which is used, and why. With --tune: write the limits of
    /// packets for these numbers of ranks
    #[arg(long, conflicts_with_all = ["collective", "min", "max", "dtype", "op", "media", "lab", "place", "concurrent",
        "quantize", "integrity", "reproducible", "bind", "time_ms", "warmup", "no_check", "check", "against", "python", "floor", "json", "markdown", "plot"])]
    pub(super) cuda: bool,
    /// Measure a master process with many peers: votes, commits, joins and losses. The peers are sessions of one thread over
    /// loopback, without data. Nothing else is measured
    #[arg(long, conflicts_with_all = ["collective", "sizes", "min", "max", "world", "dtype", "op", "media", "lab", "place",
        "concurrent", "quantize", "integrity", "reproducible", "bind", "runs", "time_ms", "warmup", "no_check", "check", "against",
        "python", "floor", "cuda", "explain", "tuning", "tune", "json", "markdown", "plot"])]
    pub(super) master: bool,
    /// Numbers of peers of the master
    #[arg(long, value_name = "N", default_value = "10,100,300,1000", value_delimiter = ',', requires = "master",
        value_parser = clap::value_parser!(u64).range(2..=1000))]
    pub(super) peers: Vec<u64>,
    /// Measure joins instead, while so many connections of one address send nothing, a byte per second, or only their first
    /// message. With a join token in the environment, by TLS
    #[arg(long, value_name = "CONNECTIONS", requires = "master", conflicts_with = "peers",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) silent: Option<u64>,
    /// The program of the master, for example another build of ringfold [default: this one]
    #[arg(long, value_name = "PATH", requires = "master")]
    pub(super) master_program: Option<PathBuf>,
    /// Votes and commits of each number of peers; joins and losses are a twentieth of it
    #[arg(long, value_name = "N", default_value_t = 300, requires = "master",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) rounds: u32,
    /// Print which plan each point uses, and why
    #[arg(long)]
    pub(super) explain: bool,
    /// Use this tuning
    #[arg(long, value_name = "FILE")]
    pub(super) tuning: Option<PathBuf>,
    /// Measure the costs on this machine and write a tuning for groups and masters. Nothing else is measured. What the file says
    /// about CUDA devices stays; with --cuda only that is measured, and the rest stays
    #[arg(long, value_name = "FILE", conflicts_with_all = ["against", "integrity", "reproducible", "json", "markdown", "plot",
        "tuning", "explain"])]
    pub(super) tune: Option<PathBuf>,
    /// Write all results as JSON to a file, or to standard output (-)
    #[arg(long, value_name = "FILE|-")]
    pub(super) json: Option<PathBuf>,
    /// Write the results as Markdown tables to a file, or to standard output (-)
    #[arg(long, value_name = "FILE|-")]
    pub(super) markdown: Option<PathBuf>,
    /// Write a plot of time against size as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
}

/// The forms of a collective to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum PlacementChoice {
    /// The form that most users call
    Usual,
    /// In place
    In,
    /// Out of place
    Out,
    /// Both forms
    Both,
}

impl Bench {
    pub(super) fn kinds(&self) -> Result<Vec<BenchOp>> {
        let mut kinds = Vec::new();
        for name in &self.collective {
            match name.as_str() {
                "all" => kinds.extend(BenchOp::ALL),
                name => kinds.push(name.parse().map_err(anyhow::Error::msg)?),
            }
        }
        let mut seen = Vec::new();
        kinds.retain(|kind| !seen.contains(kind) && (seen.push(*kind), true).1);
        Ok(kinds)
    }

    pub(super) fn lab(&self) -> Result<Option<LabOptions>> {
        let Some(name) = &self.lab else { return Ok(None) };
        Ok(Some(LabOptions {
            profile: Profile::load(name)?,
            hosts: self.hosts.map(|hosts| hosts as usize),
            congestion_control: self.congestion_control.clone(),
        }))
    }

    pub(super) fn effort(&self) -> Effort {
        Effort {
            runs: self.runs,
            time: Duration::from_millis(self.time_ms),
            warmup: self.warmup,
            check: !self.no_check && self.quantize.is_none(),
        }
    }

    /// Whether standard output carries a report, so that nothing else may be printed.
    pub(super) fn is_quiet(&self) -> bool {
        [&self.json, &self.markdown].into_iter().flatten().any(|path| path == Path::new("-"))
    }

    /// The sizes of --sizes.
    pub(super) fn given_sizes(&self) -> Option<Vec<ByteSize>> {
        self.sizes.as_ref().map(|sizes| sizes.all(self.factor))
    }

    /// The settings; each has its own processes.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for &world in &self.world {
            let media = if self.lab.is_some() { &[BenchMedium::Lab][..] } else { &self.media };
            for &medium in media {
                let medium = if self.tls && medium == BenchMedium::Tcp { BenchMedium::Tls } else { medium };
                let concurrent = if matches!(medium, BenchMedium::Elastic | BenchMedium::Lab) {
                    self.concurrent as usize
                } else {
                    1
                };
                let (world, quantization, variant) = (world as usize, self.quantize, Variant::PLAIN);
                let (bind, shared_buffers) = (self.bind, self.shared_buffers);
                settings.push(Setting {
                    medium,
                    world,
                    concurrent,
                    bind,
                    quantization,
                    variant,
                    shared_buffers,
                });
            }
        }
        settings
    }

    /// The variants that are measured besides the plain collective.
    pub(super) fn variants(&self, kinds: &[BenchOp]) -> Result<Vec<Variant>> {
        let checked = self.integrity.map(|integrity| Variant { integrity, ..Variant::PLAIN });
        let reproducible = self.reproducible.then_some(Variant { reproducible: true, ..Variant::PLAIN });
        let variants: Vec<_> = checked.into_iter().chain(reproducible).collect();
        for variant in &variants {
            if !kinds.iter().any(|kind| variant.applies_to(*kind)) {
                let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
                let what = if variant.reproducible { "reductions" } else { "all_reduce" };
                bail!("nothing to measure with {variant}: it changes only {what}, not {}", names.join(", "));
            }
        }
        if !variants.is_empty() && self.world.contains(&1) {
            bail!(
                "nothing to measure with --integrity and --reproducible and one rank: use --world 2 or more"
            );
        }
        Ok(variants)
    }

    /// The points of a setting, the smallest of each series first.
    pub(super) fn points(&self, kinds: &[BenchOp], world: usize) -> Result<Vec<Point>> {
        let sizes = match &self.sizes {
            Some(sizes) => sizes.clone(),
            None => Sizes::between(self.min, self.max).map_err(anyhow::Error::msg)?,
        };
        let mut points: Vec<Point> = Vec::new();
        for &kind in kinds {
            let usual = kind.placements()[0];
            let wanted = |place: &Placement| match self.place {
                PlacementChoice::Both => true,
                _ if kind.placements().len() == 1 => true,
                PlacementChoice::Usual => *place == usual,
                PlacementChoice::In => *place == Placement::In,
                PlacementChoice::Out => *place == Placement::Out,
            };
            for &dtype in &self.dtype {
                for &place in kind.placements().iter().filter(|place| wanted(place)) {
                    for size in sizes.all(self.factor) {
                        let point = Point::new(kind, place, (dtype, self.op), size, world);
                        // Several sizes may round to the same point.
                        points.extend(point.filter(|point| !points.contains(point)));
                    }
                }
            }
        }
        Ok(points)
    }
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
    fn points_are_all_combinations_without_duplicates() {
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
        assert_eq!(bench(&["--collective", "all,barrier"]).kinds().unwrap(), BenchOp::ALL);
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
    fn variants_have_to_change_a_measured_collective() {
        let variants = |arguments: &[&str]| {
            let bench = bench(arguments);
            let found = bench.variants(&bench.kinds().unwrap()).map_err(|error| error.to_string());
            found.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(variants(&[]), Ok(Vec::new()));
        assert_eq!(variants(&["--integrity"]).unwrap(), ["integrity all"]);
        let both = ["--integrity", "payloads", "--reproducible", "--collective", "all"];
        assert_eq!(variants(&both).unwrap(), ["integrity payloads", "reproducible"]);
        let error = variants(&["--integrity", "results", "--collective", "reduce"]).unwrap_err();
        assert!(error.contains("changes only all_reduce, not reduce"), "{error}");
        let error = variants(&["--reproducible", "--collective", "broadcast,barrier"]).unwrap_err();
        assert!(error.contains("changes only reductions, not broadcast, barrier"), "{error}");
        assert!(variants(&["--reproducible", "--world", "1"]).unwrap_err().contains("one rank"));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for wrong in
            [["--world", "0"], ["--dtype", "f31"], ["--media", "x"], ["--against", "nccl"], ["--sizes", "x"]]
        {
            assert!(Command::try_parse_from([&["bench"][..], &wrong].concat()).is_err(), "{wrong:?}");
        }
        for wrong in [
            &["--cuda", "--media", "tcp"][..],
            &["--cuda", "--dtype", "f16"],
            &["--cuda", "--max", "1MiB"],
            &["--cuda", "--lab", "x"],
            &["--cuda", "--integrity"],
            &["--tune", "f", "--reproducible"],
            &["--lab", "x", "--state", "1MiB", "--integrity", "all"],
            &["--reproducible", "--quantize", "minmax:u8"],
            &["--integrity", "none"],
            &["--tune", "f", "--explain", "--cuda"],
        ] {
            assert!(Command::try_parse_from([&["bench"][..], wrong].concat()).is_err(), "{wrong:?}");
        }
        assert!(
            bench(&["--cuda", "--world", "2,4", "--sizes", "1KiB..1MiB", "--factor", "2", "--tune", "f"])
                .cuda
        );
        assert!(bench(&["--collective", "unknown"]).kinds().is_err());
        assert!(points_fail(&["--min", "8B", "--max", "4B"]));
    }

    fn points_fail(arguments: &[&str]) -> bool {
        bench(arguments).points(&[BenchOp::AllReduce], 2).is_err()
    }
}
