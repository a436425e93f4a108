//! Runs a measurement: starts the processes of each setting, measures its points, prints the results.

use super::arguments::Bench;
use super::bench_op::BenchOp;
use super::interrupt::{Interrupt, Interrupted};
use super::lab::BenchLab;
use super::measure::{MeasuredSystem, measure};
use super::output::print;
use super::point::Point;
use super::quantize::quantization_text;
use super::report::{BenchReport, MissingSystem, PointReport};
use super::scratch_dir::ScratchDir;
use super::setting::{BenchMedium, Setting};
use super::system::{OtherSystem, System};
use super::system_ranks::SystemRanks;
use super::table;
use super::variant::Variant;
use crate::invocation::Invocation;
use crate::lab::LabMaster;
use crate::progress::Progress;
use anyhow::{Context, Result, bail};
use ringfold::settings::table::{TLS_CA, TLS_CERT, TLS_KEY, TLS_REVOKED};
use ringfold::{Master, Tuning, TuningFile};

/// The context for starting ranks.
pub(crate) struct Launch<'a> {
    pub(crate) invocation: &'a Invocation,
    pub(crate) scratch: &'a ScratchDir,
    pub(crate) interrupt: &'a Interrupt,
    /// The tuning that the group is offered.
    pub(crate) tuning: Option<Tuning>,
    /// The emulated hosts of the ranks.
    pub(crate) lab: Option<&'a BenchLab>,
}

/// The systems of a setting, and the masters of its elastic runs, which end with them.
struct StartedSystems {
    systems: Vec<MeasuredSystem>,
    _masters: Vec<BenchMaster>,
}

/// The master of an elastic run. Dropping it ends it.
#[expect(dead_code, reason = "only dropped")]
pub(crate) enum BenchMaster {
    Here(Box<Master>),
    OnHost(LabMaster),
}

/// Measures all points of all settings. Returns whether Ringfold could be started for each.
pub(crate) fn run(
    bench: &Bench,
    kinds: &[BenchOp],
    invocation: &Invocation,
    interrupt: &Interrupt,
    report: &mut BenchReport,
) -> Result<bool> {
    let scratch = ScratchDir::new()?;
    let settings = bench.settings();
    let tuning = bench.tuning.as_deref().map(TuningFile::read).transpose()?.map(|file| file.tuning);
    let variants = bench.variants(kinds)?;
    let mut plan = Vec::with_capacity(settings.len());
    for setting in settings {
        let points = bench.points(kinds, setting.world)?;
        check_memory(&points, setting.world, 1 + variants.len() + bench.against.len())?;
        plan.push((setting, points));
    }
    let lab_options = bench.lab()?;
    let mut progress = Progress::new(plan.iter().map(|(_, points)| points.len()).sum());
    let others = find_other_systems(bench, &scratch, report);
    if !bench.is_quiet() {
        print(&format!("# Ringfold {} on {}", report.version, report.machine))?;
    }
    for MissingSystem { system, why } in &report.missing {
        progress.suspend(|| eprintln!("{system}: {why}"));
    }
    let mut good = true;
    for (setting, points) in plan {
        let title = format!("{} ranks, {}", setting.world, setting.medium.name());
        progress.message(&format!("starting {title}"));
        let lab = match &lab_options {
            Some(options) => Some(BenchLab::start(options, setting.world)?),
            None => None,
        };
        let launch = Launch { invocation, scratch: &scratch, interrupt, tuning, lab: lab.as_ref() };
        let started = match start_systems(setting, &points, (&variants, &others), &launch, report) {
            Ok(started) => started,
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                let why = format!("{title}: {error:#}");
                progress.suspend(|| eprintln!("{why}"));
                report.missing.push(MissingSystem { system: System::Ringfold.name(), why });
                good = false;
                continue;
            }
        };
        measure_setting(bench, (setting, lab.as_ref()), &points, started, &mut progress, report)?;
    }
    Ok(good)
}

