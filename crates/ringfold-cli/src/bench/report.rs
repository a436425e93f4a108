//! All that was measured, as it is kept and as programs read it.

use super::Setting;
use super::floor::Floor;
use super::machine::Machine;
use super::measure::Outcome;
use super::point::{Point, short_name};
use super::statistics::Figures;
use super::system::System;
use serde::Serialize;

/// The version of the JSON. Fields may be added without a new one.
const SCHEMA: &str = "ringfold-bench/1";

/// A whole measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    /// Of Ringfold.
    pub(crate) version: &'static str,
    pub(crate) machine: Machine,
    pub(crate) options: Options,
    /// What was asked for and could not be had.
    pub(crate) missing: Vec<Missing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) floor: Option<Floor>,
    pub(crate) points: Vec<PointReport>,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Options {
    pub(crate) runs: u32,
    pub(crate) time_ms: u64,
    pub(crate) warmup: u64,
    pub(crate) check: bool,
    /// Whether ranks had cores of their own.
    pub(crate) bind: &'static str,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Missing {
    pub(crate) system: &'static str,
    pub(crate) why: String,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct PointReport {
    pub(crate) collective: &'static str,
    pub(crate) medium: &'static str,
    pub(crate) world: usize,
    pub(crate) concurrent: usize,
    pub(crate) dtype: &'static str,
    /// Nothing where nothing is combined.
    pub(crate) op: Option<&'static str>,
    /// `in` or `out` of place.
    pub(crate) place: &'static str,
    /// Of the whole.
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    /// The way that was taken, and why, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<String>,
    pub(crate) results: Vec<SystemReport>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct SystemReport {
    pub(crate) system: &'static str,
    pub(crate) about: String,
    /// `ok`, or what is wrong; nothing if nobody looked.
    pub(crate) check: Option<String>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// How many times as long as Ringfold it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    #[serde(flatten)]
    pub(crate) figures: Option<Figures>,
    /// Whether the note tells of a failure.
    #[serde(skip)]
    pub(crate) failed: bool,
}

impl Report {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            machine: Machine::here(),
            options,
            missing: Vec::new(),
            floor: None,
            points: Vec::new(),
        }
    }

    /// Whether all results were right, and nothing of ours failed.
    pub(crate) fn is_good(&self) -> bool {
        let good = |result: &SystemReport| {
            result.check.as_deref().is_none_or(|check| check == "ok")
                && !(result.failed && result.system == System::Ringfold.name())
        };
        self.points.iter().flat_map(|point| &point.results).all(good)
    }
}

impl PointReport {
    pub(crate) fn new(
        point: &Point,
        setting: Setting,
        plan: Option<String>,
        outcomes: Vec<(System, String, Outcome)>,
    ) -> Self {
        let ours = outcomes.iter().find_map(|(system, _, outcome)| match outcome {
            Outcome::Measured { figures, .. } if *system == System::Ringfold => Some(figures.median_us),
            _ => None,
        });
        let result = |(system, about, outcome): (System, String, Outcome)| {
            let base = SystemReport {
                system: system.name(),
                about,
                check: None,
                note: None,
                ratio: None,
                figures: None,
                failed: false,
            };
            match outcome {
                Outcome::Measured { figures, check } => {
                    let rival = system != System::Ringfold;
                    let ratio = ours.filter(|ours| rival && *ours > 0.0).map(|ours| figures.median_us / ours);
                    SystemReport { check, ratio, figures: Some(figures), ..base }
                }
                Outcome::Unsupported(why) => SystemReport { note: Some(why), ..base },
                Outcome::Failed(why) => SystemReport { note: Some(why), failed: true, ..base },
            }
        };
        Self {
            collective: point.kind.name(),
            medium: setting.medium.name(),
            world: setting.world,
            concurrent: setting.concurrent,
            dtype: short_name(point.dtype),
            op: point.kind.reduces().then(|| point.op.name()),
            place: point.place.name(),
            bytes: point.bytes(),
            count: point.count,
            plan,
            results: outcomes.into_iter().map(result).collect(),
        }
    }

    pub(crate) fn result(&self, system: &str) -> Option<&SystemReport> {
        self.results.iter().find(|result| result.system == system)
    }

    /// What points must share to be in one table or picture.
    pub(crate) fn series(&self) -> Series<'_> {
        let Self { collective, medium, world, concurrent, dtype, op, place, .. } = self;
        Series { collective, medium, world: *world, concurrent: *concurrent, dtype, op: *op, place }
    }
}

/// Points that differ in nothing but their size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Series<'a> {
    pub(crate) collective: &'a str,
    pub(crate) medium: &'a str,
    pub(crate) world: usize,
    pub(crate) concurrent: usize,
    pub(crate) dtype: &'a str,
    pub(crate) op: Option<&'a str>,
    pub(crate) place: &'a str,
}

