//! Ranks in concurrent threads.

use super::case::{BufferLists, Case, RankBuffers, TestRng};
use super::*;
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn ranks_in_threads_compute_the_right_results() {
    for world in [1, 2, 3, 5] {
        let mut boards = boards(Geometry { world, slot_bytes: 4096, depth: 8 });
        let mut rng = TestRng(world as u64);
        for turn in 0..300 {
            let case = Case::draw(world, 4096, turn, &mut rng);
            let mut buffers: Vec<RankBuffers> = (0..world).map(|rank| case.buffers(rank, &mut rng)).collect();
            let inputs: Vec<Vec<u8>> =
                buffers.iter().map(|rank_buffers| rank_buffers.input.clone()).collect();
            std::thread::scope(|scope| {
                for ((board, rank_buffers), layout) in boards.iter_mut().zip(&mut buffers).zip(&case.layouts)
                {
                    let descriptor = &case.descriptor;
                    scope.spawn(move || {
                        let mut lists: BufferLists = rank_buffers.lists();
                        board.run(descriptor, layout, &Tuning::default(), lists.operands(), soon).unwrap();
                    });
                }
            });
            for (rank, rank_buffers) in buffers.iter().enumerate() {
                assert!(rank_buffers.is_right(&case.expected(rank, &inputs)), "rank {rank}: {case:?}");
            }
        }
    }
}

#[test]
fn a_missing_rank_is_named_and_the_board_is_aborted_for_all() {
    let mut boards = boards(Geometry { world: 3, slot_bytes: 128, depth: 4 });
    let barrier = Descriptor::all_reduce(0, DType::U8, ReduceOp::Sum).with_collective(Collective::Barrier);
    let tuning = Tuning::default();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let run = |board: &'_ mut Board, timeout_ms: u64| {
            let deadline = move || Instant::now() + Duration::from_millis(timeout_ms);
            board.run(&barrier, &Layout::Even, &tuning, Operands::none(), deadline)
        };
        let [zero, one, _] = &mut boards[..] else { unreachable!() };
        let threads = [scope.spawn(move || run(zero, 100)), scope.spawn(move || run(one, 60_000))];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(outcomes[0], Err(BoardError::Timeout { missing: vec![Rank(2)] }));
    let why = "timed out waiting for rank 2".to_owned();
    assert_eq!(outcomes[1], Err(BoardError::Aborted { by: Rank(0), why: why.clone() }));
    let late = boards[2].run(&barrier, &Layout::Even, &tuning, Operands::none(), soon);
    assert_eq!(late, Err(BoardError::Aborted { by: Rank(0), why }));
}

#[test]
fn a_wait_for_a_rank_that_left_fails_at_once() {
    let mut boards = boards(Geometry { world: 2, slot_bytes: 128, depth: 4 });
    boards[1].leave();
    let sum = Descriptor::all_reduce(4, DType::U8, ReduceOp::Sum);
    let outcome =
        boards[0].run(&sum, &Layout::Even, &Tuning::default(), Operands::InPlace(&mut [0; 4]), soon);
    assert_eq!(outcome, Err(BoardError::Left { rank: Rank(1) }));
}
