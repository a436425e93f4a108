//! Explains which plan a point uses, and why.

use super::bench_op::BenchOp;
use super::point::Point;
use super::variant::Variant;
use crate::size::ByteSize;
use ringfold::Tuning;
use ringfold_plan::choice::choose;
use ringfold_plan::layout::Layout;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;

/// The path of a group's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// The shared-memory board: no plan, all ranks read the slots of the others.
    Board,
    /// A link between each two ranks, over shared memory or TCP.
    Links { shared: bool },
}

/// The explanation for a rank.
pub(crate) fn explain(
    point: &Point,
    (rank, world): (usize, usize),
    variant: Variant,
    route: Route,
    tuning: &Tuning,
) -> String {
    let shared = match route {
        Route::Board => return explain_board(point, world, tuning),
        Route::Links { shared } => shared,
    };
    let root = Rank(0);
    let collective = match point.kind {
        BenchOp::AllReduce => Collective::AllReduce,
        BenchOp::Reduce => Collective::Reduce { root },
        BenchOp::Broadcast => Collective::Broadcast { root },
        BenchOp::AllGather => Collective::AllGather,
        BenchOp::ReduceScatter => Collective::ReduceScatter,
        BenchOp::Gather => Collective::Gather { root },
        BenchOp::Scatter => Collective::Scatter { root },
        BenchOp::AllToAll => Collective::AllToAll,
        BenchOp::Transfer => Collective::Transfer { from: root, to: Rank::from_index(world - 1) },
        BenchOp::Barrier => Collective::Barrier,
    };
    let descriptor = Descriptor {
        reproducible: variant.reproducible && point.kind.reduces(),
        ..Descriptor::all_reduce(point.count as u64, point.dtype, point.op).with_collective(collective)
    };
    let mut shape = GroupShape::uniform(world);
    if shared {
        shape.hosts.fill(0);
    }
    match choose(&descriptor, &Layout::Even, Rank::from_index(rank), &shape, tuning) {
        Ok(choice) if choice.candidates.len() > 1 => format!("{choice} ({})", choice.explanation()),
        Ok(choice) => choice.to_string(),
        Err(why) => why.to_string(),
    }
}

fn explain_board(point: &Point, world: usize, tuning: &Tuning) -> String {
    let slots =
        format!("{} slots of {} per rank", tuning.board_depth, ByteSize(u64::from(tuning.board_slot_bytes)));
    let limit = u64::from(tuning.board_one_shot_bytes_max);
    match point.kind {
        BenchOp::Barrier => "a barrier in shared memory".into(),
        BenchOp::AllReduce | BenchOp::Reduce if point.bytes() as u64 <= limit || world == 1 => {
            format!("one-shot in shared memory: each rank reads all inputs, up to {}", ByteSize(limit))
        }
        BenchOp::AllReduce | BenchOp::Reduce | BenchOp::ReduceScatter => {
            format!("in parts through shared memory: each rank reduces its part; {slots}")
        }
        _ => format!("direct copies through shared memory; {slots}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold::{DType, ReduceOp};

    #[test]
    fn every_collective_is_explained_on_every_route() {
        let tuning = Tuning::default();
        for &kind in BenchOp::ALL {
            let point = Point {
                kind,
                dtype: DType::F32,
                op: ReduceOp::Sum,
                count: 4096,
                place: kind.placements()[0],
            };
            for route in [Route::Board, Route::Links { shared: true }, Route::Links { shared: false }] {
                assert!(!explain(&point, (0, 4), Variant::PLAIN, route, &tuning).is_empty(), "{kind}");
            }
        }
    }

    #[test]
    fn the_explanation_names_the_candidates_and_their_cost() {
        let (kind, op) = (BenchOp::AllReduce, ReduceOp::Sum);
        let point = Point { kind, dtype: DType::F32, op, count: 1 << 20, place: kind.placements()[0] };
        let text =
            explain(&point, (1, 4), Variant::PLAIN, Route::Links { shared: false }, &Tuning::default());
        assert!(text.contains("<- taken") && text.contains("ring"), "{text}");
        let text =
            explain(&Point { count: 1, ..point }, (1, 4), Variant::PLAIN, Route::Board, &Tuning::default());
        assert!(text.contains("one-shot"), "{text}");
    }
}