fn find_other_systems(bench: &Bench, scratch: &ScratchDir, report: &mut BenchReport) -> Vec<OtherSystem> {
    let mut others = Vec::new();
    for &system in &bench.against {
        match OtherSystem::find(system, bench.python.as_deref(), scratch) {
            Ok(rival) => others.push(rival),
            Err(error) => {
                report.missing.push(MissingSystem { system: system.name(), why: format!("{error:#}") });
            }
        }
    }
    others
}

/// Starts the processes of all systems. Fails only if Ringfold's ranks cannot be started.
fn start_systems(
    setting: Setting,
    points: &[Point],
    (variants, others): (&[Variant], &[OtherSystem]),
    launch: &Launch<'_>,
    report: &mut BenchReport,
) -> Result<StartedSystems> {
    let bytes = points.iter().map(Point::bytes).max().unwrap_or(0);
    let (mut systems, mut masters) = (Vec::new(), Vec::new());
    for variant in [&[Variant::PLAIN], variants].concat() {
        let (mut ours, master) = start_ringfold(Setting { variant, ..setting }, launch)?;
        ours.reserve(bytes)?;
        let about = ours.about.clone();
        systems.push(MeasuredSystem { system: System::Ringfold, variant, ranks: Some(ours), about });
        masters.extend(master);
    }
    for rival in others {
        let started = rival.start(setting, launch).and_then(|mut ranks| {
            ranks.reserve(bytes)?;
            Ok(ranks)
        });
        let system = rival.system();
        match started {
            Ok(ranks) => {
                let about = ranks.about.clone();
                let variant = Variant::PLAIN;
                systems.push(MeasuredSystem { system, variant, ranks: Some(ranks), about });
            }
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                let why = format!("{} ranks, {}: {error:#}", setting.world, setting.medium.name());
                eprintln!("\n{system}: {why}");
                report.missing.push(MissingSystem { system: system.name(), why });
            }
        }
    }
    Ok(StartedSystems { systems, _masters: masters })
}

/// Starts Ringfold's ranks. Rank 0 or the master offers the tuning, and all ranks use it.
pub(crate) fn start_ringfold(
    setting: Setting,
    launch: &Launch<'_>,
) -> Result<(SystemRanks, Option<BenchMaster>)> {
    let &Launch { invocation, scratch, interrupt, tuning, lab } = launch;
    let Setting { medium, world, concurrent, variant, .. } = setting;
    let file = tuning.map(|tuning| (scratch.path("tuning"), tuning));
    if let Some((path, tuning)) = &file {
        TuningFile { tuning: *tuning, ..TuningFile::default() }.write(path)?;
    }
    let (rendezvous, master) = match medium {
        BenchMedium::Elastic => {
            let builder = Master::builder().listen("127.0.0.1:0").tuning(tuning.unwrap_or_default());
            let master = builder.build();
            master.run().context("cannot start the master")?;
            let address = master.addresses().first().context("the master has no address")?.to_string();
            (address, Some(BenchMaster::Here(master.into())))
        }
        BenchMedium::Lab => {
            let lab = lab.context("no emulated hosts")?;
            let mut arguments = Vec::new();
            if let Some((path, _)) = &file {
                arguments.extend(["--tuning".into(), path.clone().into_os_string()]);
            }
            let port = lab.next_master_port();
            let master = LabMaster::start_at(port, lab.first(), invocation, &arguments)?;
            (master.address.clone(), Some(BenchMaster::OnHost(master)))
        }
        BenchMedium::Shm | BenchMedium::Tcp | BenchMedium::Tls => {
            (scratch.path("rendezvous").display().to_string(), None)
        }
    };
    let ranks = SystemRanks::start(scratch, world, interrupt, |socket| {
        (0..world)
            .map(|rank| {
                let mut command = invocation.command()?;
                if medium == BenchMedium::Tcp {
                    // Certificates would encrypt it.
                    for setting in [&TLS_CA, &TLS_CERT, &TLS_KEY, &TLS_REVOKED] {
                        command.env_remove(setting.variable);
                    }
                }
                command.arg("bench-rank").arg("--socket").arg(socket).args(["--rendezvous", &rendezvous]);
                let rank_medium = if medium == BenchMedium::Lab { BenchMedium::Elastic } else { medium };
                command.args(["--medium", rank_medium.name(), "--concurrent", &concurrent.to_string()]);
                command.args(["--rank", &rank.to_string(), "--world", &world.to_string()]);
                if let Some(core) = setting.core(rank) {
                    command.args(["--core", &core.to_string()]);
                }
                if let Some(quantization) = setting.quantization {
                    command.args(["--quantize", &quantization_text(quantization)]);
                }
                command.args(["--integrity", &variant.integrity.to_string()]);
                if variant.reproducible {
                    command.arg("--reproducible");
                }
                if setting.shared_buffers {
                    command.arg("--shared-buffers");
                }
                if let (Some((path, _)), 0) = (&file, rank) {
                    command.arg("--tuning").arg(path);
                }
                Ok(lab.map(|lab| lab.enclose(rank, &command)).unwrap_or(command))
            })
            .collect()
    })?;
    Ok((ranks, master))
}

