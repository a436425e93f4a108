//! The parts of a group: accepts operations, runs them in order, and leaves.

use super::buffers::{lengths, on_host};
use super::builder::GroupBuilder;
use super::driver::GroupDriver;
use super::operation::{GroupBuffers, GroupOp, GroupSlices, Operation, RankContext};
use super::queue::{CollectiveQueue, QueuedCollective, Then, run_then};
use super::retired;
use super::work::GroupWork;
use crate::board::Board;
use crate::error::invalid;
use crate::journal::Source;
use crate::{Error, limits};
use core::any::Any;
use parking_lot::Mutex;
use ringfold_fabric::memory::{Memory, View, lend, lend_all, lend_all_mut, lend_mut};
use ringfold_fabric::reactor::{Reactor, panic_text, run_guarded};
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::cause::Cause;
use ringfold_proto::descriptor::Collective;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Tuning;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The parts of a group.
pub(super) struct Core {
    pub(super) context: RankContext,
    pub(super) name: String,
    pub(super) members: Vec<String>,
    pub(super) tuning: Tuning,
    pub(super) timeout: Mutex<Duration>,
    pub(super) engine: Reactor<GroupDriver>,
    /// Whether it has failed; the driver has the cause. Not set where there is a board.
    pub(super) is_over: Arc<AtomicBool>,
    /// Cancels waits of callers.
    pub(super) cancel: Option<CancelToken>,
    /// Whether buffers that a failed operation has overwritten are restored; the copy of such a buffer.
    pub(super) restores: bool,
    pub(super) spare: Mutex<Vec<u8>>,
    /// None where ranks do not share memory.
    pub(super) board: Option<Mutex<Board>>,
    /// Whether large copies are direct; else why not. Not set before the ranks have agreed.
    pub(super) direct_copy: OnceLock<Result<(), String>>,
    /// Counts the collectives that have read shared buffers in place.
    pub(super) shared_collectives: Arc<AtomicU64>,
    pub(super) queue: CollectiveQueue,
    pub(super) journal: Arc<Source>,
    /// Bytes of the spare memory that are kept.
    pub(super) spare_bytes_max: usize,
    /// The settings that split groups inherit.
    pub(super) blueprint: GroupBuilder,
}

impl Core {
    pub(super) fn engine(&self) -> &Reactor<GroupDriver> {
        &self.engine
    }

    /// The deadline of an operation that begins now.
    pub(super) fn deadline(&self, timeout: Option<Duration>) -> Instant {
        self.deadline_from(Instant::now(), timeout)
    }

    /// The deadline of an operation that began at this time.
    fn deadline_from(&self, now: Instant, timeout: Option<Duration>) -> Instant {
        let timeout = timeout.unwrap_or_else(|| *self.timeout.lock());
        now.checked_add(timeout).unwrap_or(now + limits::OPERATION_MAX)
    }

