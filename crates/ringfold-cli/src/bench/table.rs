//! The printed table: a line per point, in the format of nccl-tests.

use super::report::{BenchReport, PointReport, SystemReport, by_series};
use super::setting::{BenchMedium, Setting};
use super::statistics::Figures;
use super::system::System;
use super::variant::Variant;
use crate::size::ByteSize;

/// The longest name of a variant.
const VARIANT_WIDTH: usize = "integrity payloads".len();
/// For smaller points the memory ratio is meaningless.
const MEMORY_BYTES_MIN: usize = 16 << 20;

/// The header of the table of a setting.
pub(crate) fn header(setting: Setting, systems: &[(System, Variant, String)]) -> String {
    let buffers = if setting.shared_buffers { ", shared buffers" } else { "" };
    let mut text = format!("#\n# {} ranks, {}{buffers}\n", setting.world, setting.medium.name());
    for (system, _, about) in systems {
        text += &format!("#   {system}: {about}\n");
    }
    text += &format!(
        "# {:>14} {:>11} {:>10} {:>5} {:>4} {:>5} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8} {:>7} {:>6} {:>5}",
        "collective",
        "bytes",
        "count",
        "type",
        "op",
        "place",
        "time us",
        "min",
        "max",
        "algbw",
        "busbw",
        "cpu s/GB",
        "faults",
        "memory",
        "check"
    );
    if setting.medium == BenchMedium::Lab {
        text += &format!(" {:>10} {:>6}", "floor us", "share");
    }
    if systems.iter().any(|(_, variant, _)| *variant != Variant::PLAIN) {
        text += &format!(" {:>VARIANT_WIDTH$} {:>8}", "variant", "overhead");
    }
    for (system, ..) in systems.iter().filter(|(system, ..)| *system != System::Ringfold) {
        text += &format!(" | {:>10} {:>6} {:>8}", format!("{system} us"), "x", "cpu s/GB");
    }
    text
}

/// The row of a point, and below it its notes. In a table with variants it says which one it is.
pub(crate) fn row(point: &PointReport, has_variants: bool) -> String {
    let mut notes = String::new();
    let mut text = format!(
        "  {:>14} {:>11} {:>10} {:>5} {:>4} {:>5}",
        point.collective,
        point.bytes,
        point.count,
        if point.bytes == 0 { "-" } else { point.dtype },
        point.op.unwrap_or("-"),
        point.place
    );
    for result in &point.results {
        let ours = result.system == System::Ringfold.name();
        text += &match (&result.figures, ours) {
            (Some(figures), true) => own_columns(figures, result, point),
            (Some(figures), false) => format!(
                " | {:>10} {:>6} {:>8}",
                time(figures.median_us),
                result.ratio.map_or("-".into(), ratio),
                figures.cpu_s_per_gb.map_or("-".into(), cpu)
            ),
            (None, true) => {
                format!(" {:>10} {:>67} {:>5}", "-", "", if result.failed { "FAIL" } else { "-" })
            }
            (None, false) => format!(" | {:>10} {:>6} {:>8}", "-", "-", "-"),
        };
        if ours && has_variants {
            let variant = point.variant;
            text += &format!(" {variant:>VARIANT_WIDTH$} {:>8}", result.ratio.map_or("-".into(), overhead));
        }
        for note in result.note.iter().chain(result.check.iter().filter(|check| *check != "ok")) {
            notes += &format!("\n#   {}: {}", result.system, note.replace('\n', "\n#     "));
        }
    }
    if let Some(plan) = &point.plan {
        notes += &format!("\n#   plan: {}", plan.replace('\n', "\n#     "));
    }
    text + &notes
}

