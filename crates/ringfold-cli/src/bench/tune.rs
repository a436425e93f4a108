//! Measures the costs on this machine and derives a tuning (`ringfold bench --tune`).
//!
//! Rank 0 or the master offers the tuning to a group; then all ranks use it.

use super::bench_op::BenchOp;
use super::interrupt::Interrupt;
use super::measure::{Effort, MeasuredSystem, PointOutcome, measure};
use super::point::Point;
use super::scratch_dir::ScratchDir;
use super::session::{Launch, start_ringfold};
use super::setting::{BenchMedium, Bind, Setting};
use super::system::System;
use super::variant::Variant;
use crate::invocation::Invocation;
use crate::progress::Progress;
use crate::size::ByteSize;
use anyhow::{Result, anyhow, bail};
use ringfold::{DType, ReduceOp, Tuning};

/// The size of the transfers that measure the cost per byte; large enough to fill the pipeline.
const LARGE_BYTES: u64 = 16 << 20;
/// Chunk sizes to try over TCP.
const CHUNKS: [u32; 4] = [32 << 10, 64 << 10, 128 << 10, 256 << 10];
/// Chunk sizes to try over shared-memory links.
const SHARED_CHUNKS: [u32; 3] = [32 << 10, 64 << 10, 128 << 10];
/// Slot sizes and numbers of slots to try on the shared-memory board.
const SLOTS: [(u32, u16); 7] = [
    (32 << 10, 4),
    (64 << 10, 4),
    (64 << 10, 8),
    (128 << 10, 4),
    (128 << 10, 8),
    (256 << 10, 2),
    (256 << 10, 4),
];
/// Payload sizes that rate the slots.
const SLOT_SIZES: [u64; 4] = [128 << 10, 1 << 20, 8 << 20, 64 << 20];
/// Payload sizes that rate the chunks.
const CHUNK_SIZES: [u64; 3] = [256 << 10, 2 << 20, LARGE_BYTES];
/// Payload sizes to try as the limit of the one-shot method.
const ONE_SHOT_SIZES: [u64; 6] = [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// A candidate must be faster than the default by this fraction; less may be noise.
const GAIN_MIN: f64 = 0.03;

/// Measures a tuning, in one or two minutes.
pub(crate) fn tune(
    (world, bind): (usize, Bind),
    effort: Effort,
    invocation: &Invocation,
    interrupt: &Interrupt,
) -> Result<Tuning> {
    let scratch = ScratchDir::new()?;
    let progress = Progress::new(SLOTS.len() + 2 + CHUNKS.len() + SHARED_CHUNKS.len());
    let effort = Effort { check: false, ..effort };
    let mut bench = Calibration { world, bind, effort, invocation, interrupt, scratch, progress };
    let mut tuning = Tuning::default();
    bench.board(&mut tuning)?;
    bench.tcp(&mut tuning)?;
    bench.shared(&mut tuning)?;
    Ok(tuning.bounded())
}

struct Calibration<'a> {
    world: usize,
    bind: Bind,
    effort: Effort,
    invocation: &'a Invocation,
    interrupt: &'a Interrupt,
    scratch: ScratchDir,
    progress: Progress,
}