impl Series<'_> {
    /// `all_reduce, 4 ranks, shm, f32 sum`.
    pub(crate) fn title(&self) -> String {
        let Self { collective, medium, world, concurrent, dtype, op, place } = self;
        let mut title = format!("{collective}, {world} ranks, {medium}");
        if *collective != "barrier" {
            title += &format!(", {dtype}");
        }
        if let Some(op) = op {
            title += &format!(" {op}");
        }
        if *place == "out" && *collective == "all_reduce" {
            title += ", out of place";
        }
        if *concurrent > 1 {
            title += &format!(", {concurrent} at once");
        }
        title
    }
}

/// Points in groups of one series each, in the order of their first points.
pub(crate) fn by_series(points: &[PointReport]) -> Vec<(Series<'_>, Vec<&PointReport>)> {
    let mut groups: Vec<(Series<'_>, Vec<&PointReport>)> = Vec::new();
    for point in points {
        let series = point.series();
        match groups.iter_mut().find(|(other, _)| *other == series) {
            Some((_, group)) => group.push(point),
            None => groups.push((series, vec![point])),
        }
    }
    groups
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bench::kind::{Kind, Place};
    use crate::bench::order::Cost;
    use crate::bench::statistics::Run;
    use crate::bench::{Bind, Medium};
    use ringfold::{DType, ReduceOp};

    /// A report with two systems, where the other one takes three times as long and can't do the largest size.
    pub(crate) fn sample() -> Report {
        let options = Options { runs: 2, time_ms: 10, warmup: 1, check: true, bind: "own" };
        let mut report = Report::new(options);
        for kind in [Kind::AllReduce, Kind::Barrier] {
            for count in [1, 1000, 1_000_000] {
                let point = Point {
                    kind,
                    dtype: DType::F32,
                    op: ReduceOp::Sum,
                    count: if kind == Kind::Barrier { 0 } else { count },
                    place: Place::In,
                };
                let setting = Setting { medium: Medium::Shm, world: 2, concurrent: 1, bind: Bind::Own };
                let figures = |factor: u64| {
                    let elapsed_ns = factor * 1000 * (count as u64 + 100);
                    let (minor_faults, major_faults, beyond_bytes) = (0, 0, 4096);
                    let cost = Cost { elapsed_ns, cpu_ns: 7, minor_faults, major_faults, beyond_bytes };
                    let runs = [Run::of(10, &[cost, cost]), Run::of(10, &[cost, cost])];
                    let figures = Figures::of(&point, 2, &runs).unwrap();
                    Outcome::Measured { figures, check: Some("ok".into()) }
                };
                let other = match count {
                    1_000_000 => Outcome::Unsupported("too <large>".into()),
                    _ => figures(3),
                };
                let outcomes = vec![
                    (System::Ringfold, "Ringfold 1".to_owned(), figures(1)),
                    (System::Gloo, "Gloo 2".to_owned(), other),
                ];
                report.points.push(PointReport::new(&point, setting, None, outcomes));
                if kind == Kind::Barrier {
                    break;
                }
            }
        }
        report
    }

    #[test]
    fn the_json_has_the_fields_that_are_documented() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["schema"], "ringfold-bench/1");
        for field in ["version", "machine", "options", "missing", "points"] {
            assert!(!json[field].is_null(), "{field}");
        }
        let point = &json["points"][1];
        assert_eq!((point["bytes"].as_u64(), point["count"].as_u64()), (Some(4000), Some(1000)));
        for field in ["collective", "medium", "world", "concurrent", "dtype", "op", "place"] {
            assert!(!point[field].is_null(), "{field}");
        }
        let [ours, other] = [0, 1].map(|index| &point["results"][index]);
        for field in [
            "system",
            "about",
            "check",
            "calls",
            "runs_us",
            "median_us",
            "min_us",
            "max_us",
            "algbw_gb_per_s",
            "busbw_gb_per_s",
            "cpu_s_per_gb",
            "faults_per_call",
            "major_faults_per_call",
            "beyond_bytes",
            "memory_ratio",
        ] {
            assert!(!ours[field].is_null(), "{field}");
        }
        assert_eq!(other["ratio"], 3.0);
        let none = &json["points"][2]["results"][1];
        assert_eq!(none["note"], "too <large>");
        assert!(none["median_us"].is_null());
    }

    #[test]
    fn a_wrong_result_or_a_failure_of_ours_is_no_good() {
        let mut report = sample();
        assert!(report.is_good());
        report.points[0].results[1].failed = true;
        assert!(report.is_good());
        report.points[0].results[0].failed = true;
        assert!(!report.is_good());
        let mut report = sample();
        report.points[0].results[1].check = Some("element 3 is wrong".into());
        assert!(!report.is_good());
    }

    #[test]
    fn points_of_one_series_come_together() {
        let report = sample();
        let groups = by_series(&report.points);
        assert_eq!(groups.iter().map(|(_, group)| group.len()).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(groups[0].0.title(), "all_reduce, 2 ranks, shm, f32 sum");
        assert_eq!(groups[1].0.title(), "barrier, 2 ranks, shm");
    }
}
