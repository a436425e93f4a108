//! Cancelling waits of a group.

use crate::rank_threads::run_on_both_media;
use ringfold::{DType, Error, Group, GroupBuffers, GroupOp, Memory, Operation, ReduceOp};
use std::cell::Cell;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

thread_local! {
    /// When the waits of this thread are cancelled.
    static CANCELS_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn cancel_after(delay: Duration) {
    CANCELS_AT.set(Some(Instant::now() + delay));
}

/// Returns true once, like a signal.
fn must_end() -> bool {
    let must = CANCELS_AT.get().is_some_and(|at| at <= Instant::now());
    if must {
        CANCELS_AT.set(None);
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

const CANCEL_DELAY: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(10);

fn reduction(bytes: usize) -> Operation {
    let buffers = GroupBuffers::InPlace(Memory::from(vec![1; bytes]));
    let op = GroupOp::AllReduce(ReduceOp::Sum);
    Operation { op, dtype: DType::U8, buffers, timeout: None }
}
/// Rank 0 cancels a call that rank 1 never makes.
fn cancel(call: impl Fn(&Group) -> Result<(), Error> + Sync) {
    let is_over = Barrier::new(2);
    pairs(|group| {
        if group.rank() == 0 {
            let began = Instant::now();
            cancel_after(CANCEL_DELAY);
            assert_eq!(call(&group), Err(Error::Interrupted));
            assert!(began.elapsed() >= CANCEL_DELAY && began.elapsed() < SOON, "{:?}", began.elapsed());
            is_over.wait();
        } else {
            // A call before the failure is known would only detect different calls.
            let (sender, receiver) = channel();
            group.on_failure(move |_| sender.send(()).unwrap_or_default());
            is_over.wait();
            receiver.recv_timeout(SOON).unwrap();
            let began = Instant::now();
            let error = group.barrier().unwrap_err().to_string();
            assert!(error.contains("rank 0 (") && error.contains("aborted the group"), "{error}");
            assert!(began.elapsed() < SOON);
        }
    });
}

#[test]
fn a_cancelled_collective_fails_the_group_for_all() {
    cancel(Group::barrier);
    cancel(|group| group.all_reduce(&mut vec![1_u8; 1 << 20], ReduceOp::Sum));
}

#[test]
fn a_cancelled_transfer_fails_the_group_for_all() {
    cancel(|group| group.recv(&mut [0_u8; 5], 1));
    cancel(|group| group.send(&vec![0_u8; 64 << 20], 1));
}

#[test]
fn a_queued_collective_can_be_cancelled() {
    cancel(|group| {
        let work = group.submit(reduction(10)).unwrap();
        let result = group.barrier();
        assert!(work.wait().is_err());
        result
    });
}

#[test]
fn a_work_whose_wait_is_cancelled_continues() {
    let cancelled = Barrier::new(2);
    pairs(|group| {
        if group.rank() == 1 {
            cancelled.wait();
        }
        let work = group.submit(reduction(1000)).unwrap();
        if group.rank() == 0 {
            cancel_after(CANCEL_DELAY);
            assert_eq!(work.wait(), Err(Error::WaitCancelled));
            cancelled.wait();
        }
        let (result, buffers) = work.finish();
        result.unwrap();
        let Some(GroupBuffers::InPlace(memory)) = buffers else { panic!("no memory was returned") };
        assert_eq!(memory.as_slice(), [2; 1000]);
        group.barrier().unwrap();
    });
}
