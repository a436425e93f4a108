//! Calibration: measures what things cost on this machine, and makes a tuning of it. Nobody has to take it: it is
//! offered to a group, by its rank 0 or its master, and then holds for all.

use super::interrupt::Interrupt;
use super::kind::Kind;
use super::measure::{Contestant, Effort, Outcome, measure};
use super::nest::Nest;
use super::point::Point;
use super::progress::Progress;
use super::session::{Launch, start_ours};
use super::system::System;
use super::{Bind, Medium, Setting};
use crate::invocation::Invocation;
use crate::size::ByteSize;
use anyhow::{Result, anyhow, bail};
use ringfold::{DType, ReduceOp, Tuning};

/// What is moved to learn what moving costs; large enough for a pipeline to fill.
const LARGE_BYTES: u64 = 16 << 20;
/// Frames that are tried for TCP.
const CHUNKS: [u32; 4] = [32 << 10, 64 << 10, 128 << 10, 256 << 10];
/// Frames that are tried for links through shared memory.
const SHARED_CHUNKS: [u32; 3] = [32 << 10, 64 << 10, 128 << 10];
/// Slots that are tried for the memory that all ranks share, with their number.
const SLOTS: [(u32, u16); 7] = [
    (32 << 10, 4),
    (64 << 10, 4),
    (64 << 10, 8),
    (128 << 10, 4),
    (128 << 10, 8),
    (256 << 10, 2),
    (256 << 10, 4),
];
/// Sizes that slots are judged by.
const SLOT_SIZES: [u64; 4] = [128 << 10, 1 << 20, 8 << 20, 64 << 20];
/// Sizes that chunks are judged by.
const CHUNK_SIZES: [u64; 3] = [256 << 10, 2 << 20, LARGE_BYTES];
/// Sizes up to which one shot may be best.
const ONE_SHOT_SIZES: [u64; 6] = [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Whatever wins by less than this may have been lucky; then what holds by default is kept.
const GAIN_MIN: f64 = 0.03;

/// Takes a minute or two.
pub(crate) fn tune(
    (world, bind): (usize, Bind),
    effort: Effort,
    again: &Invocation,
    interrupt: &Interrupt,
) -> Result<Tuning> {
    let nest = Nest::new()?;
    let progress = Progress::new(SLOTS.len() + 2 + CHUNKS.len() + SHARED_CHUNKS.len());
    let effort = Effort { check: false, ..effort };
    let mut bench = Calibration { world, bind, effort, again, interrupt, nest, progress };
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
    again: &'a Invocation,
    interrupt: &'a Interrupt,
    nest: Nest,
    progress: Progress,
}

impl Calibration<'_> {
    /// Microseconds of the fastest run, since what disturbed the others is no price, with a group that was given this
    /// tuning.
    fn times(
        &mut self,
        medium: Medium,
        world: usize,
        tuning: Tuning,
        points: &[(Kind, u64)],
    ) -> Result<Vec<f64>> {
        let launch = Launch {
            again: self.again,
            nest: &self.nest,
            interrupt: self.interrupt,
            tuning: Some(tuning.bounded()),
        };
        let setting = Setting { medium, world, concurrent: 1, bind: self.bind };
        let (mut team, _master) = start_ours(setting, &launch)?;
        team.reserve(points.iter().map(|(_, bytes)| *bytes as usize).max().unwrap_or(0))?;
        let about = team.about.clone();
        let mut ours = [Contestant { system: System::Ringfold, team: Some(team), about }];
        let mut times = Vec::with_capacity(points.len());
        for &(kind, bytes) in points {
            let what = (DType::F32, ReduceOp::Sum);
            let point = Point::new(kind, kind.places()[0], what, ByteSize(bytes), world)
                .ok_or_else(|| anyhow!("{kind} can't be measured"))?;
            match measure(&point, world, &mut ours, self.effort, &mut self.progress)?.pop() {
                Some(Outcome::Measured { figures, .. }) => times.push(figures.min_us),
                Some(Outcome::Unsupported(why) | Outcome::Failed(why)) => bail!("{point}: {why}"),
                None => bail!("{point}: nothing was measured"),
            }
        }
        Ok(times)
    }

    /// The slots of the memory that all ranks share, and what is small enough to be read by all.
    fn board(&mut self, tuning: &mut Tuning) -> Result<()> {
        let world = self.world;
        let points = SLOT_SIZES.map(|bytes| (Kind::AllReduce, bytes));
        let usual = (tuning.board_slot_bytes, tuning.board_depth);
        let mut tried = Vec::new();
        for (slot_bytes, depth) in SLOTS {
            self.progress.point(format!("{depth} slots of {}", ByteSize(u64::from(slot_bytes))));
            let candidate = Tuning { board_slot_bytes: slot_bytes, board_depth: depth, ..*tuning };
            tried.push(((slot_bytes, depth), self.times(Medium::Shm, world, candidate, &points)?));
        }
        (tuning.board_slot_bytes, tuning.board_depth) = best(usual, &tried);
        let small = ONE_SHOT_SIZES.map(|bytes| (Kind::AllReduce, bytes));
        self.progress.point("everything in one shot".into());
        let all = Tuning { board_one_shot_bytes_max: tuning.board_slot_bytes, ..*tuning };
        let all = self.times(Medium::Shm, world, all, &small)?;
        self.progress.point("nothing in one shot".into());
        let none = Tuning { board_one_shot_bytes_max: 0, ..*tuning };
        let none = self.times(Medium::Shm, world, none, &small)?;
        tuning.board_one_shot_bytes_max = crossing(&ONE_SHOT_SIZES, &all, &none) as u32;
        Ok(())
    }

    /// The size of frames, and what hops, frames and bytes cost.
    fn tcp(&mut self, tuning: &mut Tuning) -> Result<()> {
        // Between two ranks every plan is simple enough to tell what its parts cost.
        let world = 2;
        let mut points = CHUNK_SIZES.map(|bytes| (Kind::AllReduce, bytes)).to_vec();
        points.push((Kind::AllToAll, LARGE_BYTES));
        points.push((Kind::ReduceScatter, LARGE_BYTES));
        points.push((Kind::Transfer, 4));
        let mut tried = Vec::new();
        for chunk_bytes in CHUNKS {
            self.progress.point(format!("TCP, frames of {}", ByteSize(u64::from(chunk_bytes))));
            let times = self.times(Medium::Tcp, world, Tuning { chunk_bytes, ..*tuning }, &points)?;
            tried.push((chunk_bytes, times));
        }
        let judged: Vec<_> =
            tried.iter().map(|(c, times)| (*c, times[..CHUNK_SIZES.len()].to_vec())).collect();
        tuning.chunk_bytes = best(tuning.chunk_bytes, &judged);
        let [exchange, scatter, hop] = [0, 1, 2].map(|index| index + CHUNK_SIZES.len());
        // Each rank sends half of it in frames, and gets as much.
        let half_kib = LARGE_BYTES as f64 / 2.0 / 1024.0;
        let moved: Vec<_> = tried
            .iter()
            .map(|(chunk_bytes, times)| {
                ((LARGE_BYTES as f64 / 2.0 / f64::from(*chunk_bytes)), times[exchange] * 1e3)
            })
            .collect();
        let (bytes_ns, frame_ns) = line(&moved);
        let chosen = tried.iter().find(|(chunk_bytes, _)| *chunk_bytes == tuning.chunk_bytes);
        let times = chosen.map_or(&tried[0].1, |(_, times)| times);
        let hop_ns = times[hop] * 1e3;
        tuning.tcp.hop_ns = price(hop_ns);
        tuning.tcp.frame_ns = price(frame_ns.clamp(0.0, hop_ns));
        tuning.tcp.sent_ns_per_kib = price(bytes_ns / half_kib);
        let reduced_ns = (times[scatter] - times[exchange]) * 1e3 / half_kib;
        // What is reduced while the next frame arrives costs nothing extra, but never less than nothing.
        tuning.tcp.reduced_ns_per_kib = price(reduced_ns.max(10.0));
        Ok(())
    }

    /// The same for links through memory, which only transfers of a group of fixed ranks use.
    fn shared(&mut self, tuning: &mut Tuning) -> Result<()> {
        let points = [(Kind::Transfer, 4), (Kind::Transfer, LARGE_BYTES)];
        let mut hop_ns = f64::INFINITY;
        let mut moved = Vec::new();
        for chunk_bytes in SHARED_CHUNKS {
            self.progress.point(format!("shared memory, frames of {}", ByteSize(u64::from(chunk_bytes))));
            let times = self.times(Medium::Shm, 2, Tuning { chunk_bytes, ..*tuning }, &points)?;
            hop_ns = hop_ns.min(times[0] * 1e3);
            moved.push((LARGE_BYTES as f64 / f64::from(chunk_bytes), times[1] * 1e3));
        }
        let (bytes_ns, frame_ns) = line(&moved);
        tuning.shared.hop_ns = price(hop_ns);
        tuning.shared.frame_ns = price(frame_ns.clamp(0.0, hop_ns));
        // Data went one way only; while as much comes back each side has twice the work.
        tuning.shared.sent_ns_per_kib = price(2.0 * bytes_ns / (LARGE_BYTES as f64 / 1024.0));
        tuning.shared.reduced_ns_per_kib = tuning.tcp.reduced_ns_per_kib;
        Ok(())
    }
}

