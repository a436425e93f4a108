//! Invalid and unused buffers of a group's operations.

use crate::rank_threads::run_on_both_media;
use ringfold::{DType, Error, Group, GroupBuffers, GroupOp, Memory, Operation, ReduceOp, TransferTag, View};
use std::time::{Duration, Instant};

/// Runs two ranks as threads, over TCP and through shared memory.
fn pairs(run: impl Fn(Group) + Sync) {
    run_on_both_media(2, |builder| builder.timeout(Duration::from_secs(20)), run);
}

fn operation(op: GroupOp, input: &[usize], output: &[usize]) -> Operation {
    let input = input.iter().map(|bytes| View::from(vec![1; *bytes])).collect();
    let output = output.iter().map(|bytes| Memory::zeroed(*bytes)).collect();
    Operation { op, dtype: DType::U8, buffers: GroupBuffers::OutOfPlace { input, output }, timeout: None }
}

#[test]
fn invalid_buffer_lists_are_rejected_and_the_group_continues() {
    pairs(|group| {
        let other = 1 - group.rank();
        for wrong in [
            operation(GroupOp::AllGather, &[4], &[5, 3]),
            operation(GroupOp::AllGather, &[2, 2], &[8]),
            operation(GroupOp::AllGather, &[4], &[2, 4, 2]),
            operation(GroupOp::AllReduce(ReduceOp::Sum), &[2, 2], &[4]),
            operation(GroupOp::ReduceScatter(ReduceOp::Sum), &[3, 5], &[4]),
            operation(GroupOp::AllToAllV { send: vec![1, 2], receive: vec![1, 2] }, &[2, 1], &[1, 2]),
            operation(GroupOp::Recv { from: other, tag: TransferTag::default() }, &[], &[2, 2]),
        ] {
            let outcome = group.submit(wrong).map(|work| work.wait());
            assert!(matches!(outcome, Err(Error::BadArgument(_))), "{outcome:?}");
        }
        group.submit(operation(GroupOp::AllGather, &[4], &[4, 4])).unwrap().wait().unwrap();
        group.barrier().unwrap();
    });
}

#[test]
fn unused_buffers_are_accepted() {
    pairs(|group| {
        let (me, mine, spare) = (group.rank(), [group.rank() as u8; 2], &mut [9; 5][..]);
        let mut all = [0; 4];
        group.gather_v(&mine, if me == 0 { &mut all } else { &mut *spare }, &[2, 2], 0).unwrap();
        assert_eq!(all, if me == 0 { [0, 0, 1, 1] } else { [0; 4] });
        let mut part = [0; 2];
        group.scatter_v(if me == 0 { &[1, 2, 3, 4] } else { &[7; 3] }, &mut part, &[2, 2], 0).unwrap();
        assert_eq!(part, [[1, 2], [3, 4]][me]);
        let mut data = [0; 3];
        let input: &[u8] = if me == 0 { &[5, 6, 7] } else { &[] };
        group.run_bytes(GroupOp::Broadcast { root: 0 }, DType::U8, input, &mut data).unwrap();
        assert_eq!((data, &*spare), ([5, 6, 7], &[9; 5][..]));
        let input: &[usize] = if me == 0 { &[3] } else { &[2, 2] };
        group.submit(operation(GroupOp::Broadcast { root: 0 }, input, &[3])).unwrap().wait().unwrap();
        let output: &[usize] = if me == 0 { &[3] } else { &[1, 7] };
        let reduce = GroupOp::Reduce { root: 0, op: ReduceOp::Sum };
        group.submit(operation(reduce, &[3], output)).unwrap().wait().unwrap();
        group.barrier().unwrap();
    });
}

#[test]
fn calls_after_leaving_fail_at_once() {
    pairs(|group| {
        group.barrier().unwrap();
        let began = Instant::now();
        group.close();
        assert!(matches!(group.barrier(), Err(Error::Left)));
        assert!(matches!(group.all_reduce(&mut [1_u8], ReduceOp::Sum), Err(Error::Left)));
        let work = group.submit(operation(GroupOp::AllGather, &[1], &[2]));
        assert!(matches!(work.map(|work| work.wait()), Err(Error::Left) | Ok(Err(Error::Left))));
        assert!(began.elapsed() < Duration::from_secs(10));
    });
}
