//! The course of a measurement: processes for each setting, all of its points, what is printed on the way.

use super::interrupt::{Interrupt, Interrupted};
use super::kind::Kind;
use super::measure::{Contestant, measure};
use super::nest::Nest;
use super::point::Point;
use super::progress::Progress;
use super::report::{Missing, PointReport, Report};
use super::system::{Rival, System};
use super::team::Team;
use super::{Bench, Medium, Setting, print, table};
use crate::invocation::Invocation;
use crate::tuning_file;
use anyhow::{Context, Result, bail};
use ringfold::{Master, Tuning};

/// What it takes to start ranks.
pub(crate) struct Launch<'a> {
    pub(crate) again: &'a Invocation,
    pub(crate) nest: &'a Nest,
    pub(crate) interrupt: &'a Interrupt,
    /// What is offered to their group.
    pub(crate) tuning: Option<Tuning>,
}

/// What the contestants of a setting need beside their processes, and lives as long.
struct Stage {
    contestants: Vec<Contestant>,
    /// Where the peers of an elastic run meet.
    _master: Option<Master>,
}

/// Measures all points of all settings. Whether all that is ours could be measured.
pub(crate) fn run(
    bench: &Bench,
    kinds: &[Kind],
    again: &Invocation,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<bool> {
    let nest = Nest::new()?;
    let settings = bench.settings();
    let tuning = bench.tuning.as_deref().map(tuning_file::read).transpose()?;
    let mut plan = Vec::with_capacity(settings.len());
    for setting in settings {
        let points = bench.points(kinds, setting.world)?;
        enough_memory(&points, setting.world, 1 + bench.against.len())?;
        plan.push((setting, points));
    }
    let launch = Launch { again, nest: &nest, interrupt, tuning };
    let mut progress = Progress::new(plan.iter().map(|(_, points)| points.len()).sum());
    let rivals = find_rivals(bench, &nest, report);
    if !bench.is_quiet() {
        print(&format!("# Ringfold {} on {}", report.version, report.machine))?;
    }
    for Missing { system, why } in &report.missing {
        progress.clear();
        eprintln!("{system}: {why}");
    }
    let mut good = true;
    for (setting, points) in plan {
        let place = format!("{} ranks, {}", setting.world, setting.medium.name());
        progress.say(&format!("starting {place}"));
        let stage = match raise(setting, &points, &rivals, &launch, report) {
            Ok(stage) => stage,
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                progress.clear();
                eprintln!("{place}: {error:#}");
                report
                    .missing
                    .push(Missing { system: System::Ringfold.name(), why: format!("{place}: {error:#}") });
                good = false;
                continue;
            }
        };
        play(bench, setting, &points, stage, &mut progress, report)?;
    }
    Ok(good)
}

fn find_rivals(bench: &Bench, nest: &Nest, report: &mut Report) -> Vec<Rival> {
    let mut rivals = Vec::new();
    for &system in &bench.against {
        match Rival::find(system, bench.python.as_deref(), nest) {
            Ok(rival) => rivals.push(rival),
            Err(error) => {
                report.missing.push(Missing { system: system.name(), why: format!("{error:#}") });
            }
        }
    }
    rivals
}

/// Starts the processes of all systems. Fails only if ours can't be started.
fn raise(
    setting: Setting,
    points: &[Point],
    rivals: &[Rival],
    launch: &Launch<'_>,
    report: &mut Report,
) -> Result<Stage> {
    let bytes = points.iter().map(Point::bytes).max().unwrap_or(0);
    let (mut ours, master) = start_ours(setting, launch)?;
    ours.reserve(bytes)?;
    let about = ours.about.clone();
    let mut contestants = vec![Contestant { system: System::Ringfold, team: Some(ours), about }];
    for rival in rivals {
        let started = rival.start(setting, launch.nest, launch.interrupt).and_then(|mut team| {
            team.reserve(bytes)?;
            Ok(team)
        });
        let system = rival.system();
        match started {
            Ok(team) => {
                let about = team.about.clone();
                contestants.push(Contestant { system, team: Some(team), about });
            }
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                let why = format!("{} ranks, {}: {error:#}", setting.world, setting.medium.name());
                eprintln!("\n{system}: {why}");
                report.missing.push(Missing { system: system.name(), why });
            }
        }
    }
    Ok(Stage { contestants, _master: master })
}

