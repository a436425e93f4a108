//! The times of reduces that lost a rank: a table and JSON. docs/wan.md describes the columns.

use super::super::machine::Machine;
use super::super::statistics::median;
use super::KillAt;
use crate::size::ByteSize;
use anyhow::Result;
use serde::Serialize;

/// The version of the JSON. New fields do not change it.
const SCHEMA: &str = "ringfold-bench-loss/1";

/// The runs of a size.
#[derive(Debug, Serialize)]
pub(super) struct LossReport {
    pub(super) network: String,
    pub(super) world: usize,
    pub(super) bytes: u64,
    /// As a share of a full reduce.
    pub(super) kill_at: f64,
    pub(super) runs: Vec<LossRun>,
}

/// A reduce that lost a rank, and undisturbed ones of the same processes. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LossRun {
    pub(super) run: u32,
    pub(super) resume: bool,
    /// A reduce of all ranks that cannot be resumed.
    pub(super) plain_s: f64,
    /// A resumable reduce of all ranks.
    pub(super) full_s: f64,
    /// A plain reduce of the survivors, after the loss.
    pub(super) survivors_s: f64,
    /// From the first call to the kill.
    pub(super) kill_s: f64,
    /// From the kill until all survivors have the result.
    pub(super) rest_s: f64,
    /// The most calls that a survivor needed.
    pub(super) calls: u32,
    /// The most payload bytes that a survivor sent in the operation that gave the result.
    pub(super) sent_bytes: u64,
}

impl LossRun {
    /// A line of the table.
    pub(super) fn row(&self) -> String {
        let Self { run, plain_s, full_s, survivors_s, kill_s, rest_s, calls, .. } = self;
        let (mode, sent) = (mode(self.resume), self.sent_bytes as f64 / f64::from(1 << 20));
        format!(
            "{run:3}  {mode:8}{plain_s:9.2}{full_s:9.2}{survivors_s:13.2}{kill_s:9.2}{rest_s:9.2}{:9.1} %{:12.1} %{calls:7}{sent:10.1}",
            100.0 * rest_s / full_s,
            100.0 * rest_s / survivors_s,
        )
    }
}

fn mode(resume: bool) -> &'static str {
    if resume { "resume" } else { "repeat" }
}

impl LossReport {
    pub(super) fn new(network: &str, world: usize, size: ByteSize, KillAt(kill_at): KillAt) -> Self {
        Self { network: network.to_owned(), world, bytes: size.0, kill_at, runs: Vec::new() }
    }

    pub(super) fn header(&self) -> String {
        let Self { network, world, bytes, kill_at, .. } = self;
        let size = ByteSize(*bytes);
        format!(
            "# all_reduce of {size} f32 sum, {world} ranks on {network}; one is killed at {:.0} % of a full reduce\n\
             run  mode      plain s   full s  survivors s   kill s   rest s    of full  of survivors  calls  sent MiB",
            kill_at * 100.0
        )
    }

    /// The medians of both modes, and what resuming saves.
    pub(super) fn summary(&self) -> String {
        let mut text = String::new();
        for resume in [true, false] {
            let runs = || self.runs.iter().filter(move |run| run.resume == resume);
            let column = |of: fn(&LossRun) -> f64| runs().map(of).collect::<Vec<_>>();
            let times = column(|run| run.rest_s);
            let least = times.iter().copied().fold(f64::INFINITY, f64::min);
            let most = times.iter().copied().fold(0.0, f64::max);
            let shares = column(|run| run.rest_s / run.full_s);
            let of_survivors = column(|run| run.rest_s / run.survivors_s);
            let medians = (median(&times), median(&shares), median(&of_survivors));
            if let (Some(time), Some(share), Some(of_survivors)) = medians {
                text += &format!(
                    "{}: {time:.2} s ({least:.2} - {most:.2}) after the kill, {:.1} % of a full reduce of {} ranks, {:.1} % of one of {}\n",
                    mode(resume),
                    share * 100.0,
                    self.world,
                    of_survivors * 100.0,
                    self.world - 1,
                );
            }
        }
        if let Some(share) = self.resumed_share() {
            text += &format!("a resumed reduce takes {:.1} % of the time of a repeated one\n", share * 100.0);
        }
        text
    }

    /// The median time of resumed reduces after the kill, divided by that of repeated ones.
    fn resumed_share(&self) -> Option<f64> {
        let of = |resume: bool| {
            let runs = self.runs.iter().filter(|run| run.resume == resume);
            median(&runs.map(|run| run.rest_s).collect::<Vec<_>>())
        };
        Some(of(true)? / of(false)?)
    }
}

/// All reports as JSON.
pub(super) fn json(reports: &[LossReport]) -> Result<String> {
    #[derive(Serialize)]
    struct Point<'a> {
        #[serde(flatten)]
        report: &'a LossReport,
        resumed_share: Option<f64>,
    }
    #[derive(Serialize)]
    struct Document<'a> {
        schema: &'static str,
        version: &'static str,
        machine: Machine,
        points: Vec<Point<'a>>,
    }
    let point = |report| Point { report, resumed_share: LossReport::resumed_share(report) };
    Ok(serde_json::to_string_pretty(&Document {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        machine: Machine::detect(),
        points: reports.iter().map(point).collect(),
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LossReport {
        let mut report = LossReport::new("ocean", 4, ByteSize(64 << 20), KillAt(0.8));
        for (run, rest_s) in [(1, 2.0), (2, 3.0), (3, 7.0)] {
            let base = LossRun {
                run,
                resume: true,
                plain_s: 4.0,
                full_s: 5.0,
                survivors_s: 6.0,
                kill_s: 4.0,
                rest_s,
                calls: 1,
                sent_bytes: 32 << 20,
            };
            report.runs.push(LossRun { resume: false, rest_s: 2.0 * rest_s, calls: 2, ..base.clone() });
            report.runs.push(base);
        }
        report
    }

    #[test]
    fn the_summary_has_the_medians_of_both_modes() {
        let text = sample().summary();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "resume: 3.00 s (2.00 - 7.00) after the kill, 60.0 % of a full reduce of 4 ranks, 50.0 % of one of 3"
        );
        assert!(lines[1].starts_with("repeat: 6.00 s (4.00 - 14.00)"), "{text}");
        assert_eq!(lines[2], "a resumed reduce takes 50.0 % of the time of a repeated one");
    }

    #[test]
    fn the_json_has_the_fields_that_are_documented() {
        let json: serde_json::Value = serde_json::from_str(&json(&[sample()]).unwrap()).unwrap();
        assert_eq!(json["schema"], SCHEMA);
        let point = &json["points"][0];
        assert_eq!(point["resumed_share"], 0.5);
        for field in ["network", "world", "bytes", "kill_at"] {
            assert!(!point[field].is_null(), "{field}");
        }
        for field in
            ["run", "resume", "plain_s", "full_s", "survivors_s", "kill_s", "rest_s", "calls", "sent_bytes"]
        {
            assert!(!point["runs"][0][field].is_null(), "{field}");
        }
    }

    #[test]
    fn the_columns_are_below_their_titles() {
        let report = sample();
        let title = report.header().lines().last().unwrap().len();
        assert!(report.runs.iter().all(|run| run.row().len() == title));
    }
}
