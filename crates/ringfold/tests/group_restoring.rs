//! Restoring buffers after a failure.

use crate::rank_threads::run_on_both_media;
use ringfold::{DType, Error, Group, GroupBuffers, GroupOp, Memory, Operation, ReduceOp, TransferTag, View};
use std::sync::Barrier;
use std::time::Duration;

/// Runs ranks that restore as threads, over TCP and through shared memory.
fn ranks(world: usize, timeout: Duration, run: impl Fn(Group) + Sync) {
    run_on_both_media(world, |builder| builder.restore_on_failure(true).timeout(timeout), run);
}

fn operation(op: GroupOp, buffers: GroupBuffers) -> Operation {
    Operation { op, dtype: DType::U8, buffers, timeout: None }
}
#[test]
fn groups_that_restore_compute_the_same_results() {
    ranks(3, Duration::from_secs(60), |group| {
        let (me, world) = (group.rank(), group.world());
        for count in [0, 1, 7, 1000, 300_001] {
            let mut data = vec![me as u32 + 1; count];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|value| *value == 6));
            let mut data = vec![me as u32; count];
            group.broadcast(&mut data, 2).unwrap();
            assert!(data.iter().all(|value| *value == 2));
            let mut data = vec![me as u32 + 1; count];
            group.reduce(&mut data, 1, ReduceOp::Prod).unwrap();
            assert!(data.iter().all(|value| *value == if me == 1 { 6 } else { me as u32 + 1 }));
            let mut all = vec![9; count * world];
            group.all_gather(&vec![me as u32; count], &mut all).unwrap();
            assert!(
                all.chunks(count.max(1))
                    .enumerate()
                    .all(|(rank, part)| part.iter().all(|v| *v == rank as u32))
            );
            let memory = Memory::from(vec![1_u8; count]);
            let work = group
                .submit(operation(GroupOp::AllReduce(ReduceOp::Sum), GroupBuffers::InPlace(memory)))
                .unwrap();
            let (result, buffers) = work.finish();
            result.unwrap();
            let Some(GroupBuffers::InPlace(memory)) = buffers else { panic!("no memory was returned") };
            assert!(memory.as_slice().iter().all(|value| *value == 3));
        }
        let next = (me + 1) % world;
        let sent = group
            .submit(operation(
                GroupOp::Send { to: next, tag: TransferTag::default() },
                GroupBuffers::OutOfPlace { input: vec![View::from(vec![me as u8; 9])], output: vec![] },
            ))
            .unwrap();
        let mut data = [0_u8; 9];
        group.recv(&mut data, (me + world - 1) % world).unwrap();
        assert_eq!(data, [((me + world - 1) % world) as u8; 9]);
        sent.wait().unwrap();
        group.barrier().unwrap();
    });
}

/// An operation that the last rank does not call: it fails on the others, and their buffers are restored.
fn fail(op: GroupOp, count: usize, in_background: bool) {
    let all_tried = Barrier::new(3);
    ranks(3, Duration::from_millis(300), |group| {
        let me = group.rank();
        group.barrier().unwrap();
        if me < 2 {
            let mut data: Vec<u8> = (0..count).map(|i| (i * 7 + me) as u8).collect();
            let before = data.clone();
            let error = if in_background {
                let buffers = GroupBuffers::InPlace(Memory::from(data));
                let (result, buffers) = group.submit(operation(op.clone(), buffers)).unwrap().finish();
                data = match buffers {
                    Some(GroupBuffers::InPlace(memory)) => memory.as_slice().to_vec(),
                    Some(GroupBuffers::OutOfPlace { input, .. }) => input[0].as_slice().to_vec(),
                    None => panic!("no memory was returned"),
                };
                result.unwrap_err()
            } else {
                group.run_bytes_in_place(op.clone(), DType::U8, &mut data).unwrap_err()
            };
            assert!(
                matches!(error, Error::GroupFailed(_)) && error.to_string().contains("rank 2 ("),
                "{error}"
            );
            assert!(data == before, "{op:?} of {count}");
        }
        all_tried.wait();
    });
}

#[test]
fn a_failed_operation_restores_in_place_buffers() {
    for in_background in [false, true] {
        for count in [1, 5000, 1 << 20] {
            fail(GroupOp::AllReduce(ReduceOp::Sum), count, in_background);
            fail(GroupOp::Reduce { root: 0, op: ReduceOp::Max }, count, in_background);
            // Rank 1 receives everything, but must restore it: not all ranks have the result.
            fail(GroupOp::Broadcast { root: 0 }, count, in_background);
        }
    }
}

#[test]
fn a_failed_reduction_restores_a_separate_output() {
    let all_tried = Barrier::new(3);
    for op in [GroupOp::AllReduce(ReduceOp::Sum), GroupOp::Reduce { root: 0, op: ReduceOp::Sum }] {
        ranks(3, Duration::from_millis(300), |group| {
            group.barrier().unwrap();
            if group.rank() < 2 {
                let (input, mut output) = (vec![1; 1 << 20], vec![7; 1 << 20]);
                group.run_bytes(op.clone(), DType::U8, &input, &mut output).unwrap_err();
                assert!(output.iter().all(|byte| *byte == 7), "{op:?}");
            }
            all_tried.wait();
        });
    }
}

#[test]
fn a_failed_gather_does_not_change_a_list_of_outputs() {
    ranks(2, Duration::from_secs(60), |group| {
        group.barrier().unwrap();
        group.abort();
        let output = vec![Memory::from(vec![7; 10]), Memory::from(vec![7; 10])];
        let buffers = GroupBuffers::OutOfPlace { input: vec![View::from(vec![1; 10])], output };
        let (result, buffers) = group.submit(operation(GroupOp::AllGather, buffers)).unwrap().finish();
        result.unwrap_err();
        let Some(GroupBuffers::OutOfPlace { output, .. }) = buffers else { panic!("no memory was returned") };
        assert!(output.iter().all(|memory| memory.as_slice() == [7; 10]));
    });
}
