//! The command that merges flight recorders of several processes into one timeline.

mod trace;

use crate::exit_code::SUCCESS;
use anyhow::{Context, Result, bail};
use clap::Args;
use ringfold::journal::{Level, Printable};
use ringfold_fabric::flight_file;
use ringfold_flight::{Entry, FlightLog, FlightSource, Timeline, format_micros, parse_micros};
use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The files that are read.
const FILES_MAX: usize = 4096;

/// The arguments of a replay.
#[derive(Args, Debug)]
pub struct Replay {
    /// Files of flight recorders, or directories with them
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Only what happened since a time such as 2026-01-31T08:15:00.000000Z, or within a time before the end: 30s, 5m, 2h
    #[arg(long, value_name = "TIME")]
    since: Option<Since>,
    /// The least severe level that is shown: debug, info, warn, error
    #[arg(long, value_name = "LEVEL", value_parser = parse_level, default_value = "debug")]
    level: Level,
    /// Only sources whose kind or name contains this text, such as master or node-7; may be repeated
    #[arg(long, value_name = "TEXT")]
    source: Vec<String>,
    /// Write a trace that Perfetto (ui.perfetto.dev) and Chrome open, instead of text; - is standard output
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,
    /// Print one object of JSON per line instead of text
    #[arg(long)]
    json: bool,
}

/// The first time that is shown, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Since {
    /// Since 1970.
    Time(i64),
    /// Before the last record.
    BeforeEnd(i64),
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(micros) = parse_micros(text) {
            return Ok(Self::Time(micros));
        }
        let invalid =
            || format!("invalid time {text:?}: must be like 2026-01-31T08:15:00.000000Z, 30s, 5m or 2h");
        let (number, unit) = text.split_at(text.len() - text.chars().last().map_or(0, char::len_utf8));
        let unit = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(invalid()),
        };
        let seconds = number.parse::<f64>().map_err(|_| invalid())? * unit;
        let time = Duration::try_from_secs_f64(seconds).map_err(|_| invalid())?;
        i64::try_from(time.as_micros()).map(Self::BeforeEnd).map_err(|_| invalid())
    }
}

fn parse_level(text: &str) -> Result<Level, String> {
    let found = Level::ALL.into_iter().find(|level| level.name() == text);
    found.ok_or_else(|| format!("unknown level {text:?}: use debug, info, warn or error"))
}

impl Replay {
    /// Reads the files, prints or writes the timeline, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        let files = read(&self.paths)?;
        let timeline = Timeline::merge(files);
        let shown: Vec<_> = self.filter(&timeline).collect();
        if let Some(path) = &self.trace {
            let trace = trace::write(&timeline, shown.iter().copied());
            if path == Path::new("-") {
                return printed(io::stdout().lock().write_all(&trace));
            }
            std::fs::write(path, trace).with_context(|| format!("cannot write {}", path.display()))?;
            eprintln!("wrote {} events to {}", shown.len(), path.display());
            return Ok(SUCCESS);
        }
        let mut out = BufWriter::new(io::stdout().lock());
        let written =
            if self.json { print_json(&mut out, &shown) } else { print_text(&mut out, &timeline, &shown) };
        printed(written.and_then(|()| out.flush()))
    }

    fn filter<'a>(&'a self, timeline: &'a Timeline) -> impl Iterator<Item = &'a Entry> {
        let end = timeline.entries.last().map_or(0, |entry| entry.micros);
        let from = match self.since {
            None => i64::MIN,
            Some(Since::Time(micros)) => micros,
            Some(Since::BeforeEnd(micros)) => end.saturating_sub(micros),
        };
        let is_wanted = |label: &str| self.source.is_empty() || self.source.iter().any(|s| label.contains(s));
        timeline.entries.iter().filter(move |entry| {
            entry.micros >= from
                && entry.record.level >= self.level
                && is_wanted(&timeline.sources[entry.source].label)
        })
    }
}

