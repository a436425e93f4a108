//! The results, and their JSON. docs/performance.md describes the fields.

use super::floor::Floor;
use super::machine::Machine;
use super::measure::PointOutcome;
use super::point::{Point, short_name};
use super::setting::Setting;
use super::statistics::Figures;
use super::system::System;
use super::variant::Variant;
use serde::Serialize;

/// The version of the JSON. New fields do not change it.
const SCHEMA: &str = "ringfold-bench/1";

/// A whole measurement.
#[derive(Debug, Serialize)]
pub(crate) struct BenchReport {
    pub(crate) schema: &'static str,
    /// The version of Ringfold.
    pub(crate) version: &'static str,
    pub(crate) machine: Machine,
    pub(crate) options: BenchOptions,
    /// The systems that could not be measured.
    pub(crate) missing: Vec<MissingSystem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) floor: Option<Floor>,
    pub(crate) points: Vec<PointReport>,
}

/// The options of the measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BenchOptions {
    pub(crate) runs: u32,
    pub(crate) time_ms: u64,
    pub(crate) warmup: u64,
    pub(crate) check: bool,
    /// Whether ranks were bound to cores.
    pub(crate) bind: &'static str,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct MissingSystem {
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
    /// None if the collective does not reduce.
    pub(crate) op: Option<&'static str>,
    /// `in` or `out` of place.
    pub(crate) place: &'static str,
    /// The fields `integrity` and `reproducible`.
    #[serde(flatten)]
    pub(crate) variant: Variant,
    /// Of the whole tensor.
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    /// The plan, and why it was chosen (`--explain`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<String>,
    /// The least time that the emulated network allows (`--lab`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) floor_us: Option<f64>,
    pub(crate) results: Vec<SystemReport>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct SystemReport {
    pub(crate) system: &'static str,
    pub(crate) about: String,
    /// `ok`, or the error; none without a check.
    pub(crate) check: Option<String>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// The time divided by the time of Ringfold; of a variant of Ringfold, by that of the plain collective.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    #[serde(flatten)]
    pub(crate) figures: Option<Figures>,
    /// Whether the note is the error of a failure.
    #[serde(skip)]
    pub(crate) failed: bool,
}

impl BenchReport {
    pub(crate) fn new(options: BenchOptions) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            machine: Machine::detect(),
            options,
            missing: Vec::new(),
            floor: None,
            points: Vec::new(),
        }
    }

    /// Whether all results were right and Ringfold did not fail.
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
        outcomes: Vec<(System, String, PointOutcome)>,
    ) -> Self {
        let ours = outcomes.iter().find_map(|(system, _, outcome)| match outcome {
            PointOutcome::Measured { figures, .. } if *system == System::Ringfold => Some(figures.median_us),
            _ => None,
        });
        let result = |(system, about, outcome): (System, String, PointOutcome)| {
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
                PointOutcome::Measured { figures, check } => {
                    let is_other = system != System::Ringfold;
                    let ratio =
                        ours.filter(|ours| is_other && *ours > 0.0).map(|ours| figures.median_us / ours);
                    SystemReport { check, ratio, figures: Some(figures), ..base }
                }
                PointOutcome::Unsupported(why) => SystemReport { note: Some(why), ..base },
                PointOutcome::Failed(why) => SystemReport { note: Some(why), failed: true, ..base },
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
            variant: setting.variant,
            bytes: point.bytes(),
            count: point.count,
            plan,
            floor_us: None,
            results: outcomes.into_iter().map(result).collect(),
        }
    }

    /// Sets the ratio of a variant: its time divided by that of the plain collective.
    pub(crate) fn compare_with(&mut self, plain: &Self) {
        let median = |report: &Self| {
            let result = report.result(System::Ringfold.name())?;
            result.figures.as_ref().map(|figures| figures.median_us)
        };
        let times = median(self).zip(median(plain)).filter(|(_, plain)| *plain > 0.0);
        let ours = self.results.iter_mut().find(|result| result.system == System::Ringfold.name());
        if let (Some(ours), Some((variant, plain))) = (ours, times) {
            ours.ratio = Some(variant / plain);
        }
    }

    /// Whether it is a variant of the plain collective.
    pub(crate) fn is_variant(&self) -> bool {
        self.variant != Variant::PLAIN
    }

    pub(crate) fn result(&self, system: &str) -> Option<&SystemReport> {
        self.results.iter().find(|result| result.system == system)
    }

    /// The series of this point: one table and one panel of the plot.
    pub(crate) fn series(&self) -> Series<'_> {
        let Self { collective, medium, world, concurrent, dtype, op, place, variant, .. } = self;
        let (world, concurrent, op, variant) = (*world, *concurrent, *op, *variant);
        Series { collective, medium, world, concurrent, dtype, op, place, variant }
    }
}