fn own_columns(figures: &Figures, result: &SystemReport, point: &PointReport) -> String {
    let check = match result.check.as_deref() {
        None => "-",
        Some("ok") => "ok",
        Some(_) => "WRONG",
    };
    let memory = figures.memory.filter(|_| point.bytes >= MEMORY_BYTES_MIN);
    let floor = point.floor_us.map(|floor| format!(" {:>10} {:>6}", time(floor), share(floor, figures)));
    format!(
        " {:>10} {:>10} {:>10} {:>8} {:>8} {:>8} {:>7} {:>6} {check:>5}{}",
        time(figures.median_us),
        time(figures.min_us),
        time(figures.max_us),
        bandwidth(figures.algbw),
        bandwidth(figures.busbw),
        figures.cpu_s_per_gb.map_or("-".into(), cpu),
        faults(figures.faults),
        memory.map_or("-".into(), |memory| format!("{memory:.2}")),
        floor.unwrap_or_default()
    )
}

/// How close the time is to the least possible one.
fn share(floor_us: f64, figures: &Figures) -> String {
    format!("{:.0} %", 100.0 * floor_us / figures.median_us)
}

/// The additional time of a variant.
fn overhead(ratio: f64) -> String {
    format!("{:+.1} %", 100.0 * (ratio - 1.0))
}

/// Markdown tables, one per series.
pub(crate) fn markdown(report: &BenchReport) -> String {
    let mut text = format!("Measured on {}.\n", report.machine);
    let BenchReport { options, .. } = report;
    text += &format!(
        "Medians of {} interleaved runs, {} ms per point and system{}.\n",
        options.runs,
        options.time_ms,
        match options.bind {
            "core" => ", each rank bound to a core",
            "none" => ", no rank bound to a core",
            _ => "",
        }
    );
    for missing in &report.missing {
        text += &format!("Not measured: {}: {}.\n", missing.system, missing.why);
    }
    if let Some(floor) = &report.floor {
        text += &format!("\n{}", floor.markdown());
    }
    for (series, points) in by_series(&report.points) {
        let others: Vec<_> =
            points[0].results.iter().map(|r| r.system).filter(|s| *s != System::Ringfold.name()).collect();
        text += &format!("\n**{}**\n\n", series.title());
        let has_floor = points.iter().any(|point| point.floor_us.is_some());
        text += "| size | time (min – max), µs | algbw, GB/s | busbw, GB/s | CPU s/GB | faults | memory |";
        text += if has_floor { " floor, µs | share |" } else { "" };
        let is_variant = points.iter().any(|point| point.is_variant());
        text += if is_variant { " overhead |" } else { "" };
        others.iter().for_each(|system| text += &format!(" {system}, µs | ratio |"));
        text += "\n|---:|---:|---:|---:|---:|---:|---:|";
        text += if has_floor { "---:|---:|" } else { "" };
        text += if is_variant { "---:|" } else { "" };
        others.iter().for_each(|_| text += "---:|---:|");
        for point in points {
            text += &format!("\n{}", markdown_row(point, &others, has_floor));
        }
        text += "\n";
    }
    text
}

fn markdown_row(point: &PointReport, others: &[&str], has_floor: bool) -> String {
    let mut text = format!("| {} |", ByteSize(point.bytes as u64));
    let ours = point.result(System::Ringfold.name()).and_then(|ours| ours.figures.as_ref());
    match ours {
        Some(figures) => {
            let Figures { median_us, min_us, max_us, algbw, busbw, .. } = figures;
            text += &format!(" {} ({} – {}) |", time(*median_us), time(*min_us), time(*max_us));
            text += &format!(" {} | {} |", bandwidth(*algbw), bandwidth(*busbw));
            text += &format!(" {} |", figures.cpu_s_per_gb.map_or("–".into(), cpu));
            text += &format!(" {} |", faults(figures.faults));
            let memory = figures.memory.filter(|_| point.bytes >= MEMORY_BYTES_MIN);
            text += &format!(" {} |", memory.map_or("–".into(), |memory| format!("{memory:.2}")));
        }
        None => text += &" – |".repeat(6),
    }
    if has_floor {
        let floor = point.floor_us.zip(ours);
        let cells = floor.map(|(floor, figures)| format!(" {} | {} |", time(floor), share(floor, figures)));
        text += &cells.unwrap_or(" – | – |".into());
    }
    if point.is_variant() {
        let ratio = point.result(System::Ringfold.name()).and_then(|ours| ours.ratio);
        text += &format!(" {} |", ratio.map_or("–".into(), overhead));
    }
    for system in others {
        let result = point.result(system);
        let median = result.and_then(|result| result.figures.as_ref()).map(|figures| time(figures.median_us));
        let times = result.and_then(|result| result.ratio).map(ratio);
        text += &format!(" {} | {} |", median.unwrap_or("–".into()), times.unwrap_or("–".into()));
    }
    text
}