    /// Runs an operation, and waits for it.
    pub(super) fn run(
        self: &Arc<Self>,
        op: GroupOp,
        dtype: DType,
        slices: GroupSlices<'_>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        require_time(timeout)?;
        let request = self.context.request(&op, dtype, slices.lengths())?;
        if let GroupSlices::Pieces { input, output } = &slices {
            let input: Vec<_> = input.iter().map(|piece| piece.len()).collect();
            let output: Vec<_> = output.iter().map(|piece| piece.len()).collect();
            self.context.check_pieces(&op, &request, &input, &output)?;
        }
        if self.context.world == 1 && self.queue.is_idle() && !self.is_over.load(Ordering::Acquire) {
            // A single rank has all data already.
            slices.copy_through();
            return Ok(());
        }
        let is_transfer = matches!(request.descriptor.collective, Collective::Transfer { .. });
        if !is_transfer
            && self.queue.is_idle()
            && let Some(board) = &self.board
        {
            let mut board = self.lock_board(board, timeout)?;
            if self.queue.is_retired() {
                return Err(Error::Left);
            }
            board.set_cancellable(true);
            let deadline = |now| self.deadline_from(now, timeout);
            return self.run_on_board(&mut board, &request, slices, deadline);
        }
        if self.queue.is_retired() {
            return Err(Error::Left);
        }
        let wait = |buffers: GroupBuffers| {
            let operation = Operation { op, dtype, buffers, timeout };
            // Where there is a board all ranks use it, also if the queue has become idle meanwhile.
            if is_transfer || (self.board.is_none() && self.queue.is_idle()) {
                let deadline = self.deadline(timeout);
                return self.run_on_links(&request, operation.buffers, deadline, self.cancel.as_ref()).0;
            }
            let queued = self.enqueue(operation, None)?;
            self.wait_queued(&queued)
        };
        match slices {
            GroupSlices::InPlace(both) => lend_mut(both, |both| wait(GroupBuffers::InPlace(both))),
            GroupSlices::OutOfPlace { input, output } => lend(input, |input| {
                lend_mut(output, |output| {
                    wait(GroupBuffers::OutOfPlace { input: vec![input], output: vec![output] })
                })
            }),
            GroupSlices::Pieces { input, output } => lend_all(input.iter().copied(), |input| {
                let output = output.iter_mut().map(|piece| &mut **piece).collect();
                lend_all_mut(output, |output| wait(GroupBuffers::OutOfPlace { input, output }))
            }),
        }
    }

    /// Begins an operation. Where it is a collective, `then` runs when it has succeeded.
    pub(super) fn submit(
        self: &Arc<Self>,
        operation: Operation,
        then: Option<Then>,
    ) -> Result<GroupWork, Error> {
        require_time(operation.timeout)?;
        let request = self.context.request(&operation.op, operation.dtype, lengths(&operation.buffers))?;
        if let GroupBuffers::OutOfPlace { input, output } = &operation.buffers {
            let input: Vec<_> = input.iter().map(View::len).collect();
            let output: Vec<_> = output.iter().map(Memory::len).collect();
            self.context.check_pieces(&operation.op, &request, &input, &output)?;
        }
        if let Collective::Transfer { .. } = request.descriptor.collective {
            if self.queue.is_retired() {
                return Err(Error::Left);
            }
            let buffers = on_host(operation.buffers, request.buffer_use).0;
            let deadline = self.deadline(operation.timeout);
            let started = self.engine.with(|driver| driver.start(&request, buffers, deadline, false))?;
            let call = started.map_err(|failed| failed.0)?;
            return Ok(GroupWork::transfer(self.clone(), call));
        }
        self.enqueue(operation, then).map(|queued| GroupWork::collective(self.clone(), queued))
    }

    fn enqueue(
        self: &Arc<Self>,
        operation: Operation,
        then: Option<Then>,
    ) -> Result<Arc<QueuedCollective>, Error> {
        let queued = QueuedCollective::new(self.deadline(operation.timeout), operation, then);
        self.queue.submit(self, queued.clone())?;
        Ok(queued)
    }

    /// Waits for an operation on borrowed memory. If the wait is cancelled, the group is given up, which ends it.
    fn wait_queued(&self, queued: &QueuedCollective) -> Result<(), Error> {
        if let Some(cancel) = &self.cancel {
            return cancel.wait(|until| queued.wait(Some(until))).unwrap_or_else(|| {
                self.abort();
                queued.wait(None);
                Err(Error::Interrupted)
            });
        }
        queued.wait(None).unwrap_or(Err(Error::Left))
    }

    /// The thread that runs the operations of the queue.
    pub(super) fn run_queue(self: Arc<Self>) {
        while let Some(queued) = self.queue.next() {
            let Some((operation, then)) = queued.take() else { continue };
            let carry_out = || self.carry_out(operation, queued.deadline);
            let (result, buffers) = catch_unwind(AssertUnwindSafe(carry_out))
                .unwrap_or_else(|panic| (Err(self.fail_after_panic(&*panic)), None));
            // The next operation may need what the closure does.
            let result = run_then(then, result, buffers.as_ref());
            self.queue.finish_one();
            queued.finish(result, buffers);
            // If nobody waits, this drops the user's memory.
            run_guarded("dropping an operation", || drop(queued));
        }
        if self.queue.is_retired() && !self.queue.is_closed() {
            self.leave();
        }
        retired::remove(&self);
    }