/// The exit code after writing to standard output.
fn printed(written: io::Result<()>) -> Result<i32> {
    match written {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(SUCCESS),
        written => written.map(|()| SUCCESS).context("cannot write to standard output"),
    }
}

/// Reads files, and those of directories. What is not a flight recorder is left out with a warning, unless it was named.
fn read(paths: &[PathBuf]) -> Result<Vec<FlightSource>> {
    let mut found = BTreeSet::new();
    for path in paths {
        if path.is_dir() {
            let entries = path.read_dir().with_context(|| format!("cannot read {}", path.display()))?;
            let entries = entries.filter_map(Result::ok);
            let files = entries.filter(|entry| entry.file_type().is_ok_and(|of| of.is_file()));
            let inside = files.map(|entry| entry.path());
            found.extend(inside.filter(|path| path.extension().is_some_and(|e| e == flight_file::EXTENSION)));
        } else {
            found.insert(path.clone());
        }
    }
    if found.len() > FILES_MAX {
        bail!("too many files: {} exceed the limit of {FILES_MAX}", found.len());
    }
    let mut files = Vec::new();
    for path in found {
        match FlightLog::read(&path) {
            Ok(log) => {
                let (is_in_use, records) = (flight_file::is_in_use(&path), log.records.len());
                files.push(FlightSource { path, is_in_use, log, records });
            }
            Err(error) if paths.contains(&path) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
            Err(error) => eprintln!("skipping {}: {error}", path.display()),
        }
    }
    if files.is_empty() {
        let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        bail!(
            "no flight recorder in {}: set RINGFOLD_FLIGHT_DIR for the processes to be recorded",
            names.join(", ")
        );
    }
    Ok(files)
}

fn print_json(out: &mut impl Write, shown: &[&Entry]) -> io::Result<()> {
    for entry in shown {
        let mut fields = entry.record.to_fields();
        fields.insert("time".into(), format_micros(entry.micros).into());
        serde_json::to_writer(&mut *out, &fields)?;
        writeln!(out)?;
    }
    Ok(())
}

fn print_text(out: &mut impl Write, timeline: &Timeline, shown: &[&Entry]) -> io::Result<()> {
    for file in &timeline.files {
        let name = file.path.file_name().unwrap_or_else(|| Path::new("?").as_os_str());
        let state = if file.is_in_use { ", in use" } else { "" };
        let damaged = match file.log.damaged {
            // The oldest line is usually overwritten in part.
            0 | 1 => String::new(),
            damaged => format!(", {damaged} damaged lines"),
        };
        let name = name.to_string_lossy();
        writeln!(out, "# {}: {} records{state}{damaged}", Printable(name), file.records)?;
    }
    for line in timeline.clocks.lines() {
        writeln!(out, "# {}", Printable(line))?;
    }
    let shown_sources: BTreeSet<_> = shown.iter().map(|entry| entry.source).collect();
    let width = shown_sources.iter().map(|index| timeline.sources[*index].label.chars().count()).max();
    let width = width.unwrap_or(0).min(40);
    for Entry { micros, source, record, .. } in shown.iter().copied() {
        let (time, label) = (format_micros(*micros), Printable(&timeline.sources[*source].label).to_string());
        let (level, text) = (record.level.name(), Printable(&record.message));
        writeln!(out, "{time} {level:<5} {label:<width$} {text}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_date_or_a_span_before_the_end() {
        assert_eq!("1970-01-01T00:00:01.000000Z".parse(), Ok(Since::Time(1_000_000)));
        assert_eq!("30s".parse(), Ok(Since::BeforeEnd(30_000_000)));
        assert_eq!("1.5m".parse(), Ok(Since::BeforeEnd(90_000_000)));
        assert_eq!("2h".parse(), Ok(Since::BeforeEnd(7_200_000_000)));
        for wrong in ["", "s", "5", "5d", "-1s", "nans", "1e300h", "ü"] {
            assert!(wrong.parse::<Since>().is_err(), "{wrong}");
        }
    }
}