fn price(ns: f64) -> u32 {
    ns.round().clamp(1.0, f64::from(u32::MAX)) as u32
}

/// The candidate with the least time over all sizes, each size counting alike. What is usual stays unless it is beaten
/// clearly.
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

/// The largest size up to which the first is faster than the second; 0 if it never is.
fn crossing(sizes: &[u64], first: &[f64], second: &[f64]) -> u64 {
    let faster =
        sizes.iter().zip(first.iter().zip(second)).take_while(|(_, (first, second))| first <= second);
    faster.map(|(size, _)| *size).last().unwrap_or(0)
}

/// Least squares: what y is at x = 0, and what each x adds.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len().max(1) as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let slope =
        if spread > 0.0 { points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread } else { 0.0 };
    // Frames that are cheaper than nothing are an accident of the measurement.
    let slope = slope.max(0.0);
    (y - slope * x, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_stays_unless_it_is_beaten_clearly() {
        let tried =
            |other: f64| [(4, vec![10.0, 100.0]), (8, vec![other, 10.0 * other]), (16, vec![20.0, 200.0])];
        assert_eq!(best(4, &tried(9.9)), 4);
        assert_eq!(best(4, &tried(9.0)), 8);
        assert_eq!(best(5, &tried(9.9)), 8);
        assert_eq!(best::<u32>(5, &[]), 5);
    }

    #[test]
    fn one_shot_goes_up_to_where_it_stops_to_win() {
        let sizes = [1, 2, 4, 8];
        assert_eq!(crossing(&sizes, &[1.0, 2.0, 5.0, 9.0], &[3.0, 3.0, 4.0, 10.0]), 2);
        assert_eq!(crossing(&sizes, &[4.0; 4], &[3.0; 4]), 0);
        assert_eq!(crossing(&sizes, &[2.0; 4], &[3.0; 4]), 8);
    }

    #[test]
    fn a_line_through_points_tells_what_each_frame_adds() {
        let (bytes_ns, frame_ns) = line(&[(0.0, 100.0), (10.0, 130.0), (20.0, 160.0)]);
        assert!((bytes_ns - 100.0).abs() < 1e-9 && (frame_ns - 3.0).abs() < 1e-9);
        assert_eq!(line(&[(0.0, 10.0), (10.0, 5.0)]), (7.5, 0.0));
        assert_eq!((price(-5.0), price(2.6), price(1e30)), (1, 3, u32::MAX));
    }
}
