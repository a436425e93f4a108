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
                buffers.iter().map(|rank_buffers| rank_buffers.input.to_vec()).collect();
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

/// All ranks agree, and then exchange pieces that are large enough to be copied directly.
fn agree_and_exchange(world: usize, off: Option<usize>) -> Vec<Result<(), String>> {
    let bytes = Settings::DIRECT_BYTES_MIN + 100;
    let all_to_all = Descriptor::all_reduce((world * bytes) as u64, DType::U8, ReduceOp::Sum)
        .with_collective(Collective::AllToAll);
    let mut boards = boards(Geometry { world, slot_bytes: 4096, depth: 8 });
    std::thread::scope(|scope| {
        let run = |me: usize, board: &mut Board| {
            let agreed = board.agree_on_direct_copies(off != Some(me), soon()).unwrap();
            assert_eq!(board.peers.is_some(), agreed.is_ok());
            for round in 0..3 {
                let input: Vec<u8> =
                    (0..world).flat_map(|to| vec![(16 * me + to + round) as u8; bytes]).collect();
                let mut output = vec![0; world * bytes];
                let operands =
                    Operands::OutOfPlace { input: Pieces::One(&input), output: PiecesMut::One(&mut output) };
                board.run(&all_to_all, &Layout::Even, &Tuning::default(), operands, soon).unwrap();
                for (from, piece) in output.chunks(bytes).enumerate() {
                    assert!(piece.iter().all(|byte| *byte == (16 * from + me + round) as u8));
                }
            }
            agreed
        };
        let threads: Vec<_> =
            boards.iter_mut().enumerate().map(|(me, board)| scope.spawn(move || run(me, board))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_agree_on_direct_copies() {
    for world in [1, 2, 5] {
        let expected = if cfg!(miri) && world > 1 {
            Err("rank 0 cannot read the memory of rank 1".to_owned())
        } else {
            Ok(())
        };
        assert_eq!(agree_and_exchange(world, None), vec![expected; world]);
    }
    let off = Err("rank 2 has the setting direct_copy off".to_owned());
    if !cfg!(miri) {
        assert_eq!(agree_and_exchange(4, Some(2)), vec![off; 4]);
    }
}

#[test]
fn a_rank_that_aborts_before_others_have_copied_fails_their_copies() {
    let mut boards = boards(Geometry { world: 2, slot_bytes: 128, depth: 4 });
    let peers = [PeerMemory::own(), PeerMemory::own()];
    let all_to_all =
        Descriptor::all_reduce(128, DType::U8, ReduceOp::Sum).with_collective(Collective::AllToAll);
    let (input, mut outputs) = ([7; 128], [[0; 128]; 2]);
    let [first, second] = &mut outputs;
    let operands =
        |output| Operands::OutOfPlace { input: Pieces::One(&input), output: PiecesMut::One(output) };
    let tuning = Tuning::default();
    let mapped = RefCell::default();
    let access = (Some(&peers[..]), &mapped);
    let mut one = boards[0].begin(&all_to_all, &Layout::Even, &tuning, operands(&mut first[..]), access);
    let mut two = boards[1].begin(&all_to_all, &Layout::Even, &tuning, operands(&mut second[..]), access);
    assert_eq!(one.poll(&mut boards[0].member), Ok(Progress::Moved));
    assert_eq!(two.poll(&mut boards[1].member), Ok(Progress::Moved));
    let why = "stopped".to_owned();
    boards[0].member.arena().abort(Rank(0), &why);
    let end = (0..4).find_map(|_| two.poll(&mut boards[1].member).err());
    assert_eq!(end, Some(BoardError::Aborted { by: Rank(0), why }));
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
