//! Computes the figures of a point from the measurements of the ranks.

use super::point::Point;
use super::rank_protocol::CallCost;
use serde::Serialize;

/// The measurements of one batch of calls, over all ranks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Batch {
    pub(crate) calls: u64,
    /// The time of the slowest rank.
    pub(crate) elapsed_ns: u64,
    /// This and all fields below are sums over the ranks.
    pub(crate) cpu_ns: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
    pub(crate) beyond_bytes: u64,
}

impl Batch {
    pub(crate) fn of(calls: u64, ranks: &[CallCost]) -> Self {
        let sum = |field: fn(&CallCost) -> u64| ranks.iter().map(field).sum();
        Self {
            calls,
            elapsed_ns: ranks.iter().map(|cost| cost.elapsed_ns).max().unwrap_or(0),
            cpu_ns: sum(|cost| cost.cpu_ns),
            minor_faults: sum(|cost| cost.minor_faults),
            major_faults: sum(|cost| cost.major_faults),
            beyond_bytes: sum(|cost| cost.beyond_bytes),
        }
    }

    /// The time of one call in microseconds.
    pub(crate) fn call_us(&self) -> f64 {
        self.elapsed_ns as f64 / self.calls.max(1) as f64 / 1e3
    }
}

/// The figures of a point. The field names are those of the JSON.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Figures {
    /// Calls per batch.
    pub(crate) calls: u64,
    /// The time of one call, for each batch.
    pub(crate) runs_us: Vec<f64>,
    pub(crate) median_us: f64,
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
    /// Bytes of the whole tensor per second, in units of 10⁹.
    #[serde(rename = "algbw_gb_per_s")]
    pub(crate) algbw: f64,
    /// As nccl-tests defines it.
    #[serde(rename = "busbw_gb_per_s")]
    pub(crate) busbw: f64,
    /// Processor time of all ranks per 10⁹ bytes; none without bytes.
    pub(crate) cpu_s_per_gb: Option<f64>,
    /// Page faults of all ranks per call.
    #[serde(rename = "faults_per_call")]
    pub(crate) faults: f64,
    /// Those of them that read from a disk.
    #[serde(rename = "major_faults_per_call")]
    pub(crate) major_faults: f64,
    /// The peak memory of all ranks in addition to the buffers.
    pub(crate) beyond_bytes: u64,
    /// The peak memory divided by the bytes of the buffers.
    #[serde(rename = "memory_ratio")]
    pub(crate) memory: Option<f64>,
}

impl Figures {
    /// None without batches.
    pub(crate) fn of(point: &Point, world: usize, runs: &[Batch]) -> Option<Self> {
        let trips = point.kind.trips();
        let runs_us: Vec<_> = runs.iter().map(|run| run.call_us() / trips as f64).collect();
        let median_us = median(&runs_us)?;
        let calls: u64 = runs.iter().map(|run| run.calls).sum();
        let total = |field: fn(&Batch) -> u64| runs.iter().map(field).sum::<u64>() as f64;
        let bytes = point.bytes() as f64;
        let algbw = if median_us > 0.0 { bytes / median_us / 1e3 } else { 0.0 };
        let beyond_bytes = runs.iter().map(|run| run.beyond_bytes).max().unwrap_or(0);
        let buffers = point.buffer_bytes(world) as f64;
        let moved_gb = bytes * (calls * trips) as f64 / 1e9;
        Some(Self {
            calls: runs.iter().map(|run| run.calls).max().unwrap_or(0),
            median_us,
            min_us: runs_us.iter().copied().fold(f64::INFINITY, f64::min),
            max_us: runs_us.iter().copied().fold(0.0, f64::max),
            runs_us,
            algbw,
            busbw: algbw * point.kind.bus_factor(world),
            cpu_s_per_gb: (bytes > 0.0).then(|| total(|run| run.cpu_ns) / 1e9 / moved_gb),
            faults: total(|run| run.minor_faults + run.major_faults) / calls as f64,
            major_faults: total(|run| run.major_faults) / calls as f64,
            beyond_bytes,
            memory: (buffers > 0.0).then(|| 1.0 + beyond_bytes as f64 / buffers),
        })
    }
}

/// The median; of an even number of values, the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n.is_multiple_of(2) => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        _ => Some(sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::bench_op::{BenchOp, Placement};
    use ringfold::{DType, ReduceOp};

    fn cost(elapsed_ns: u64) -> CallCost {
        CallCost {
            elapsed_ns,
            cpu_ns: 2 * elapsed_ns,
            minor_faults: 3,
            major_faults: 1,
            beyond_bytes: 100_000_000,
        }
    }

    fn point(kind: BenchOp, count: usize) -> Point {
        Point { kind, dtype: DType::F32, op: ReduceOp::Sum, count, place: kind.placements()[0] }
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 5.0, 6.0]), Some(5.5));
    }

    #[test]
    fn time_is_the_maximum_and_the_rest_is_the_sum_over_ranks() {
        let run = Batch::of(10, &[cost(1_000_000), cost(4_000_000)]);
        assert_eq!((run.elapsed_ns, run.cpu_ns), (4_000_000, 10_000_000));
        assert_eq!((run.minor_faults, run.major_faults), (6, 2));
        assert_eq!(run.call_us(), 400.0);
    }

    #[test]
    fn bandwidth_processor_time_and_memory_are_relative_to_the_bytes() {
        // 100 MB, 4 ranks, 50 ms per call.
        let ranks = [cost(100_000_000); 4];
        let runs = [Batch::of(2, &ranks), Batch::of(2, &ranks), Batch::of(2, &[cost(1_000_000_000); 4])];
        let figures = Figures::of(&point(BenchOp::AllReduce, 25_000_000), 4, &runs).unwrap();
        assert_eq!((figures.median_us, figures.min_us, figures.max_us), (50_000.0, 50_000.0, 500_000.0));
        assert_eq!((figures.algbw, figures.busbw), (2.0, 3.0));
        assert_eq!(figures.faults, 16.0 * 3.0 / 6.0);
        // 4 ranks, 2 s per 10⁹ ns each: 1.6 s in both of the first, 8 s in the last, for 0.6 GB.
        let cpu = figures.cpu_s_per_gb.unwrap();
        assert!((cpu - (0.8 + 0.8 + 8.0) / 0.6).abs() < 1e-9, "{cpu}");
        assert_eq!(figures.memory, Some(2.0));
    }

    #[test]
    fn a_transfer_is_half_a_round_trip_and_a_barrier_has_no_bytes() {
        let runs = [Batch::of(10, &[cost(1_000_000)])];
        assert_eq!(Figures::of(&point(BenchOp::Transfer, 1000), 2, &runs).unwrap().median_us, 50.0);
        let barrier = Figures::of(&point(BenchOp::Barrier, 0), 2, &runs).unwrap();
        assert_eq!((barrier.median_us, barrier.algbw, barrier.cpu_s_per_gb), (100.0, 0.0, None));
        assert_eq!(Figures::of(&point(BenchOp::Barrier, 0), 2, &[]), None);
        assert_eq!(Placement::In.name(), "in");
    }
}