impl Calibration<'_> {
    /// The times of the points in microseconds with this tuning: the fastest batch, as the least disturbed one.
    fn times(
        &mut self,
        medium: BenchMedium,
        world: usize,
        tuning: Tuning,
        points: &[(BenchOp, u64)],
    ) -> Result<Vec<f64>> {
        let launch = Launch {
            lab: None,
            invocation: self.invocation,
            scratch: &self.scratch,
            interrupt: self.interrupt,
            tuning: Some(tuning.bounded()),
        };
        let setting = Setting {
            medium,
            world,
            concurrent: 1,
            bind: self.bind,
            quantization: None,
            variant: Variant::PLAIN,
            shared_buffers: false,
        };
        let (mut ranks, _master) = start_ringfold(setting, &launch)?;
        ranks.reserve(points.iter().map(|(_, bytes)| *bytes as usize).max().unwrap_or(0))?;
        let about = ranks.about.clone();
        let variant = Variant::PLAIN;
        let mut ours = [MeasuredSystem { system: System::Ringfold, variant, ranks: Some(ranks), about }];
        let mut times = Vec::with_capacity(points.len());
        for &(kind, bytes) in points {
            let what = (DType::F32, ReduceOp::Sum);
            let point = Point::new(kind, kind.placements()[0], what, ByteSize(bytes), world)
                .ok_or_else(|| anyhow!("{kind} cannot be measured"))?;
            match measure(&point, world, &mut ours, self.effort, &mut self.progress)?.pop() {
                Some(PointOutcome::Measured { figures, .. }) => times.push(figures.min_us),
                Some(PointOutcome::Unsupported(why) | PointOutcome::Failed(why)) => bail!("{point}: {why}"),
                None => bail!("{point}: no measurement"),
            }
        }
        Ok(times)
    }

    /// Tunes the slots of the board, and the limit of its one-shot method.
    fn board(&mut self, tuning: &mut Tuning) -> Result<()> {
        let world = self.world;
        let points = SLOT_SIZES.map(|bytes| (BenchOp::AllReduce, bytes));
        let usual = (tuning.board_slot_bytes, tuning.board_depth);
        let mut tried = Vec::new();
        for (slot_bytes, depth) in SLOTS {
            self.progress.start_point(format!("{depth} slots of {}", ByteSize(u64::from(slot_bytes))));
            let candidate = Tuning { board_slot_bytes: slot_bytes, board_depth: depth, ..*tuning };
            tried.push(((slot_bytes, depth), self.times(BenchMedium::Shm, world, candidate, &points)?));
        }
        (tuning.board_slot_bytes, tuning.board_depth) = best(usual, &tried);
        let small = ONE_SHOT_SIZES.map(|bytes| (BenchOp::AllReduce, bytes));
        self.progress.start_point("everything in one shot".into());
        let all = Tuning { board_one_shot_bytes_max: tuning.board_slot_bytes, ..*tuning };
        let all = self.times(BenchMedium::Shm, world, all, &small)?;
        self.progress.start_point("nothing in one shot".into());
        let none = Tuning { board_one_shot_bytes_max: 0, ..*tuning };
        let none = self.times(BenchMedium::Shm, world, none, &small)?;
        tuning.board_one_shot_bytes_max = crossing(&ONE_SHOT_SIZES, &all, &none) as u32;
        Ok(())
    }

    /// Tunes the chunk size, and measures the cost of hops, frames and bytes.
    fn tcp(&mut self, tuning: &mut Tuning) -> Result<()> {
        // With two ranks all plans are simple, so the cost of each part can be derived.
        let world = 2;
        let mut points = CHUNK_SIZES.map(|bytes| (BenchOp::AllReduce, bytes)).to_vec();
        points.push((BenchOp::AllToAll, LARGE_BYTES));
        points.push((BenchOp::ReduceScatter, LARGE_BYTES));
        points.push((BenchOp::Transfer, 4));
        let mut tried = Vec::new();
        for chunk_bytes in CHUNKS {
            self.progress.start_point(format!("TCP, frames of {}", ByteSize(u64::from(chunk_bytes))));
            let times = self.times(BenchMedium::Tcp, world, Tuning { chunk_bytes, ..*tuning }, &points)?;
            tried.push((chunk_bytes, times));
        }
        let judged: Vec<_> =
            tried.iter().map(|(c, times)| (*c, times[..CHUNK_SIZES.len()].to_vec())).collect();
        tuning.chunk_bytes = best(tuning.chunk_bytes, &judged);
        let [exchange, scatter, hop] = [0, 1, 2].map(|index| index + CHUNK_SIZES.len());
        // Each rank sends and receives half of the payload.
        let half_kib = LARGE_BYTES as f64 / 2.0 / 1024.0;
        let moved: Vec<_> = tried
            .iter()
            .map(|(chunk_bytes, times)| {
                ((LARGE_BYTES as f64 / 2.0 / f64::from(*chunk_bytes)), times[exchange] * 1e3)
            })
            .collect();
        let (bytes_ns, frame_ns) = fit_line(&moved);
        let chosen = tried.iter().find(|(chunk_bytes, _)| *chunk_bytes == tuning.chunk_bytes);
        let times = chosen.map_or(&tried[0].1, |(_, times)| times);
        let hop_ns = times[hop] * 1e3;
        tuning.tcp.hop_ns = price(hop_ns);
        tuning.tcp.frame_ns = price(frame_ns.clamp(0.0, hop_ns));
        tuning.tcp.sent_ns_per_kib = price(bytes_ns / half_kib);
        let reduced_ns = (times[scatter] - times[exchange]) * 1e3 / half_kib;
        // Reduction may overlap with receiving, so the difference may be near zero or negative.
        tuning.tcp.reduced_ns_per_kib = price(reduced_ns.max(10.0));
        Ok(())
    }

    /// The same for shared-memory links, which only transfers of a fixed group use.
    fn shared(&mut self, tuning: &mut Tuning) -> Result<()> {
        let points = [(BenchOp::Transfer, 4), (BenchOp::Transfer, LARGE_BYTES)];
        let mut hop_ns = f64::INFINITY;
        let mut moved = Vec::new();
        for chunk_bytes in SHARED_CHUNKS {
            self.progress
                .start_point(format!("shared memory, frames of {}", ByteSize(u64::from(chunk_bytes))));
            let times = self.times(BenchMedium::Shm, 2, Tuning { chunk_bytes, ..*tuning }, &points)?;
            hop_ns = hop_ns.min(times[0] * 1e3);
            moved.push((LARGE_BYTES as f64 / f64::from(chunk_bytes), times[1] * 1e3));
        }
        let (bytes_ns, frame_ns) = fit_line(&moved);
        tuning.shared.hop_ns = price(hop_ns);
        tuning.shared.frame_ns = price(frame_ns.clamp(0.0, hop_ns));
        // The transfer is one-way. With data in both directions each rank has twice the work.
        tuning.shared.sent_ns_per_kib = price(2.0 * bytes_ns / (LARGE_BYTES as f64 / 1024.0));
        tuning.shared.reduced_ns_per_kib = tuning.tcp.reduced_ns_per_kib;
        Ok(())
    }
}