    /// Leaves once the queue is empty. What else was begun ends by its deadline at the latest.
    fn leave(&self) {
        if let Ok(call) = self.engine.with_waiter(GroupDriver::when_quiet) {
            self.engine.wait(call);
        }
        drop(self.board.as_ref().map(Mutex::lock));
        self.close();
    }

    /// Accepts nothing more, and leaves when what was begun has ended.
    pub(super) fn retire(self: &Arc<Self>) {
        if self.engine.is_of_parent() {
            return;
        }
        let is_quiet = self.is_quiet();
        retired::add(self);
        match self.queue.retire(self) {
            // Most often there is nothing to wait for but the goodbye.
            Ok(true) if is_quiet => retired::await_end(self, limits::GOODBYE_MAX),
            Ok(true) => {}
            // That has begun already, or is over.
            Ok(false) if !self.queue.is_closed() => {}
            Ok(false) => retired::remove(self),
            Err(error) => {
                tracing::warn!(%error, "cannot leave a group in the background");
                self.close();
                retired::remove(self);
            }
        }
    }

    /// Whether nothing waits or runs.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_idle() && self.engine.with(|driver| driver.is_quiet()).unwrap_or(true)
    }

    /// This rank gives the group up.
    pub(super) fn abort(&self) {
        let _ =
            self.engine.with(|driver| driver.abort(Cause::AbortedByUser { who: driver.name(self.rank()) }));
    }

    /// An operation has panicked. The group is given up, so that no rank waits for it for ever.
    pub(super) fn fail_after_panic(&self, panic: &(dyn Any + Send)) -> Error {
        self.abort();
        Error::Internal(format!("an operation of the group panicked: {}", panic_text(panic)))
    }

    fn carry_out(
        &self,
        operation: Operation,
        deadline: Instant,
    ) -> (Result<(), Error>, Option<GroupBuffers>) {
        let Operation { op, dtype, mut buffers, .. } = operation;
        let request = match self.context.request(&op, dtype, lengths(&buffers)) {
            Ok(request) => request,
            Err(error) => return (Err(error), Some(buffers)),
        };
        let Some(board) = &self.board else { return self.run_on_links(&request, buffers, deadline, None) };
        let mut board = board.lock();
        // Only callers are cancelled, and they wait for the result.
        board.set_cancellable(false);
        let result = match &mut buffers {
            GroupBuffers::InPlace(both) => {
                let slices = GroupSlices::InPlace(both.as_mut_slice());
                self.run_on_board(&mut board, &request, slices, |_| deadline)
            }
            GroupBuffers::OutOfPlace { input, output } => {
                let input: Vec<&[u8]> = input.iter().map(View::as_slice).collect();
                let mut output: Vec<&mut [u8]> = output.iter_mut().map(Memory::as_mut_slice).collect();
                let slices = GroupSlices::Pieces { input: &input, output: &mut output };
                self.run_on_board(&mut board, &request, slices, |_| deadline)
            }
        };
        (result, Some(buffers))
    }

    pub(super) fn rank(&self) -> Rank {
        Rank::from_index(self.context.me)
    }

    /// Ends the group on this rank, without waiting for others.
    pub(super) fn close(&self) {
        if self.engine.is_of_parent() {
            // A forked child that drops the group does not end it for its parent.
            return;
        }
        self.queue.close();
        if let Some(board) = &self.board {
            match board.try_lock() {
                Some(board) => board.leave(),
                // An operation runs on the queue's thread, and cannot end any more.
                None => self.abort(),
            }
        }
        self.engine.close();
    }
}

/// An operation without time would fail the group for all ranks.
fn require_time(timeout: Option<Duration>) -> Result<(), Error> {
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Err(invalid!("invalid timeout 0: must be longer"));
    }
    Ok(())
}
