//! All ranks in one thread under random schedules, then in threads.

mod case;
mod shared_reduce;
mod threads;

use super::collective_run::CollectiveRun;
use super::pipeline::Progress;
use super::*;
use case::{Case, RankBuffers, TestRng};
use ringfold_fabric::arena::{Fill, Geometry};

fn boards(geometry: Geometry) -> Vec<Board> {
    let arena = Arc::new(Arena::create(geometry).unwrap());
    (0..geometry.world).map(|rank| Board::new(arena.clone(), Rank::from_index(rank)).unwrap()).collect()
}

/// Runs the steps of all ranks in random order, and checks the results.
fn run_randomly(boards: &mut [Board], case: &Case, rng: &mut TestRng) {
    // Copies through slots, direct ones, and some that a rank cannot make.
    let mut peers = (rng.below(3) > 0).then(|| boards.iter().map(|_| PeerMemory::own()).collect::<Vec<_>>());
    let refusing = rng.below(3 * boards.len());
    if let Some(peer) = peers.as_mut().and_then(|peers| peers.get_mut(refusing)) {
        *peer = PeerMemory::default();
    }
    let peers = peers.as_deref();
    let mut buffers: Vec<RankBuffers> = (0..boards.len()).map(|rank| case.buffers(rank, rng)).collect();
    let inputs: Vec<Vec<u8>> = buffers.iter().map(|rank_buffers| rank_buffers.input.to_vec()).collect();
    let tuning = Tuning::default();
    // Each rank has its own mappings.
    let mapped: Vec<_> = boards.iter().map(|_| RefCell::<MappedBuffers>::default()).collect();
    {
        let mut lists: Vec<case::BufferLists> = buffers.iter_mut().map(RankBuffers::lists).collect();
        let mut runs: Vec<Option<CollectiveRun>> = boards
            .iter_mut()
            .zip(&mut lists)
            .enumerate()
            .map(|(rank, (board, lists))| {
                let access = (peers, &mapped[rank]);
                Some(board.begin(&case.descriptor, &case.layouts[rank], &tuning, lists.operands(), access))
            })
            .collect();
        let mut stuck = 0;
        while runs.iter().any(Option::is_some) {
            let rank = rng.below(boards.len());
            // Some ranks are late, and some take several steps at once.
            for _ in 0..=rng.below(4) {
                let Some(run) = &mut runs[rank] else { break };
                match run.poll(&mut boards[rank].member).unwrap() {
                    Progress::Done => {
                        boards[rank].rounds = run.next_round;
                        runs[rank] = None;
                    }
                    Progress::Moved => {}
                    Progress::Blocked(_) => break,
                }
                stuck = 0;
            }
            stuck += 1;
            assert!(stuck < 200 * boards.len(), "no rank can continue: {case:?}");
        }
    }
    for (rank, rank_buffers) in buffers.iter().enumerate() {
        assert!(
            rank_buffers.is_right(&case.expected(rank, &inputs)),
            "wrong result on rank {rank}: {case:?}"
        );
        assert!(
            rank_buffers.in_place || *rank_buffers.input == *inputs[rank],
            "rank {rank} changed its input: {case:?}"
        );
    }
}

#[test]
fn all_collectives_match_the_reference_under_random_schedules() {
    let mut rng = TestRng(7);
    for world in 1..=9_usize {
        for turn in 0..24 {
            let slot_bytes = (16 * world).next_multiple_of(64) << rng.below(3);
            let depth = [4, 8, 16][rng.below(3)];
            let mut boards = boards(Geometry { world, slot_bytes, depth });
            // Several collectives on one board reuse the slots.
            for _ in 0..6 {
                let case = Case::draw(world, slot_bytes, turn, &mut rng);
                run_randomly(&mut boards, &case, &mut rng);
            }
        }
    }
}

#[test]
fn sizes_around_those_of_slots_are_right() {
    let mut rng = TestRng(11);
    for world in [2, 3, 4] {
        let slot_bytes = 256;
        let mut boards = boards(Geometry { world, slot_bytes, depth: 8 });
        for bytes in
            [0, 1, 15, 16, 47, 48, 49, 63, 64, 65, 255, 256, 257, 511, 512, 513, 16_384, 16_385, 20_000]
        {
            for mut case in Case::all(world, bytes, &mut rng) {
                case.in_place &= bytes % 2 == 1;
                run_randomly(&mut boards, &case, &mut rng);
            }
        }
    }
}

