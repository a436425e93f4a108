//! Waits can be watched, and left off.

use crate::rank_threads::run_on_both_media;
use ringfold::{DType, Error, Group, GroupBuffers, GroupOp, Memory, Operation, ReduceOp};
use std::cell::Cell;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

thread_local! {
    /// When this thread has to leave off.
    static LEAVES_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn leave_after(patience: Duration) {
    LEAVES_AT.set(Some(Instant::now() + patience));
}

/// Once, as a signal would.
fn must_end() -> bool {
    let must = LEAVES_AT.get().is_some_and(|at| at <= Instant::now());
    if must {
        LEAVES_AT.set(None);
    }
    must
}

/// Runs two ranks as threads, over TCP and through shared memory.
fn pairs(run: impl Fn(Group) + Sync) {
    run_on_both_media(
        2,
        |builder| builder.timeout(Duration::from_secs(60)).cancel_when(Duration::from_millis(20), must_end),
        run,
    );
}

const PATIENCE: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(10);

fn reduction(bytes: usize) -> Operation {
    let buffers = GroupBuffers::InPlace(Memory::from(vec![1; bytes]));
    let op = GroupOp::AllReduce(ReduceOp::Sum);
    Operation { op, dtype: DType::U8, buffers, timeout: None }
}
/// Rank 0 leaves off a call that rank 1 never makes.
fn leave_off(call: impl Fn(&Group) -> Result<(), Error> + Sync) {
    let is_over = Barrier::new(2);
    pairs(|group| {
        if group.rank() == 0 {
            let began = Instant::now();
            leave_after(PATIENCE);
            assert_eq!(call(&group), Err(Error::Interrupted));
            assert!(began.elapsed() >= PATIENCE && began.elapsed() < SOON, "{:?}", began.elapsed());
            is_over.wait();
        } else {
            // A call before the news is here would only find that rank 0 was in another one.
            let (told, news) = channel();
            group.on_failure(move |_| told.send(()).unwrap_or_default());
            is_over.wait();
            news.recv_timeout(SOON).unwrap();
            let began = Instant::now();
            let error = group.barrier().unwrap_err().to_string();
            assert!(error.contains("rank 0 (") && error.contains("aborted the group"), "{error}");
            assert!(began.elapsed() < SOON);
        }
    });
}

#[test]
fn a_cancelled_collective_fails_the_group_for_all() {
    leave_off(Group::barrier);
    leave_off(|group| group.all_reduce(&mut vec![1_u8; 1 << 20], ReduceOp::Sum));
}

#[test]
fn a_cancelled_transfer_fails_the_group_for_all() {
    leave_off(|group| group.recv(&mut [0_u8; 5], 1));
    leave_off(|group| group.send(&vec![0_u8; 64 << 20], 1));
}

#[test]
fn a_queued_collective_can_be_cancelled() {
    leave_off(|group| {
        let work = group.submit(reduction(10)).unwrap();
        let result = group.barrier();
        assert!(work.wait().is_err());
        result
    });
}

#[test]
fn a_work_whose_wait_is_cancelled_continues() {
    let all_saw = Barrier::new(2);
    pairs(|group| {
        if group.rank() == 1 {
            all_saw.wait();
        }
        let work = group.submit(reduction(1000)).unwrap();
        if group.rank() == 0 {
            leave_after(PATIENCE);
            assert_eq!(work.wait(), Err(Error::WaitCancelled));
            all_saw.wait();
        }
        let (result, buffers) = work.finish();
        result.unwrap();
        let Some(GroupBuffers::InPlace(memory)) = buffers else { panic!("the memory is lost") };
        assert_eq!(memory.as_slice(), [2; 1000]);
        group.barrier().unwrap();
    });
}
