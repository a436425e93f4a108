//! In which order the pieces of an input are needed.

use ringfold_plan::plan::Plan;

/// The pieces of an input, those that the plan reads first in front.
///
/// Frames of all lanes are sent and received at the same time, so a step's turn is the number of its frame in its lane.
pub(crate) fn piece_order(plan: &Plan, element_bytes: usize, bytes: usize, piece_bytes: usize) -> Vec<usize> {
    let mut turns: Vec<usize> = (0..plan.steps.len()).collect();
    for (_, lane) in plan.sends.iter().chain(&plan.receives) {
        for (turn, step) in lane.iter().enumerate() {
            turns[*step as usize] = turn;
        }
    }
    let pieces = bytes.div_ceil(piece_bytes);
    let mut first_turns = vec![usize::MAX; pieces];
    for (step, turn) in plan.steps.iter().zip(turns) {
        for region in step.inputs().filter(|region| region.count > 0) {
            let start = region.offset as usize * element_bytes;
            let end = start + region.count as usize * element_bytes;
            // The sum of weights is not in the input.
            let last = ((end - 1) / piece_bytes).min(pieces.saturating_sub(1));
            for first_turn in first_turns.iter_mut().take(last + 1).skip(start / piece_bytes) {
                *first_turn = turn.min(*first_turn);
            }
        }
    }
    let mut order: Vec<usize> = (0..pieces).collect();
    order.sort_by_key(|piece| first_turns[*piece]);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_plan::choice::plan;
    use ringfold_plan::layout::Layout;
    use ringfold_plan::shape::GroupShape;
    use ringfold_proto::descriptor::Descriptor;
    use ringfold_proto::dtype::DType;
    use ringfold_proto::id::Rank;
    use ringfold_proto::reduce_op::ReduceOp;
    use ringfold_proto::tuning::{Algorithm, Tuning};

    fn order(algorithm: Algorithm, world: usize, rank: usize, pieces: usize) -> Vec<usize> {
        let tuning = Tuning { forced: Some(algorithm), chunk_bytes: 64, ..Tuning::default() };
        let descriptor = Descriptor::all_reduce(pieces as u64 * 64, DType::F32, ReduceOp::Sum);
        let shape = GroupShape::uniform(world);
        let plan = plan(&descriptor, &Layout::Even, Rank::from_index(rank), &shape, &tuning).unwrap();
        piece_order(&plan, 4, pieces * 256, 256)
    }

    #[test]
    fn a_ring_reads_the_part_that_it_sends_and_the_part_that_arrives_in_turns() {
        // Parts of four pieces: rank 1 sends part 0 first, and reduces part 3, then part 2.
        assert_eq!(order(Algorithm::Ring, 4, 1, 16), [0, 12, 1, 13, 2, 14, 3, 15, 8, 9, 10, 11, 4, 5, 6, 7]);
        assert_eq!(order(Algorithm::Ring, 2, 0, 8), [0, 4, 1, 5, 2, 6, 3, 7]);
    }

    #[test]
    fn every_piece_is_needed_once_by_every_method() {
        for algorithm in [Algorithm::Ring, Algorithm::Direct, Algorithm::Halving, Algorithm::OneShot] {
            for (world, rank, pieces) in [(2, 1, 7), (3, 0, 5), (5, 4, 1), (2, 0, 0)] {
                let mut pieces_read = order(algorithm, world, rank, pieces);
                pieces_read.sort_unstable();
                assert_eq!(pieces_read, (0..pieces).collect::<Vec<_>>(), "{algorithm:?}");
            }
        }
    }
}