fn price(ns: f64) -> u32 {
    ns.round().clamp(1.0, f64::from(u32::MAX)) as u32
}

/// The candidate with the least geometric mean of times. The default stays unless another is clearly faster.
fn best<T: Copy + PartialEq>(usual: T, tried: &[(T, Vec<f64>)]) -> T {
    let score =
        |times: &[f64]| times.iter().map(|us| us.max(1e-3).ln()).sum::<f64>() / times.len().max(1) as f64;
    let usual_score = tried.iter().find(|(candidate, _)| *candidate == usual).map(|(_, times)| score(times));
    let winner = tried.iter().min_by(|(_, a), (_, b)| score(a).total_cmp(&score(b)));
    match (winner, usual_score) {
        (Some((winner, times)), Some(usual_score)) if score(times) < usual_score - GAIN_MIN => *winner,
        (Some((winner, _)), None) => *winner,
        _ => usual,
    }
}

/// The largest size up to which `first` is not slower than `second`; 0 if there is none.
pub(super) fn crossing(sizes: &[u64], first: &[f64], second: &[f64]) -> u64 {
    let faster =
        sizes.iter().zip(first.iter().zip(second)).take_while(|(_, (first, second))| first <= second);
    faster.map(|(size, _)| *size).last().unwrap_or(0)
}

/// A linear fit by least squares: the intercept and the slope.
fn fit_line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len().max(1) as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let slope =
        if spread > 0.0 { points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread } else { 0.0 };
    // A negative cost per frame is noise.
    let slope = slope.max(0.0);
    (y - slope * x, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_stays_unless_another_is_clearly_faster() {
        let tried =
            |other: f64| [(4, vec![10.0, 100.0]), (8, vec![other, 10.0 * other]), (16, vec![20.0, 200.0])];
        assert_eq!(best(4, &tried(9.9)), 4);
        assert_eq!(best(4, &tried(9.0)), 8);
        assert_eq!(best(5, &tried(9.9)), 8);
        assert_eq!(best::<u32>(5, &[]), 5);
    }

    #[test]
    fn one_shot_is_used_up_to_the_crossing() {
        let sizes = [1, 2, 4, 8];
        assert_eq!(crossing(&sizes, &[1.0, 2.0, 5.0, 9.0], &[3.0, 3.0, 4.0, 10.0]), 2);
        assert_eq!(crossing(&sizes, &[4.0; 4], &[3.0; 4]), 0);
        assert_eq!(crossing(&sizes, &[2.0; 4], &[3.0; 4]), 8);
    }

    #[test]
    fn the_slope_is_the_cost_per_frame() {
        let (bytes_ns, frame_ns) = fit_line(&[(0.0, 100.0), (10.0, 130.0), (20.0, 160.0)]);
        assert!((bytes_ns - 100.0).abs() < 1e-9 && (frame_ns - 3.0).abs() < 1e-9);
        assert_eq!(fit_line(&[(0.0, 10.0), (10.0, 5.0)]), (7.5, 0.0));
        assert_eq!((price(-5.0), price(2.6), price(1e30)), (1, 3, u32::MAX));
    }
}
