//! The contents of the buffers when results are checked.
//!
//! Values are small whole numbers, so that sums of floats are exact. Their period divides no buffer, slot or page, so
//! that misplaced data is detected.

use super::bench_op::{BenchOp, ElementCounts};
use super::point::Point;
use ringfold::{DType, Element, ReduceOp};
use zerocopy::IntoBytes;

/// The period of the pattern in elements; a prime.
const PERIOD: usize = 251;

/// An element type that represents small whole numbers exactly.
pub(crate) trait PatternElement: Element {
    fn of(value: f64) -> Self;
}

macro_rules! pattern_elements {
    ($($type:ty),*) => {$(
        impl PatternElement for $type {
            fn of(value: f64) -> Self {
                if Self::DTYPE.is_integer() { value as i64 as Self } else { value as Self }
            }
        }
    )*};
}
pattern_elements!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl PatternElement for half::f16 {
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
}

impl PatternElement for half::bf16 {
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
}

/// One period of elements, to fill and to check buffers.
struct Pattern<T>(Vec<T>);

impl<T: PatternElement> Pattern<T> {
    fn of(value: impl Fn(usize) -> f64) -> Self {
        Self((0..PERIOD).map(|index| T::of(value(index))).collect())
    }

    fn fill(&self, buffer: &mut [T]) {
        for piece in buffer.chunks_mut(PERIOD) {
            piece.copy_from_slice(&self.0[..piece.len()]);
        }
    }

    /// The index of the first wrong element. `phase` is the position of the first element in the period.
    fn first_mismatch(&self, buffer: &[T], phase: usize) -> Option<usize> {
        let (head, rest) = buffer.split_at(buffer.len().min((PERIOD - phase % PERIOD) % PERIOD));
        let same = |piece: &[T], from: usize| piece.as_bytes() == self.0[from..][..piece.len()].as_bytes();
        let mut pieces = std::iter::once((head, phase % PERIOD)).chain(rest.chunks(PERIOD).map(|p| (p, 0)));
        let mut begin = 0;
        let (piece, from) = pieces.find(|(piece, from)| {
            let found = !same(piece, *from);
            begin += if found { 0 } else { piece.len() };
            found
        })?;
        let equal = piece.iter().zip(&self.0[from..]).take_while(|(a, b)| a.as_bytes() == b.as_bytes());
        Some(begin + equal.count())
    }
}

/// The input of a rank.
fn value(op: ReduceOp, rank: usize, index: usize) -> f64 {
    // The factors differ, so that no rank's data is another rank's data, shifted.
    let mixed = (index * 7 + rank * 101 + index / 16) % 4;
    match op {
        // Products of powers of two are exact.
        ReduceOp::Prod => f64::from(1 << (mixed % 2)),
        _ => mixed as f64,
    }
}

/// The reduction over all ranks.
fn reduced(dtype: DType, op: ReduceOp, world: usize, index: usize) -> f64 {
    let values = (0..world).map(|rank| value(op, rank, index));
    match op {
        ReduceOp::Sum | ReduceOp::PremulSum => values.sum(),
        ReduceOp::Avg if dtype.is_integer() => (values.sum::<f64>() / world as f64).trunc(),
        ReduceOp::Avg => values.sum::<f64>() / world as f64,
        ReduceOp::Prod => values.product(),
        ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
        ReduceOp::BitAnd => values.map(|v| v as u64).fold(u64::MAX, |a, b| a & b) as f64,
        ReduceOp::BitOr => values.map(|v| v as u64).fold(0, |a, b| a | b) as f64,
        ReduceOp::BitXor => values.map(|v| v as u64).fold(0, |a, b| a ^ b) as f64,
    }
}

/// Fills a rank's buffers before the call.
pub(crate) fn fill<T: PatternElement>(point: &Point, rank: usize, send: &mut [T], recv: &mut [T]) {
    Pattern::of(|index| value(point.op, rank, index)).fill(send);
    Pattern::of(|_| 77.0).fill(recv);
}