#[test]
fn different_collectives_are_detected() {
    let mut boards = boards(Geometry { world: 2, slot_bytes: 128, depth: 4 });
    let tuning = Tuning::default();
    let sum = Descriptor::all_reduce(4, DType::U8, ReduceOp::Sum);
    let other = Descriptor { count: 5, ..sum };
    let (mut four, mut five) = ([1; 4], [1; 5]);
    let mapped = RefCell::default();
    let access = (None, &mapped);
    let mut one = boards[0].begin(&sum, &Layout::Even, &tuning, Operands::InPlace(&mut four), access);
    let mut two = boards[1].begin(&other, &Layout::Even, &tuning, Operands::InPlace(&mut five), access);
    assert_eq!(one.poll(&mut boards[0].member), Ok(Progress::Moved));
    assert_eq!(two.poll(&mut boards[1].member), Ok(Progress::Moved));
    assert_eq!(one.poll(&mut boards[0].member), Err(BoardError::Differs { rank: Rank(1) }));
    assert_eq!(two.poll(&mut boards[1].member), Err(BoardError::Differs { rank: Rank(0) }));
}

#[test]
fn invalid_sizes_of_a_rank_are_detected() {
    for claimed in [u64::MAX, 1 << 60, (1 << 48) + 1] {
        let mut boards = boards(Geometry { world: 3, slot_bytes: 128, depth: 4 });
        let all_to_all =
            Descriptor::all_reduce(0, DType::U8, ReduceOp::Sum).with_collective(Collective::AllToAll);
        let layout = Layout::Pairs { send: [1; 3].into(), receive: [1; 3].into() };
        let (mapped, mut outputs) = (RefCell::default(), [[0; 3]; 3]);
        let mut runs: Vec<_> = boards
            .iter_mut()
            .zip(&mut outputs)
            .map(|(board, output)| {
                let operands =
                    Operands::OutOfPlace { input: Pieces::One(&[7; 3]), output: PiecesMut::One(output) };
                board.begin(&all_to_all, &layout, &Tuning::default(), operands, (None, &mapped))
            })
            .collect();
        // Rank 1 claims an invalid size for rank 2.
        let fill = Fill { round: 0, bytes: 24 };
        assert!(boards[1].member.may_fill(0));
        let row = [1, 1, claimed].map(u64::to_le_bytes).concat();
        boards[1].member.slots(Some(fill), None).own.copy_from_slice(&row);
        let fingerprint = runs[1].fingerprint();
        boards[1].member.announce(0, fingerprint);
        for rank in [2, 0] {
            assert_eq!(runs[rank].poll(&mut boards[rank].member), Ok(Progress::Moved));
        }
        let end = (0..4).find_map(|_| runs[0].poll(&mut boards[0].member).err());
        assert_eq!(end, Some(BoardError::Differs { rank: Rank(1) }));
    }
}

#[test]
fn different_sizes_of_a_pair_are_detected() {
    let mut boards = boards(Geometry { world: 2, slot_bytes: 128, depth: 4 });
    let tuning = Tuning::default();
    let dtype = DType::U8;
    let all_to_all = Descriptor::all_reduce(0, dtype, ReduceOp::Sum).with_collective(Collective::AllToAll);
    let pairs =
        |send: [u64; 2], receive: [u64; 2]| Layout::Pairs { send: send.into(), receive: receive.into() };
    let (input, mut outputs) = ([0; 5], [[0; 8]; 2]);
    let [first, second] = &mut outputs;
    let operands =
        |output| Operands::OutOfPlace { input: Pieces::One(&input[..3]), output: PiecesMut::One(output) };
    // Rank 1 expects 4 bytes, and rank 0 sends 2.
    let layouts = [pairs([1, 2], [1, 2]), pairs([2, 1], [4, 1])];
    let mapped = RefCell::default();
    let access = (None, &mapped);
    let mut one = boards[0].begin(&all_to_all, &layouts[0], &tuning, operands(&mut first[..3]), access);
    let mut two = boards[1].begin(&all_to_all, &layouts[1], &tuning, operands(&mut second[..5]), access);
    for _ in 0..2 {
        let _ = one.poll(&mut boards[0].member).unwrap();
    }
    let last = loop {
        match two.poll(&mut boards[1].member) {
            Ok(Progress::Blocked(_) | Progress::Done) => panic!("the difference was not detected"),
            Ok(Progress::Moved) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(last, BoardError::Differs { rank: Rank(0) });
}
