//! Retired groups accept no more operations, and complete those in flight.

use crate::rank_threads::run_on_both_media;
use ringfold::{
    DType, Error, Group, GroupBuffers, GroupOp, GroupWork, Memory, Operation, ReduceOp, TransferTag, View,
};
use std::sync::Barrier;
use std::time::Duration;

/// Runs two ranks as threads, over TCP and through shared memory.
fn pairs(run: impl Fn(Group) + Sync) {
    run_on_both_media(2, |builder| builder.timeout(Duration::from_secs(20)), run);
}

fn submit(group: &Group, op: GroupOp, buffers: GroupBuffers) -> GroupWork {
    group.submit(Operation { op, dtype: DType::U8, buffers, timeout: None }).unwrap()
}
/// Starts five reductions and a transfer to rank 1, and drops their handles.
fn begin(group: &Group) {
    for _ in 0..5 {
        let buffers = GroupBuffers::InPlace(Memory::from(vec![1; 100_000]));
        drop(submit(group, GroupOp::AllReduce(ReduceOp::Sum), buffers));
    }
    let input = vec![View::from(vec![7; 4 << 20])];
    drop(submit(
        group,
        GroupOp::Send { to: 1, tag: TransferTag::default() },
        GroupBuffers::OutOfPlace { input, output: vec![] },
    ));
}

/// The counterpart of `begin` on rank 1, after rank 0 has retired.
fn take(group: &Group, has_retired: &Barrier) {
    has_retired.wait();
    for _ in 0..5 {
        let mut data = vec![1_u8; 100_000];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert!(data.iter().all(|value| *value == 2));
    }
    let mut data = vec![0_u8; 4 << 20];
    group.recv(&mut data, 0).unwrap();
    assert!(data.iter().all(|value| *value == 7));
    let error = group.barrier().unwrap_err().to_string();
    assert!(error.contains("rank 0 (") && error.contains("left"), "{error}");
}

#[test]
fn retiring_completes_operations_in_flight() {
    let has_retired = Barrier::new(2);
    pairs(|group| {
        if group.rank() == 1 {
            return take(&group, &has_retired);
        }
        begin(&group);
        // These calls do not wait: rank 1 does not take part before they have returned.
        group.retire();
        group.retire();
        has_retired.wait();
        assert!(matches!(group.barrier(), Err(Error::Left)));
        assert!(matches!(group.send(&[1], 1), Err(Error::Left)));
        let buffers = GroupBuffers::InPlace(Memory::from(vec![1]));
        let op = GroupOp::AllReduce(ReduceOp::Sum);
        let late = group.submit(Operation { op, dtype: DType::U8, buffers, timeout: None });
        assert!(matches!(late, Err(Error::Left)));
    });
}

#[test]
fn dropping_a_group_completes_operations_in_flight() {
    let has_retired = Barrier::new(2);
    pairs(|group| {
        if group.rank() == 1 {
            return take(&group, &has_retired);
        }
        begin(&group);
        drop(group);
        has_retired.wait();
    });
}

#[test]
fn a_work_of_a_retired_group_can_be_waited_for() {
    pairs(|group| {
        let buffers = GroupBuffers::InPlace(Memory::from(vec![1; 10]));
        let work = submit(&group, GroupOp::AllReduce(ReduceOp::Sum), buffers);
        group.retire();
        drop(group);
        work.wait().unwrap();
    });
}

#[test]
fn retiring_an_idle_group_says_goodbye_before_it_returns() {
    pairs(|group| {
        group.barrier().unwrap();
        if group.rank() == 0 {
            group.retire();
        } else {
            let error = group.recv(&mut [0_u8], 0).unwrap_err().to_string();
            assert!(error.contains("rank 0 (") && error.contains("left"), "{error}");
        }
    });
}
