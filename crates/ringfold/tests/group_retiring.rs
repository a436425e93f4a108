//! Groups that are retired take nothing more, and finish what was begun.

use ringfold::{
    Bootstrap, DType, Error, Group, GroupBuffers, GroupOp, GroupWork, Media, Memory, Operation, ReduceOp,
    TransferTag, View,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static MEETINGS: AtomicUsize = AtomicUsize::new(0);

/// Runs two ranks as threads, over TCP and through shared memory.
fn pairs(run: impl Fn(Group) + Sync) {
    for media in [Media::Tcp, Media::Shared] {
        let number = MEETINGS.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringfold-retiring-{}-{number}", std::process::id());
        let at = Bootstrap::File(std::env::temp_dir().join(name));
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let builder = Group::builder().rank(rank).world(2).bootstrap(at.clone()).media(media);
                let run = &run;
                scope.spawn(move || run(builder.timeout(Duration::from_secs(20)).connect().unwrap()));
            }
        });
    }
}

fn submit(group: &Group, op: GroupOp, buffers: GroupBuffers) -> GroupWork {
    group.submit(Operation { op, dtype: DType::U8, buffers, timeout: None }).unwrap()
}
/// Begins five reductions and a transfer to rank 1, and forgets them.
fn begin(group: &Group) {
    for _ in 0..5 {
        let buffers = GroupBuffers::InPlace(Memory::from(vec![1; 100_000]));
        drop(submit(group, GroupOp::AllReduce(ReduceOp::Sum), buffers));
    }
    let input = vec![View::from(vec![7; 4 << 20])];
    drop(submit(
        group,
        GroupOp::Send { to: 1, tag: TransferTag::default() },
        GroupBuffers::Apart { input, output: vec![] },
    ));
}

/// What rank 1 does with that, later.
fn take(group: &Group) {
    std::thread::sleep(Duration::from_millis(300));
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
fn what_was_begun_is_not_lost_when_a_group_is_retired() {
    pairs(|group| {
        if group.rank() == 1 {
            return take(&group);
        }
        begin(&group);
        let began = Instant::now();
        group.retire();
        group.retire();
        assert!(began.elapsed() < Duration::from_millis(200), "nobody is waited for");
        assert!(matches!(group.barrier(), Err(Error::Left)));
        assert!(matches!(group.send(&[1], 1), Err(Error::Left)));
        let buffers = GroupBuffers::InPlace(Memory::from(vec![1]));
        let op = GroupOp::AllReduce(ReduceOp::Sum);
        let late = group.submit(Operation { op, dtype: DType::U8, buffers, timeout: None });
        assert!(matches!(late, Err(Error::Left)));
    });
}

#[test]
fn letting_go_of_a_group_loses_nothing_that_was_begun() {
    pairs(|group| {
        if group.rank() == 1 {
            return take(&group);
        }
        begin(&group);
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
fn a_group_with_nothing_to_do_says_goodbye_before_it_returns() {
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