/// Microseconds with about four significant digits.
pub(crate) fn time(us: f64) -> String {
    let decimals = match us {
        us if us < 10.0 => 3,
        us if us < 100.0 => 2,
        us if us < 1000.0 => 1,
        _ => 0,
    };
    format!("{us:.decimals$}")
}

fn bandwidth(gb_per_s: f64) -> String {
    if gb_per_s < 0.01 { format!("{gb_per_s:.4}") } else { format!("{gb_per_s:.2}") }
}

fn ratio(times: f64) -> String {
    if times < 10.0 { format!("{times:.2}") } else { format!("{times:.1}") }
}

fn cpu(seconds: f64) -> String {
    if seconds < 100.0 { format!("{seconds:.2}") } else { format!("{seconds:.0}") }
}

fn faults(per_call: f64) -> String {
    if per_call == 0.0 || per_call >= 10.0 { format!("{per_call:.0}") } else { format!("{per_call:.2}") }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::super::setting::{BenchMedium, Bind};
    use super::*;

    #[test]
    fn columns_are_aligned_with_the_header() {
        let setting = Setting {
            medium: BenchMedium::Shm,
            world: 2,
            concurrent: 1,
            bind: Bind::Own,
            quantization: None,
            variant: Variant::PLAIN,
            shared_buffers: false,
        };
        let checked = Variant { reproducible: true, ..Variant::PLAIN };
        let systems = [
            (System::Ringfold, Variant::PLAIN, "x".into()),
            (System::Ringfold, checked, "x".into()),
            (System::Gloo, Variant::PLAIN, "y".into()),
        ];
        let header = header(setting, &systems);
        let names = header.lines().last().unwrap();
        let report = sample();
        for point in &report.points {
            let row = row(point, true);
            let first = row.lines().next().unwrap();
            // The other systems have no variants.
            let names = if point.is_variant() { names.split_once(" |").unwrap().0 } else { names };
            assert_eq!(first.len(), names.len(), "\n{names}\n{first}");
            assert_eq!(point.is_variant(), first.ends_with("integrity all +100.0 %"), "{first}");
            for (at, _) in names.match_indices('|') {
                assert_eq!(first.as_bytes()[at], b'|', "\n{names}\n{first}");
            }
        }
        assert!(row(&report.points[4], true).contains("\n#   gloo: too <large>"));
    }

    #[test]
    fn every_row_of_a_markdown_table_has_as_many_cells_as_its_header() {
        let mut report = sample();
        report.points[0].floor_us = Some(1.0);
        let text = markdown(&report);
        let cells = |line: &str| line.matches('|').count();
        for table in text.split("\n\n").filter(|part| part.starts_with('|')) {
            let head = cells(table.lines().next().unwrap());
            assert!(table.lines().all(|line| cells(line) == head), "{table}");
        }
        assert!(
            ["**all_reduce, 2 ranks, shm, f32 sum**", "| 3.00 |", "| +100.0 % |"]
                .map(|part| text.contains(part))
                == [true; 3],
            "{text}"
        );
    }

    #[test]
    fn numbers_have_few_significant_digits() {
        assert_eq!([0.5123, 12.345, 123.45, 12345.6].map(time), ["0.512", "12.35", "123.5", "12346"]);
        assert_eq!([0.0, 0.25, 512.0].map(faults), ["0", "0.25", "512"]);
        assert_eq!(ratio(12.345), "12.3");
    }
}
