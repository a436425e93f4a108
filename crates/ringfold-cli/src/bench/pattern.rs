//! What the buffers hold when results are checked: small whole numbers, so that sums of floats are exact, and a period
//! that no buffer, slot or page is a multiple of, so that what lands in the wrong place is noticed.

use super::kind::{Kind, Share};
use super::point::Point;
use ringfold::{DType, Element, ReduceOp};
use zerocopy::IntoBytes;

/// A prime.
const PERIOD: usize = 251;

/// A number that can be checked for exactly.
pub(crate) trait Whole: Element {
    fn of(value: f64) -> Self;
}

macro_rules! wholes {
    ($($type:ty),*) => {$(
        impl Whole for $type {
            // Whole numbers are exact; integers take what fits of the others.
            fn of(value: f64) -> Self {
                if Self::DTYPE.is_integer() { value as i64 as Self } else { value as Self }
            }
        }
    )*};
}
wholes!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl Whole for half::f16 {
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
}

impl Whole for half::bf16 {
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
}

/// One period of elements, from which buffers are filled and by which they are checked.
struct Tile<T>(Vec<T>);

impl<T: Whole> Tile<T> {
    fn of(value: impl Fn(usize) -> f64) -> Self {
        Self((0..PERIOD).map(|index| T::of(value(index))).collect())
    }

    fn fill(&self, buffer: &mut [T]) {
        for piece in buffer.chunks_mut(PERIOD) {
            piece.copy_from_slice(&self.0[..piece.len()]);
        }
    }

    /// `phase` is the place of the first element in the period.
    fn first_other(&self, buffer: &[T], phase: usize) -> Option<usize> {
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

/// What a rank brings.
fn value(op: ReduceOp, rank: usize, index: usize) -> f64 {
    // The salt changes faster with the rank than with the index, so that no rank looks like another one shifted a bit.
    let mixed = (index * 7 + rank * 101 + index / 16) % 4;
    match op {
        // Products stay exact as powers of two.
        ReduceOp::Prod => f64::from(1 << (mixed % 2)),
        _ => mixed as f64,
    }
}

/// What all ranks together make of it.
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
pub(crate) fn fill<T: Whole>(point: &Point, rank: usize, send: &mut [T], recv: &mut [T]) {
    Tile::of(|index| value(point.op, rank, index)).fill(send);
    Tile::of(|_| 77.0).fill(recv);
}

/// Looks at a rank's buffers after the call: `ok`, or what is wrong.
pub(crate) fn check<T: Whole>(
    point: &Point,
    (rank, world): (usize, usize),
    send: &[T],
    recv: &[T],
) -> String {
    let Share { received, .. } = point.kind.share(point.place, point.count, rank, world);
    let own = Tile::<T>::of(|index| value(point.op, rank, index));
    let of_rank = |from: usize| Tile::<T>::of(|index| value(point.op, from, index));
    let all = || Tile::<T>::of(|index| reduced(T::DTYPE, point.op, world, index));
    let part = point.count / world;
    let root = rank == 0;
    // Parts of the result, with what each must be and where in the period it begins.
    let result: Vec<(&[T], Tile<T>, usize)> = match point.kind {
        Kind::AllReduce if received == 0 => vec![(send, all(), 0)],
        Kind::AllReduce => vec![(recv, all(), 0)],
        // What is left in the others' buffers is nobody's business.
        Kind::Reduce if root => vec![(send, all(), 0)],
        Kind::Reduce | Kind::Barrier => vec![],
        Kind::Broadcast => vec![(send, of_rank(0), 0)],
        Kind::ReduceScatter => vec![(recv, all(), rank * part)],
        Kind::Scatter => vec![(recv, of_rank(0), rank * part)],
        Kind::AllGather | Kind::Gather => {
            recv.chunks(part.max(1)).enumerate().map(|(from, piece)| (piece, of_rank(from), 0)).collect()
        }
        Kind::AllToAll => {
            let piece = |(from, piece)| (piece, of_rank(from), rank * part);
            recv.chunks(part.max(1)).enumerate().map(piece).collect()
        }
        Kind::Transfer if root => vec![(recv, of_rank(world - 1), 0)],
        Kind::Transfer => vec![(recv, of_rank(0), 0)],
    };
    for (number, (piece, tile, phase)) in result.iter().enumerate() {
        if let Some(at) = tile.first_other(piece, *phase) {
            let of_part = if result.len() > 1 { format!(" of part {number}") } else { String::new() };
            return format!("element {at}{of_part} of rank {rank}'s result is wrong");
        }
    }
    let input_kept = received > 0 || matches!(point.kind, Kind::Gather | Kind::Scatter);
    match own.first_other(send, 0).filter(|_| input_kept) {
        Some(at) => format!("element {at} of rank {rank}'s input was changed"),
        None => "ok".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kind::Place;

    fn point(kind: Kind, op: ReduceOp, count: usize) -> Point {
        Point { kind, dtype: DType::F32, op, count, place: kind.places()[0] }
    }

    fn plain_sum<T: Whole + Copy>(world: usize, op: ReduceOp) -> Vec<T> {
        (0..1000).map(|i| T::of(reduced(T::DTYPE, op, world, i % PERIOD))).collect()
    }

    #[test]
    fn the_right_result_passes_and_each_wrong_element_is_found() {
        let point = point(Kind::AllReduce, ReduceOp::Sum, 1000);
        let mut send = vec![0f32; 1000];
        for rank in 0..3 {
            let mut brought = vec![0f32; 1000];
            fill(&point, rank, &mut brought, &mut []);
            send.iter_mut().zip(brought).for_each(|(sum, value)| *sum += value);
        }
        assert_eq!(check(&point, (0, 3), &send, &[]), "ok");
        for at in [0, 250, 251, 999] {
            let mut wrong = send.clone();
            wrong[at] += 1.0;
            assert!(check(&point, (0, 3), &wrong, &[]).contains(&format!("element {at} ")));
        }
    }

    #[test]
    fn parts_of_several_ranks_are_told_apart_and_in_phase() {
        let point = point(Kind::AllToAll, ReduceOp::Sum, 400);
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
    fn every_type_holds_what_is_expected_of_every_operation() {
        for &op in ReduceOp::ALL {
            assert_eq!(plain_sum::<f64>(4, op).len(), 1000);
        }
        let sums = plain_sum::<half::bf16>(16, ReduceOp::Sum);
        assert!(sums.iter().zip(plain_sum::<f64>(16, ReduceOp::Sum)).all(|(a, b)| a.to_f64() == b));
        assert_eq!(plain_sum::<u8>(4, ReduceOp::Prod)[..50], plain_sum::<u8>(4, ReduceOp::Prod)[251..301]);
        assert_eq!(Place::Out.name(), "out");
    }
}
