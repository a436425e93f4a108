//! Recorded runs: reads them, simulates them, and prints both runs side by side.

use crate::Options;
use ringfold_sim::RunReport;
use ringfold_sim::recorded::{Comparison, Line, RecordedScenario, read_files};
use std::io::Write;
use std::process::ExitCode;

/// The input cannot be read, or the output not be written.
const UNREADABLE: u8 = 2;

pub fn run(options: &Options) -> ExitCode {
    let scenario = match read(options) {
        Ok(scenario) => scenario,
        Err(why) => {
            eprintln!("ringfold-sim: {why}");
            return ExitCode::from(UNREADABLE);
        }
    };
    match options.seeds {
        Some(seeds) => run_many(&scenario, seeds, options),
        None => run_one(&scenario, options),
    }
}

fn read(options: &Options) -> Result<RecordedScenario, String> {
    let Some(path) = &options.scenario else {
        let scenario = read_files(&options.from)?;
        if let Some(path) = &options.write {
            std::fs::write(path, scenario.format())
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        return Ok(scenario);
    };
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    RecordedScenario::parse(&bytes).map_err(|why| format!("cannot read {}: {why}", path.display()))
}

fn run_one(scenario: &RecordedScenario, options: &Options) -> ExitCode {
    let seed = options.seed.unwrap_or(0);
    let report = ringfold_sim::run_recorded(scenario, seed, options.plant, options.log);
    let comparison = Comparison::new(scenario, &report.decided);
    let mut out = std::io::stdout().lock();
    // A closed pipe is not an error.
    let _ = print(&mut out, scenario, &report, &comparison, options);
    exit_code(is_clean(&report, &comparison))
}

fn print(
    out: &mut impl Write,
    scenario: &RecordedScenario,
    report: &RunReport,
    comparison: &Comparison,
    options: &Options,
) -> std::io::Result<()> {
    if !options.quiet {
        report.log.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        scenario.notes.iter().try_for_each(|note| writeln!(out, "# {note}"))?;
        writeln!(out, "# calls that are repeated are simulated up to 8 times")?;
        writeln!(out, "{:>16} {:>16}", "recorded", "simulated")?;
        comparison.lines.iter().try_for_each(|line| writeln!(out, "{}", text(line)))?;
    }
    for violation in &report.violations {
        writeln!(out, "VIOLATION {violation}")?;
    }
    let seed = report.seed;
    match comparison.first_difference() {
        None => {
            let count = comparison.lines.len();
            writeln!(out, "seed {seed}: all {count} decisions are equal")
        }
        Some(line) => {
            writeln!(out, "seed {seed}: first difference:\n{}", text(line))?;
            report.notes.iter().take(8).try_for_each(|note| writeln!(out, "# {note}"))
        }
    }
}

fn text(Line { recorded, simulated, decision }: &Line) -> String {
    let recorded_at =
        recorded.map_or("-".to_owned(), |at| format!("{}.{:06} s", at / 1_000_000, at % 1_000_000));
    let simulated_at = simulated.map_or("-".to_owned(), |at| at.to_string());
    let (mark, note) = match (recorded, simulated) {
        (Some(_), None) => ("<", " (only recorded)"),
        (None, Some(_)) => (">", " (only simulated)"),
        _ => ("=", ""),
    };
    format!("{recorded_at:>16} {simulated_at:>16} {mark} {decision}{note}")
}

fn run_many(scenario: &RecordedScenario, (low, high): (u64, u64), options: &Options) -> ExitCode {
    let (mut runs, mut violated, mut different) = (0_u64, 0_u64, 0_u64);
    for seed in (low..high).step_by(usize::try_from(options.step).unwrap_or(usize::MAX)) {
        let report = ringfold_sim::run_recorded(scenario, seed, options.plant, false);
        let comparison = Comparison::new(scenario, &report.decided);
        runs += 1;
        if let Some(violation) = report.violations.first() {
            violated += 1;
            println!("seed {seed}: VIOLATION {violation}");
        } else if let Some(line) = comparison.first_difference() {
            different += 1;
            println!("seed {seed}: first difference: {}", text(line).trim_start());
        }
        if violated >= options.violations {
            break;
        }
    }
    println!("{runs} seeds: {violated} with violations, {different} that differ");
    exit_code(violated + different == 0)
}

fn is_clean(report: &RunReport, comparison: &Comparison) -> bool {
    report.violations.is_empty() && comparison.first_difference().is_none()
}

fn exit_code(is_clean: bool) -> ExitCode {
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