/// Checks a rank's buffers after the call: `ok`, or the error.
pub(crate) fn check<T: PatternElement>(
    point: &Point,
    (rank, world): (usize, usize),
    send: &[T],
    recv: &[T],
) -> String {
    let ElementCounts { received, .. } = point.kind.element_counts(point.place, point.count, rank, world);
    let own = Pattern::<T>::of(|index| value(point.op, rank, index));
    let of_rank = |from: usize| Pattern::<T>::of(|index| value(point.op, from, index));
    let all = || Pattern::<T>::of(|index| reduced(T::DTYPE, point.op, world, index));
    let part = point.count / world;
    let root = rank == 0;
    // The parts of the result, the expected pattern of each, and its phase.
    let result: Vec<(&[T], Pattern<T>, usize)> = match point.kind {
        BenchOp::AllReduce if received == 0 => vec![(send, all(), 0)],
        BenchOp::AllReduce => vec![(recv, all(), 0)],
        // The buffers of the other ranks are undefined.
        BenchOp::Reduce if root => vec![(send, all(), 0)],
        BenchOp::Reduce | BenchOp::Barrier => vec![],
        BenchOp::Broadcast => vec![(send, of_rank(0), 0)],
        BenchOp::ReduceScatter => vec![(recv, all(), rank * part)],
        BenchOp::Scatter => vec![(recv, of_rank(0), rank * part)],
        BenchOp::AllGather | BenchOp::Gather => {
            recv.chunks(part.max(1)).enumerate().map(|(from, piece)| (piece, of_rank(from), 0)).collect()
        }
        BenchOp::AllToAll => {
            let piece = |(from, piece)| (piece, of_rank(from), rank * part);
            recv.chunks(part.max(1)).enumerate().map(piece).collect()
        }
        BenchOp::Transfer if root => vec![(recv, of_rank(world - 1), 0)],
        BenchOp::Transfer => vec![(recv, of_rank(0), 0)],
    };
    for (number, (piece, pattern, phase)) in result.iter().enumerate() {
        if let Some(at) = pattern.first_mismatch(piece, *phase) {
            let of_part = if result.len() > 1 { format!(" of part {number}") } else { String::new() };
            return format!("element {at}{of_part} of rank {rank}'s result is wrong");
        }
    }
    let input_kept = received > 0 || matches!(point.kind, BenchOp::Gather | BenchOp::Scatter);
    match own.first_mismatch(send, 0).filter(|_| input_kept) {
        Some(at) => format!("element {at} of rank {rank}'s input was changed"),
        None => "ok".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::bench_op::Placement;

    fn point(kind: BenchOp, op: ReduceOp, count: usize) -> Point {
        Point { kind, dtype: DType::F32, op, count, place: kind.placements()[0] }
    }

    fn plain_sum<T: PatternElement + Copy>(world: usize, op: ReduceOp) -> Vec<T> {
        (0..1000).map(|i| T::of(reduced(T::DTYPE, op, world, i % PERIOD))).collect()
    }

    #[test]
    fn a_right_result_passes_and_each_wrong_element_is_found() {
        let point = point(BenchOp::AllReduce, ReduceOp::Sum, 1000);
        let mut send = vec![0f32; 1000];
        for rank in 0..3 {
            let mut input = vec![0f32; 1000];
            fill(&point, rank, &mut input, &mut []);
            send.iter_mut().zip(input).for_each(|(sum, value)| *sum += value);
        }
        assert_eq!(check(&point, (0, 3), &send, &[]), "ok");
        for at in [0, 250, 251, 999] {
            let mut wrong = send.clone();
            wrong[at] += 1.0;
            assert!(check(&point, (0, 3), &wrong, &[]).contains(&format!("element {at} ")));
        }
    }

    #[test]
    fn swapped_parts_and_changed_inputs_are_detected() {
        let point = point(BenchOp::AllToAll, ReduceOp::Sum, 400);
        let world = 4;
        let inputs: Vec<Vec<i32>> = (0..world)
            .map(|rank| {
                let mut send = vec![0; 400];
                fill(&point, rank, &mut send, &mut []);
                send
            })
            .collect();
        let result: Vec<i32> = inputs.iter().flat_map(|send| send[200..300].to_vec()).collect();
        assert_eq!(check(&point, (2, world), &inputs[2], &result), "ok");
        let mut turned = result.clone();
        turned.rotate_left(100);
        assert!(check(&point, (2, world), &inputs[2], &turned).contains("of part 0"));
        let mut changed = inputs[2].clone();
        changed[399] += 1;
        assert!(check(&point, (2, world), &changed, &result).contains("input was changed"));
    }

    #[test]
    fn expected_values_are_exact_in_every_type() {
        for &op in ReduceOp::ALL {
            assert_eq!(plain_sum::<f64>(4, op).len(), 1000);
        }
        let sums = plain_sum::<half::bf16>(16, ReduceOp::Sum);
        assert!(sums.iter().zip(plain_sum::<f64>(16, ReduceOp::Sum)).all(|(a, b)| a.to_f64() == b));
        assert_eq!(plain_sum::<u8>(4, ReduceOp::Prod)[..50], plain_sum::<u8>(4, ReduceOp::Prod)[251..301]);
        assert_eq!(Placement::Out.name(), "out");
    }
}
