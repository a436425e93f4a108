//! Checks all plans under many orders of events.
//!
//! `cargo run --release --example check -- --seeds 100 --worlds 1-17 --first 0`

use ringfold_plan::checker::{Sweep, SweepResult};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let sweep = match parse(std::env::args().skip(1)) {
        Ok(sweep) => sweep,
        Err(wrong) => {
            eprintln!("{wrong}\nusage: check [--seeds N] [--worlds MIN-MAX] [--first N]");
            return ExitCode::from(2);
        }
    };
    let begin = Instant::now();
    let mut rows = BTreeMap::new();
    let mut world = 0;
    let result = sweep.run(|result| {
        if result.world != world {
            world = result.world;
            eprintln!("world {world:2} after {:6.1} s", begin.elapsed().as_secs_f64());
        }
        add(&mut rows, result);
    });
    println!("{:<16}{:<10}{:>8}{:>12}{:>14}", "collective", "algorithm", "cases", "runs", "events");
    let mut total = (0, 0, 0);
    for ((collective, algorithm), (cases, runs, events)) in rows {
        println!("{collective:<16}{algorithm:<10}{cases:>8}{runs:>12}{events:>14}");
        total = (total.0 + cases, total.1 + runs, total.2 + events);
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{:<26}{:>8}{:>12}{:>14}   in {seconds:.1} s", "all", total.0, total.1, total.2);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("WRONG: {failure}");
            ExitCode::FAILURE
        }
    }
}

type Row = (u64, u64, u64);

fn add(rows: &mut BTreeMap<(&'static str, String), Row>, result: &SweepResult) {
    let row = rows.entry((result.collective, format!("{:?}", result.algorithm))).or_default();
    row.0 += result.cases;
    row.1 += result.proof.runs;
    row.2 += result.proof.events;
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Sweep, String> {
    let mut sweep = Sweep { world_min: 1, world_max: 17, schedules: 6, first: 0 };
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{name} {text}: {error}"));
        match name.as_str() {
            "--seeds" => sweep.schedules = number(&value)?,
            "--first" => sweep.first = number(&value)?,
            "--worlds" => {
                let (min, max) = value.split_once('-').unwrap_or((&value, &value));
                (sweep.world_min, sweep.world_max) = (number(min)? as usize, number(max)? as usize);
                let sound = 1 <= sweep.world_min && sweep.world_max <= ringfold_plan::checker::WORLD_MAX;
                if !sound {
                    return Err(format!("invalid worlds {value}: must be between 1 and 63"));
                }
            }
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(sweep)
}
