//! Why a point is carried out as it is.

use super::kind::Kind;
use super::point::Point;
use crate::size::ByteSize;
use ringfold::Tuning;
use ringfold_plan::choice::choose;
use ringfold_plan::layout::Layout;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;

/// What a group's data travels through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// Memory that all ranks share: no plans, all ranks read what the others put there.
    Board,
    /// A link between each two ranks.
    Links {
        /// Through memory.
        shared: bool,
    },
}

/// In words, for a rank.
pub(crate) fn explain(point: &Point, rank: usize, world: usize, route: Route, tuning: &Tuning) -> String {
    let shared = match route {
        Route::Board => return on_the_board(point, world, tuning),
        Route::Links { shared } => shared,
    };
    let root = Rank(0);
    let collective = match point.kind {
        Kind::AllReduce => Collective::AllReduce,
        Kind::Reduce => Collective::Reduce { root },
        Kind::Broadcast => Collective::Broadcast { root },
        Kind::AllGather => Collective::AllGather,
        Kind::ReduceScatter => Collective::ReduceScatter,
        Kind::Gather => Collective::Gather { root },
        Kind::Scatter => Collective::Scatter { root },
        Kind::AllToAll => Collective::AllToAll,
        Kind::Transfer => Collective::Transfer { from: root, to: Rank::from_index(world - 1) },
        Kind::Barrier => Collective::Barrier,
    };
    let descriptor =
        Descriptor::all_reduce(point.count as u64, point.dtype, point.op).with_collective(collective);
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

fn on_the_board(point: &Point, world: usize, tuning: &Tuning) -> String {
    let slots =
        format!("{} slots of {} per rank", tuning.board_depth, ByteSize(u64::from(tuning.board_slot_bytes)));
    let limit = u64::from(tuning.board_one_shot_bytes_max);
    match point.kind {
        Kind::Barrier => "all meet in shared memory".into(),
        Kind::AllReduce | Kind::Reduce if point.bytes() as u64 <= limit || world == 1 => {
            format!("one-shot in shared memory: everyone reads all, up to {}", ByteSize(limit))
        }
        Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => {
            format!("in parts through shared memory: each rank combines its own; {slots}")
        }
        _ => format!("straight through shared memory; {slots}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold::{DType, ReduceOp};

    #[test]
    fn every_collective_has_its_reason_on_every_route() {
        let tuning = Tuning::default();
        for &kind in Kind::ALL {
            let point =
                Point { kind, dtype: DType::F32, op: ReduceOp::Sum, count: 4096, place: kind.places()[0] };
            for route in [Route::Board, Route::Links { shared: true }, Route::Links { shared: false }] {
                assert!(!explain(&point, 0, 4, route, &tuning).is_empty(), "{kind}");
            }
        }
    }

    #[test]
    fn the_candidates_are_told_with_what_they_should_take() {
        let (kind, op) = (Kind::AllReduce, ReduceOp::Sum);
        let point = Point { kind, dtype: DType::F32, op, count: 1 << 20, place: kind.places()[0] };
        let text = explain(&point, 1, 4, Route::Links { shared: false }, &Tuning::default());
        assert!(text.contains("<- taken") && text.contains("ring"), "{text}");
        let text = explain(&Point { count: 1, ..point }, 1, 4, Route::Board, &Tuning::default());
        assert!(text.contains("one-shot"), "{text}");
    }
}
