//! What a group is made of: it takes operations, puts them in order, and ends.

use super::buffers::{lengths, on_host};
use super::builder::GroupBuilder;
use super::driver::GroupDriver;
use super::lane::{Job, Lane, Then};
use super::operation::{GroupBuffers, GroupOp, GroupSlices, Operation, RankContext};
use super::retired;
use super::work::GroupWork;
use crate::board::Board;
use crate::{Error, limits};
use core::any::Any;
use parking_lot::Mutex;
use ringfold_fabric::memory::{Memory, View, lend, lend_all, lend_all_mut, lend_mut};
use ringfold_fabric::reactor::{Reactor, panic_text};
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::cause::Cause;
use ringfold_proto::descriptor::Collective;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Tuning;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A group's parts.
pub(super) struct Core {
    pub(super) context: RankContext,
    pub(super) name: String,
    pub(super) members: Vec<String>,
    pub(super) tuning: Tuning,
    pub(super) timeout: Mutex<Duration>,
    pub(super) engine: Reactor<GroupDriver>,
    /// Whether it has failed. The driver knows why.
    pub(super) is_over: Arc<AtomicBool>,
    /// What callers that wait look at now and then.
    pub(super) cancel: Option<CancelToken>,
    /// Whether what a failed operation has overwritten is put back; what keeps it meanwhile.
    pub(super) restores: bool,
    pub(super) spare: Mutex<Vec<u8>>,
    /// None where ranks do not share memory.
    pub(super) board: Option<Mutex<Board>>,
    pub(super) lane: Lane,
    /// What groups that split off inherit.
    pub(super) blueprint: GroupBuilder,
}

impl Core {
    pub(super) fn engine(&self) -> &Reactor<GroupDriver> {
        &self.engine
    }

    /// When an operation that begins now has to have ended.
    pub(super) fn deadline(&self, timeout: Option<Duration>) -> Instant {
        let now = Instant::now();
        let timeout = timeout.unwrap_or_else(|| *self.timeout.lock());
        now.checked_add(timeout).unwrap_or(now + limits::OPERATION_MAX)
    }

