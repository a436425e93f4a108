//! `finish_retired` at the end of a program.

use ringfold::{
    Bootstrap, DType, Group, GroupBuffers, GroupOp, Media, Memory, Operation, ReduceOp, finish_retired,
};
use std::time::{Duration, Instant};

#[test]
fn finish_retired_waits_for_groups_until_its_timeout() {
    for media in [Media::Tcp, Media::Shared] {
        let name = format!("ringfold-end-{}-{media:?}", std::process::id());
        let at = Bootstrap::File(std::env::temp_dir().join(name));
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let builder = Group::builder().rank(rank).world(2).bootstrap(at.clone()).media(media);
                scope.spawn(move || {
                    let group = builder.timeout(Duration::from_secs(20)).connect().unwrap();
                    if rank == 0 { end(&group) } else { wait_for_failure(&group) }
                });
            }
        });
        assert_eq!(finish_retired(Duration::from_secs(20)), 0, "all groups have left");
    }
}

/// The other rank never calls.
fn end(group: &Group) {
    let buffers = GroupBuffers::InPlace(Memory::from(vec![1; 10]));
    let op = GroupOp::AllReduce(ReduceOp::Sum);
    let work = group.submit(Operation { op, dtype: DType::U8, buffers, timeout: None }).unwrap();
    group.retire();
    let began = Instant::now();
    assert_eq!(finish_retired(Duration::from_millis(200)), 1);
    assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < Duration::from_secs(10));
    assert!(work.wait().is_err());
}

fn wait_for_failure(group: &Group) {
    let until = Instant::now() + Duration::from_secs(60);
    while group.failure().is_none() {
        assert!(Instant::now() < until, "the failure is not reported");
        std::thread::sleep(Duration::from_millis(5));
    }
    let error = group.barrier().unwrap_err().to_string();
    assert!(error.contains("rank 0 (") && error.contains("aborted the group"), "{error}");
}