/// The properties that points of different sizes have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Series<'a> {
    pub(crate) collective: &'a str,
    pub(crate) medium: &'a str,
    pub(crate) world: usize,
    pub(crate) concurrent: usize,
    pub(crate) dtype: &'a str,
    pub(crate) op: Option<&'a str>,
    pub(crate) place: &'a str,
    pub(crate) variant: Variant,
}

impl Series<'_> {
    /// `all_reduce, 4 ranks, shm, f32 sum`.
    pub(crate) fn title(&self) -> String {
        let Self { collective, medium, world, concurrent, dtype, op, place, variant } = self;
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
        if *variant != Variant::PLAIN {
            title += &format!(", {variant}");
        }
        title
    }
}

/// Groups the points by series, in the order of their first points.
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
    use crate::bench::bench_op::{BenchOp, Placement};
    use crate::bench::rank_protocol::CallCost;
    use crate::bench::setting::{BenchMedium, Bind};
    use crate::bench::statistics::Batch;
    use ringfold::{DType, Integrity, ReduceOp};

    /// A report on two systems and a variant, which takes twice as long. The other one takes three times as long and does not support the largest size.
    pub(crate) fn sample() -> BenchReport {
        let options = BenchOptions { runs: 2, time_ms: 10, warmup: 1, check: true, bind: "own" };
        let mut report = BenchReport::new(options);
        for kind in [BenchOp::AllReduce, BenchOp::Barrier] {
            for count in [1, 1000, 1_000_000] {
                let point = Point {
                    kind,
                    dtype: DType::F32,
                    op: ReduceOp::Sum,
                    count: if kind == BenchOp::Barrier { 0 } else { count },
                    place: Placement::In,
                };
                let setting = Setting {
                    medium: BenchMedium::Shm,
                    world: 2,
                    concurrent: 1,
                    bind: Bind::Own,
                    quantization: None,
                    variant: Variant::PLAIN,
                    shared_buffers: false,
                };
                let figures = |factor: u64| {
                    let elapsed_ns = factor * 1000 * (count as u64 + 100);
                    let (minor_faults, major_faults, beyond_bytes) = (0, 0, 4096);
                    let cost = CallCost { elapsed_ns, cpu_ns: 7, minor_faults, major_faults, beyond_bytes };
                    let runs = [Batch::of(10, &[cost, cost]), Batch::of(10, &[cost, cost])];
                    let figures = Figures::of(&point, 2, &runs).unwrap();
                    PointOutcome::Measured { figures, check: Some("ok".into()) }
                };
                let other = match count {
                    1_000_000 => PointOutcome::Unsupported("too <large>".into()),
                    _ => figures(3),
                };
                let outcomes = vec![
                    (System::Ringfold, "Ringfold 1".to_owned(), figures(1)),
                    (System::Gloo, "Gloo 2".to_owned(), other),
                ];
                let checked = Setting {
                    variant: Variant { integrity: Integrity::ALL, reproducible: false },
                    ..setting
                };
                let slower = vec![(System::Ringfold, "Ringfold 1".to_owned(), figures(2))];
                let plain = PointReport::new(&point, setting, None, outcomes);
                let mut variant = PointReport::new(&point, checked, None, slower);
                variant.compare_with(&plain);
                report.points.extend([plain, variant]);
                if kind == BenchOp::Barrier {
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
        let point = &json["points"][2];
        assert_eq!((point["bytes"].as_u64(), point["count"].as_u64()), (Some(4000), Some(1000)));
        for field in [
            "collective",
            "medium",
            "world",
            "concurrent",
            "dtype",
            "op",
            "place",
            "integrity",
            "reproducible",
        ] {
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
        let variant = &json["points"][3];
        assert_eq!((&variant["integrity"], &variant["reproducible"]), (&"all".into(), &false.into()));
        assert_eq!(variant["results"][0]["ratio"], 2.0);
        let none = &json["points"][4]["results"][1];
        assert_eq!(none["note"], "too <large>");
        assert!(none["median_us"].is_null());
    }

    #[test]
    fn a_wrong_result_or_a_failure_of_ringfold_fails_the_report() {
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
    fn points_are_grouped_by_series() {
        let report = sample();
        let groups = by_series(&report.points);
        assert_eq!(groups.iter().map(|(_, group)| group.len()).collect::<Vec<_>>(), [3, 3, 1, 1]);
        assert_eq!(groups[0].0.title(), "all_reduce, 2 ranks, shm, f32 sum");
        assert_eq!(groups[1].0.title(), "all_reduce, 2 ranks, shm, f32 sum, integrity all");
        assert_eq!(groups[2].0.title(), "barrier, 2 ranks, shm");
    }
}