    /// Carries an operation out, and waits for it.
    pub(super) fn run(
        self: &Arc<Self>,
        op: GroupOp,
        dtype: DType,
        slices: GroupSlices<'_>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let request = self.context.request(&op, dtype, slices.lengths())?;
        if let GroupSlices::Pieces { input, output } = &slices {
            let input: Vec<_> = input.iter().map(|piece| piece.len()).collect();
            let output: Vec<_> = output.iter().map(|piece| piece.len()).collect();
            self.context.check_pieces(&op, &request, &input, &output)?;
        }
        if self.context.world == 1 && self.lane.is_idle() && !self.is_over.load(Ordering::Acquire) {
            // Whoever is alone has all data already.
            slices.copy_through();
            return Ok(());
        }
        let is_transfer = matches!(request.descriptor.collective, Collective::Transfer { .. });
        if !is_transfer
            && self.lane.is_idle()
            && let Some(board) = &self.board
        {
            let mut board = self.lock_board(board, timeout)?;
            if self.lane.is_retired() {
                return Err(Error::Left);
            }
            board.set_cancellable(true);
            return self.run_on_board(&mut board, &request, slices, || self.deadline(timeout));
        }
        if self.lane.is_retired() {
            return Err(Error::Left);
        }
        let wait = |buffers: GroupBuffers| {
            let operation = Operation { op, dtype, buffers, timeout };
            if is_transfer || self.lane.is_idle() {
                let deadline = self.deadline(timeout);
                return self.run_on_links(&request, operation.buffers, deadline, self.cancel.as_ref()).0;
            }
            let job = self.put_in_line(operation, None)?;
            self.wait_in_line(&job)
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

    /// Begins an operation. If it is a collective, something may be done when it has succeeded.
    pub(super) fn submit(
        self: &Arc<Self>,
        operation: Operation,
        then: Option<Then>,
    ) -> Result<GroupWork, Error> {
        let request = self.context.request(&operation.op, operation.dtype, lengths(&operation.buffers))?;
        if let GroupBuffers::OutOfPlace { input, output } = &operation.buffers {
            let input: Vec<_> = input.iter().map(View::len).collect();
            let output: Vec<_> = output.iter().map(Memory::len).collect();
            self.context.check_pieces(&operation.op, &request, &input, &output)?;
        }
        if let Collective::Transfer { .. } = request.descriptor.collective {
            if self.lane.is_retired() {
                return Err(Error::Left);
            }
            let buffers = on_host(operation.buffers, request.buffer_use).0;
            let deadline = self.deadline(operation.timeout);
            let started = self.engine.with(|driver| driver.start(&request, buffers, deadline))?;
            let call = started.map_err(|failed| failed.0)?;
            return Ok(GroupWork::transfer(self.clone(), call));
        }
        self.put_in_line(operation, then).map(|job| GroupWork::collective(self.clone(), job))
    }

    fn put_in_line(self: &Arc<Self>, operation: Operation, then: Option<Then>) -> Result<Arc<Job>, Error> {
        let job = Job::new(self.deadline(operation.timeout), operation, then);
        self.lane.submit(self, job.clone())?;
        Ok(job)
    }

    /// Waits for an operation whose memory is lent: whoever has to leave off gives the group up, which ends it.
    fn wait_in_line(&self, job: &Job) -> Result<(), Error> {
        if let Some(watch) = &self.cancel {
            return watch.wait(|until| job.wait(Some(until))).unwrap_or_else(|| {
                self.give_up();
                job.wait(None);
                Err(Error::Interrupted)
            });
        }
        job.wait(None).unwrap_or(Err(Error::Left))
    }

    /// The thread that takes operations from the line.
    pub(super) fn work_off(self: Arc<Self>) {
        while let Some(job) = self.lane.next() {
            if let Some(operation) = job.take() {
                let carry_out = || self.carry_out(operation, job.deadline);
                let (result, buffers) = catch_unwind(AssertUnwindSafe(carry_out))
                    .unwrap_or_else(|panic| (Err(self.break_down(&*panic)), None));
                // Whatever comes next in order may want what is still to be done.
                let result = job.complete(result, buffers.as_ref());
                self.lane.passed();
                job.finish(result, buffers);
            } else {
                self.lane.passed();
            }
        }
        if self.lane.is_retired() && !self.lane.is_closed() {
            self.take_leave();
        }
        retired::remove(&self);
    }

    /// The line is worked off. What else was begun ends by its deadline at the latest.
    fn take_leave(&self) {
        if let Ok(call) = self.engine.with_waiter(GroupDriver::when_quiet) {
            self.engine.wait(call);
        }
        drop(self.board.as_ref().map(Mutex::lock));
        self.close();
    }

    /// Takes nothing more, and leaves when what was begun has ended.
    pub(super) fn retire(self: &Arc<Self>) {
        if self.engine.is_of_parent() {
            return;
        }
        let is_quiet = self.is_quiet();
        retired::add(self);
        match self.lane.retire(self) {
            // Most often there is nothing to wait for but the goodbye.
            Ok(true) if is_quiet => retired::await_end(self, limits::GOODBYE_MAX),
            Ok(true) => {}
            // It is under way already, or over.
            Ok(false) if !self.lane.is_closed() => {}
            Ok(false) => retired::remove(self),
            Err(error) => {
                tracing::warn!(%error, "a group can't be left in the background");
                self.close();
                retired::remove(self);
            }
        }
    }

    /// Whether nothing waits or runs.
    pub(super) fn is_quiet(&self) -> bool {
        self.lane.is_idle() && self.engine.with(|driver| driver.is_quiet()).unwrap_or(true)
    }

    /// This rank gives the group up.
    pub(super) fn give_up(&self) {
        let _ = self.engine.with(|driver| driver.give_up(Cause::AbortedByUser { who: driver.name(self.rank()) }));
    }

    /// An operation has panicked. Nobody who waits for it, here or elsewhere, shall wait for ever.
    pub(super) fn break_down(&self, panic: &(dyn Any + Send)) -> Error {
        self.give_up();
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
        // Nobody waits in here: those who wait for the work do.
        board.set_cancellable(false);
        let result = match &mut buffers {
            GroupBuffers::InPlace(both) => {
                let slices = GroupSlices::InPlace(both.as_mut_slice());
                self.run_on_board(&mut board, &request, slices, || deadline)
            }
            GroupBuffers::OutOfPlace { input, output } => {
                let input: Vec<&[u8]> = input.iter().map(View::as_slice).collect();
                let mut output: Vec<&mut [u8]> = output.iter_mut().map(Memory::as_mut_slice).collect();
                let slices = GroupSlices::Pieces { input: &input, output: &mut output };
                self.run_on_board(&mut board, &request, slices, || deadline)
            }
        };
        (result, Some(buffers))
    }

    pub(super) fn rank(&self) -> Rank {
        Rank::from_index(self.context.me)
    }

    /// Ends the group on this rank. Nobody is waited for.
    pub(super) fn close(&self) {
        if self.engine.is_of_parent() {
            // A forked child that lets go of the group does not end it for its parent.
            return;
        }
        self.lane.close();
        if let Some(board) = &self.board {
            match board.try_lock() {
                Some(board) => board.leave(),
                // An operation is under way on the line's thread, and can't end any more.
                None => self.give_up(),
            }
        }
        self.engine.close();
    }
}
