//! Reductions that read shared buffers in place.
#![cfg(not(miri))]

use super::case::TestRng;
use super::*;
use ringfold_fabric::arena::Ranks;
use ringfold_fabric::shared_buffer::{BufferRange, SharedBuffer};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Pseudorandom bytes: all bit patterns, among them infinities and all kinds of NaN.
fn random_bytes(bytes: usize, seed: usize) -> Vec<u8> {
    let mut rng = TestRng(seed as u64);
    (0..bytes.div_ceil(2)).flat_map(|_| (rng.below(1 << 16) as u16).to_le_bytes()).take(bytes).collect()
}

fn shared(bytes: &[u8]) -> SharedBuffer {
    let mut buffer = SharedBuffer::zeroed(bytes.len()).unwrap();
    buffer.as_mut_slice().copy_from_slice(bytes);
    buffer
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    InPlace,
    OutOfPlace,
    /// In place on even ranks.
    Mixed,
}

fn run(
    descriptor: &Descriptor,
    inputs: &[Vec<u8>],
    form: Form,
    has_own: impl Fn(usize) -> bool + Sync,
) -> (Vec<Vec<u8>>, u64) {
    run_with(descriptor, inputs, form, has_own, |_| 1)
}

/// Runs a collective with shared buffers, except for the ranks that have their own. Returns the results, and how many ranks
/// have read in place.
fn run_with(
    descriptor: &Descriptor,
    inputs: &[Vec<u8>],
    form: Form,
    has_own: impl Fn(usize) -> bool + Sync,
    threads: impl Fn(usize) -> usize,
) -> (Vec<Vec<u8>>, u64) {
    let world = inputs.len();
    let mut boards = boards(Geometry { world, slot_bytes: 16 << 10, depth: 8 });
    for (rank, board) in boards.iter_mut().enumerate() {
        board.set_workers(WorkerPool::start(threads(rank)).unwrap());
    }
    let part = descriptor.collective == Collective::ReduceScatter;
    let run = |me: usize, board: &mut Board| {
        let whole = inputs[me].len();
        let in_place = form == Form::InPlace || form == Form::Mixed && me.is_multiple_of(2);
        let (mut input, mut own_input) = (shared(&inputs[me]), inputs[me].clone());
        let output_bytes = if part { whole / world } else { whole };
        let (mut output, mut own_output) =
            (SharedBuffer::zeroed(output_bytes).unwrap(), vec![7; output_bytes]);
        let (input, output) = match has_own(me) {
            true => (&mut own_input[..], &mut own_output[..]),
            false => (input.as_mut_slice(), output.as_mut_slice()),
        };
        let operands = match in_place {
            true => Operands::InPlace(input),
            false => Operands::OutOfPlace { input: Pieces::One(input), output: PiecesMut::One(output) },
        };
        board.run(descriptor, &Layout::Even, &Tuning::default(), operands, soon).unwrap();
        let own_part = me * output_bytes..(me + 1) * output_bytes;
        match in_place {
            true if part => input[own_part].to_vec(),
            true => input.to_vec(),
            false => {
                assert!(input == inputs[me], "rank {me} changed its input");
                output.to_vec()
            }
        }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            boards.iter_mut().enumerate().map(|(me, board)| scope.spawn(move || run(me, board))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (results, boards.iter().map(|board| board.shared_collectives().load(Ordering::Relaxed)).sum())
}

const BYTES: usize = Settings::SHARED_BYTES_MIN + 4096;

#[test]
fn results_have_the_bits_of_those_through_slots() {
    let operations = [
        (DType::F32, ReduceOp::Sum),
        (DType::F32, ReduceOp::Avg),
        (DType::BF16, ReduceOp::Sum),
        (DType::BF16, ReduceOp::Avg),
        (DType::F16, ReduceOp::Max),
        (DType::I64, ReduceOp::Avg),
        (DType::I64, ReduceOp::Min),
        (DType::U8, ReduceOp::BitXor),
        (DType::F64, ReduceOp::Prod),
    ];
    let worlds = [2, 3, 4, 5];
    for (turn, (dtype, op)) in operations.into_iter().enumerate() {
        let world = worlds[turn % worlds.len()];
        // Divisible by the numbers of ranks; the last block is not full.
        let count = (BYTES / dtype.bytes()).next_multiple_of(60) as u64;
        let inputs: Vec<_> =
            (0..world).map(|rank| random_bytes(count as usize * dtype.bytes(), turn * 8 + rank)).collect();
        let all_reduce = Descriptor::all_reduce(count, dtype, op);
        for descriptor in [all_reduce, all_reduce.with_collective(Collective::ReduceScatter)] {
            let (expected, uses) = run(&descriptor, &inputs, Form::OutOfPlace, |_| true);
            assert_eq!(uses, 0);
            for form in [Form::InPlace, Form::OutOfPlace, Form::Mixed] {
                let (results, uses) = run(&descriptor, &inputs, form, |_| false);
                assert_eq!(uses, world as u64, "{descriptor}");
                assert!(results == expected, "{descriptor} of {world} ranks");
            }
        }
    }
}

#[test]
fn several_threads_per_rank_give_the_same_bits_also_if_ranks_differ_in_it() {
    for (dtype, op) in [(DType::F32, ReduceOp::Sum), (DType::BF16, ReduceOp::Avg)] {
        let count = (BYTES / dtype.bytes()).next_multiple_of(60) as u64;
        let inputs: Vec<_> = (0..3).map(|rank| random_bytes(count as usize * dtype.bytes(), rank)).collect();
        let all_reduce = Descriptor::all_reduce(count, dtype, op);
        for descriptor in [all_reduce, all_reduce.with_collective(Collective::ReduceScatter)] {
            for form in [Form::InPlace, Form::OutOfPlace] {
                let (expected, _) = run(&descriptor, &inputs, form, |_| false);
                for threads in [[2, 2, 2], [1, 2, 3]] {
                    let (results, uses) =
                        run_with(&descriptor, &inputs, form, |_| false, |rank| threads[rank]);
                    assert_eq!(uses, 3);
                    assert!(results == expected, "{descriptor} with {threads:?} threads");
                }
            }
        }
    }
}

#[test]
fn one_rank_without_a_shared_buffer_makes_all_use_slots() {
    let sum = Descriptor::all_reduce((BYTES / 4) as u64, DType::F32, ReduceOp::Sum);
    for world in [2, 5] {
        let inputs: Vec<_> = (0..world).map(|rank| random_bytes(BYTES, rank)).collect();
        let (expected, _) = run(&sum, &inputs, Form::InPlace, |_| true);
        for odd_one in [0, world - 1] {
            let (results, uses) = run(&sum, &inputs, Form::InPlace, |rank| rank == odd_one);
            assert_eq!(uses, 0);
            assert!(results == expected);
        }
    }
}

#[test]
fn small_reductions_are_not_announced() {
    let sum = Descriptor::all_reduce(1000, DType::F32, ReduceOp::Sum);
    let inputs = [random_bytes(4000, 1), random_bytes(4000, 2)];
    assert_eq!(run(&sum, &inputs, Form::InPlace, |_| false).1, 0);
}

#[test]
fn mappings_are_kept_until_the_owner_frees_the_buffer() {
    let sum = Descriptor::all_reduce((BYTES / 4) as u64, DType::F32, ReduceOp::Sum);
    let mut boards = boards(Geometry { world: 2, slot_bytes: 16 << 10, depth: 8 });
    let mut call = |buffers: &mut [SharedBuffer; 2]| -> Vec<usize> {
        std::thread::scope(|scope| {
            for (board, buffer) in boards.iter_mut().zip(buffers) {
                let run = move || {
                    let operands = Operands::InPlace(buffer.as_mut_slice());
                    board.run(&sum, &Layout::Even, &Tuning::default(), operands, soon).unwrap();
                };
                scope.spawn(run);
            }
        });
        boards.iter().map(|board| board.mapped.borrow().len()).collect()
    };
    let buffers = || [0, 1].map(|_| SharedBuffer::zeroed(BYTES).unwrap());
    let (mut first, mut second) = (buffers(), buffers());
    assert_eq!(call(&mut first), [1, 1]);
    assert_eq!(call(&mut first), [1, 1]);
    assert_eq!(call(&mut second), [2, 2]);
    drop(first);
    assert_eq!(call(&mut second), [1, 1]);
}

#[test]
fn a_rank_that_aborts_in_the_middle_fails_all_and_its_memory_is_its_own() {
    let bytes = 1 << 14;
    let sum = Descriptor::all_reduce(bytes as u64, DType::U8, ReduceOp::Sum);
    let tuning = Tuning { board_one_shot_bytes_max: 0, ..Tuning::default() };
    // After each number of steps of the rank that aborts.
    for steps in 0..40 {
        let mut boards = boards(Geometry { world: 2, slot_bytes: 256, depth: 8 });
        let [mut first, mut second] = [1, 2].map(|byte| shared(&vec![byte; bytes]));
        let mapped = [RefCell::default(), RefCell::default()];
        let operands = Operands::InPlace(second.as_mut_slice());
        let mut two = boards[1].begin(&sum, &Layout::Even, &tuning, operands, (None, &mapped[1]));
        {
            let operands = Operands::InPlace(first.as_mut_slice());
            let mut one = boards[0].begin(&sum, &Layout::Even, &tuning, operands, (None, &mapped[0]));
            for _ in 0..steps {
                let _ = one.poll(&mut boards[0].member).unwrap();
                let _ = two.poll(&mut boards[1].member).unwrap();
            }
        }
        boards[0].member.arena().abort(Rank(0), "stopped");
        // It has returned, and uses its memory for something else.
        first.as_mut_slice().fill(9);
        let end = loop {
            match two.poll(&mut boards[1].member) {
                Ok(Progress::Moved) => {}
                end => break end,
            }
        };
        // It fails, or waits for the rank that has aborted, which fails the wait.
        assert!(!matches!(end, Ok(Progress::Done)), "after {steps} steps");
        assert!(first.as_slice().iter().all(|byte| *byte == 9), "after {steps} steps");
    }
}

/// The other rank has announced all that this one needs, and aborts before this one has read its last pieces.
#[test]
fn a_rank_that_aborts_before_others_have_read_its_tensor_fails_them() {
    let bytes = 1 << 14;
    let sum = Descriptor::all_reduce(bytes as u64, DType::U8, ReduceOp::Sum);
    let tuning = Tuning { board_one_shot_bytes_max: 0, ..Tuning::default() };
    let mut boards = boards(Geometry { world: 2, slot_bytes: 256, depth: 8 });
    let [mut first, mut second] = [1, 2].map(|byte| shared(&vec![byte; bytes]));
    let mapped = [RefCell::default(), RefCell::default()];
    let operands = Operands::InPlace(second.as_mut_slice());
    let mut two = boards[1].begin(&sum, &Layout::Even, &tuning, operands, (None, &mapped[1]));
    {
        let operands = Operands::InPlace(first.as_mut_slice());
        let mut one = boards[0].begin(&sum, &Layout::Even, &tuning, operands, (None, &mapped[0]));
        let last_round = 2 + bytes.div_ceil(2 * 192) as u64;
        while boards[1].member.unannounced(last_round, Ranks::one(Rank(0))).contains(Rank(0)) {
            // The first rank goes as far as it can for each step of the second one.
            while one.poll(&mut boards[0].member).unwrap() == Progress::Moved {}
            let _ = two.poll(&mut boards[1].member).unwrap();
        }
    }
    boards[0].member.arena().abort(Rank(0), "stopped");
    first.as_mut_slice().fill(9);
    let end = (0..1000).find_map(|_| match two.poll(&mut boards[1].member) {
        Ok(Progress::Moved) => None,
        end => Some(end),
    });
    assert_eq!(end, Some(Err(BoardError::Aborted { by: Rank(0), why: "stopped".into() })));
}

/// A rank may announce anything.
#[test]
fn invalid_announcements_are_refused_by_all() {
    let bytes = 1 << 14;
    let sum = Descriptor::all_reduce(bytes as u64, DType::U8, ReduceOp::Sum);
    let tuning = Tuning { board_one_shot_bytes_max: 0, ..Tuning::default() };
    for offset in [1, 4096, u64::MAX, u64::MAX - 4095, 1 << 63] {
        let mut boards = boards(Geometry { world: 2, slot_bytes: 256, depth: 8 });
        let mut buffers = [1, 2].map(|byte| shared(&vec![byte; bytes]));
        let ticket = BufferRange::of(buffers[1].as_slice()).unwrap().ticket;
        let [first, second] = &mut buffers;
        let mapped = [RefCell::default(), RefCell::default()];
        let mut one = boards[0].begin(
            &sum,
            &Layout::Even,
            &tuning,
            Operands::InPlace(first.as_mut_slice()),
            (None, &mapped[0]),
        );
        let two = boards[1].begin(
            &sum,
            &Layout::Even,
            &tuning,
            Operands::InPlace(second.as_mut_slice()),
            (None, &mapped[1]),
        );
        let fingerprint = two.fingerprint();
        drop(two);
        // Rank 1 announces its buffer, but a range that does not lie within it.
        let record = [&ticket.encode()[..], &offset.to_le_bytes()].concat();
        assert!(boards[1].member.may_fill(0));
        let fill = Fill { round: 0, bytes: 2 * record.len() };
        boards[1].member.slots(Some(fill), None).own.copy_from_slice(&[&record[..], &record].concat());
        boards[1].member.announce(0, fingerprint);
        for _ in 0..4 {
            assert_eq!(one.poll(&mut boards[0].member), Ok(Progress::Moved), "{offset}");
        }
        // It announces that it could not map the range.
        let mut outcome = [0];
        boards[1].member.slots(None, Some(1)).others.copy(Rank(0), &mut outcome);
        assert_eq!(outcome, [1], "{offset}");
    }
}