/// Measures and prints all points of a setting.
fn measure_setting(
    bench: &Bench,
    (setting, lab): (Setting, Option<&BenchLab>),
    points: &[Point],
    mut started: StartedSystems,
    progress: &mut Progress,
    report: &mut BenchReport,
) -> Result<()> {
    let systems = &mut started.systems;
    let names: Vec<_> =
        systems.iter().map(|system| (system.system, system.variant, system.about.clone())).collect();
    let variants: Vec<_> =
        names.iter().map(|(_, variant, _)| *variant).filter(|v| *v != Variant::PLAIN).collect();
    let has_variants = !variants.is_empty();
    if !bench.is_quiet() {
        progress.suspend(|| print(&table::header(setting, &names)))?;
    }
    for point in points {
        progress.start_point(format!("{point}, {} ranks, {}", setting.world, setting.medium.name()));
        let outcomes = measure(point, setting.world, systems, bench.effort(), progress)?;
        let mut outcomes: Vec<_> = names.iter().cloned().zip(outcomes).collect();
        let first = report.points.len();
        for variant in [&[Variant::PLAIN][..], &variants].concat() {
            if !variant.applies_to(point.kind) {
                continue;
            }
            let own = outcomes.extract_if(.., |((_, of, _), _)| *of == variant);
            let own = own.map(|((system, _, about), outcome)| (system, about, outcome)).collect();
            let plan = if bench.explain { explanation(systems, variant) } else { None };
            let mut result = PointReport::new(point, Setting { variant, ..setting }, plan, own);
            result.floor_us = lab.and_then(|lab| lab.floor_us(point));
            if let Some(plain) = report.points.get(first) {
                result.compare_with(plain);
            }
            if !bench.is_quiet() {
                progress.suspend(|| print(&table::row(&result, has_variants)))?;
            }
            report.points.push(result);
        }
        // Without Ringfold there is nothing to compare the others with.
        if systems.iter().any(|system| system.is_plain_ringfold() && system.ranks.is_none()) {
            break;
        }
    }
    Ok(())
}

/// The plan of Ringfold for the last point; none if the point failed or is not supported.
fn explanation(systems: &mut [MeasuredSystem], variant: Variant) -> Option<String> {
    let is_wanted =
        |measured: &&mut MeasuredSystem| measured.system == System::Ringfold && measured.variant == variant;
    let ringfold = systems.iter_mut().find(is_wanted)?;
    ringfold.ranks.as_mut()?.explain().ok()
}

/// Fails if the points need more memory than is available.
fn check_memory(points: &[Point], world: usize, systems: usize) -> Result<()> {
    let largest = points.iter().map(|point| point.buffer_bytes(world)).max().unwrap_or(0);
    // Half as much again for restoring, staging and the other systems.
    let needed = (largest * systems) as u64 / 2 * 3;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available =
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).map(|kib| kib * 1024);
    match available {
        Some(available) if needed > available => bail!(
            "not enough memory: {world} ranks of {systems} systems need about {} of memory for the largest size, \
             {} is available",
            crate::size::ByteSize(needed),
            crate::size::ByteSize(available)
        ),
        _ => Ok(()),
    }
}