/// Starts our ranks. A tuning is offered by rank 0 alone, or by the master, and taken by all.
pub(crate) fn start_ours(setting: Setting, launch: &Launch<'_>) -> Result<(Team, Option<Master>)> {
    let &Launch { again, nest, interrupt, tuning } = launch;
    let Setting { medium, world, concurrent, .. } = setting;
    let (meet, master) = match medium {
        Medium::Elastic => {
            let builder = Master::builder().listen("127.0.0.1:0").tuning(tuning.unwrap_or_default());
            let master = builder.build();
            master.run().context("the master")?;
            let address = master.addresses().first().context("the master listens nowhere")?.to_string();
            (address, Some(master))
        }
        Medium::Shm | Medium::Tcp => (nest.path("meeting").display().to_string(), None),
    };
    let file = tuning.map(|tuning| (nest.path("tuning"), tuning));
    if let Some((path, tuning)) = &file {
        tuning_file::write(path, tuning)?;
    }
    let team = Team::start(nest, world, interrupt, |socket| {
        (0..world)
            .map(|rank| {
                let mut command = again.command()?;
                command.arg("bench-rank").arg("--socket").arg(socket).args(["--meet", &meet]);
                command.args(["--medium", medium.name(), "--concurrent", &concurrent.to_string()]);
                command.args(["--rank", &rank.to_string(), "--world", &world.to_string()]);
                if let Some(core) = setting.core(rank) {
                    command.args(["--core", &core.to_string()]);
                }
                if let (Some((path, _)), 0) = (&file, rank) {
                    command.arg("--tuning").arg(path);
                }
                Ok(command)
            })
            .collect()
    })?;
    Ok((team, master))
}

/// Measures all points of a setting, and prints them.
fn play(
    bench: &Bench,
    setting: Setting,
    points: &[Point],
    mut stage: Stage,
    progress: &mut Progress,
    report: &mut Report,
) -> Result<()> {
    let contestants = &mut stage.contestants;
    let systems: Vec<_> = contestants.iter().map(|c| (c.system, c.about.clone())).collect();
    if !bench.is_quiet() {
        progress.clear();
        print(&table::header(setting, &systems))?;
    }
    for point in points {
        progress.point(format!("{point}, {} ranks, {}", setting.world, setting.medium.name()));
        let outcomes = measure(point, setting.world, contestants, bench.effort(), progress)?;
        let named =
            systems.iter().cloned().zip(outcomes).map(|((system, about), outcome)| (system, about, outcome));
        let plan = if bench.explain { explanation(contestants) } else { None };
        let told = PointReport::new(point, setting, plan, named.collect());
        if !bench.is_quiet() {
            progress.clear();
            print(&table::row(&told))?;
        }
        report.points.push(told);
        if contestants.iter().any(|c| c.system == System::Ringfold && c.team.is_none()) {
            // Without ours there is nothing to hold others against.
            break;
        }
    }
    Ok(())
}

/// How ours did the last point, and why.
fn explanation(contestants: &mut [Contestant]) -> Option<String> {
    let ours = contestants.iter_mut().find(|c| c.system == System::Ringfold)?;
    // Who can't do a point has nothing to explain; who has failed has said so.
    ours.team.as_mut()?.explain().ok()
}

/// Refuses what the machine can't hold, before it begins to swap or to kill.
fn enough_memory(points: &[Point], world: usize, systems: usize) -> Result<()> {
    let largest = points.iter().map(|point| point.buffer_bytes(world)).max().unwrap_or(0);
    // Restoring, staging and whatever others need may come to as much again.
    let needed = (largest * systems) as u64 / 2 * 3;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available =
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).map(|kib| kib * 1024);
    match available {
        Some(available) if needed > available => bail!(
            "{world} ranks of {systems} systems need about {} of memory for the largest size, and {} is left",
            crate::size::ByteSize(needed),
            crate::size::ByteSize(available)
        ),
        _ => Ok(()),
    }
}
