//! Runs collectives on the shared-memory board of a group.

use super::buffers::reduces;
use super::core::Core;
use super::long_wait::BoardWatch;
use super::operation::{BufferLengths, BufferUse, GroupOp, GroupSlices, OperationRequest};
use crate::board::{Board, BoardError, Operands, Pieces, PiecesMut};
use crate::error::wait_for_cause;
use crate::{Error, limits};
use core::cell::Cell;
use parking_lot::{Mutex, MutexGuard};
use ringfold_fabric::arena::WaitTerms;
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::cause::{Cause, Departure};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

impl Core {
    /// Agrees with all ranks whether they read each other's memory. If this fails, the group has failed.
    pub(super) fn agree_on_direct_copies(&self, is_on: bool, until: Instant) {
        let none = BufferLengths::OutOfPlace { input: 0, output: 0 };
        let request = self.context.request(&GroupOp::Barrier, DType::U8, none);
        let (Some(board), Ok(request)) = (&self.board, request) else { return };
        let mut board = board.lock();
        let watch = BoardWatch::new(self, &board, &request);
        let terms = WaitTerms { deadline: until.into(), long: Some(&watch) };
        let agree = || -> Result<(), BoardError> {
            let agreed = board.agree_on_direct_copies(is_on, terms)?;
            if let Err(why) = &agreed {
                tracing::debug!(group = %self.name, %why, "large copies go through slots of shared memory");
            }
            let _ = self.direct_copy.set(agreed);
            Ok(())
        };
        let _ = self.guarded(&watch, agree);
    }

    /// Locks the board; waits for other threads that use it.
    pub(super) fn lock_board<'a>(
        &self,
        board: &'a Mutex<Board>,
        timeout: Option<Duration>,
    ) -> Result<MutexGuard<'a, Board>, Error> {
        if let Some(board) = board.try_lock() {
            return Ok(board);
        }
        let until = self.deadline(timeout);
        let every = self.cancel.as_ref().map_or(limits::OPERATION_MAX, CancelToken::interval);
        loop {
            let now = Instant::now();
            if let Some(board) = board.try_lock_until(until.min(now + every)) {
                return Ok(board);
            }
            if now >= until {
                return Err(Error::Misuse("timed out waiting for an operation of another thread".into()));
            }
            // Nothing has started, so the group need not fail.
            if self.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Err(Error::Interrupted);
            }
        }
    }

    pub(super) fn run_on_board(
        &self,
        board: &mut Board,
        request: &OperationRequest,
        slices: GroupSlices<'_>,
        deadline: impl FnOnce(Instant) -> Instant,
    ) -> Result<(), Error> {
        if self.queue.is_closed() {
            return Err(Error::Left);
        }
        let (waits_from, slept) = (Cell::new(None), board.sleeps());
        let deadline = || {
            let now = Instant::now();
            waits_from.set(Some(now));
            deadline(now)
        };
        let result = if self.restores {
            self.run_restoring(board, request, slices, deadline())
        } else {
            // The board computes the deadline only if it has to wait.
            let OperationRequest { descriptor, layout, buffer_use, .. } = request;
            let watch = BoardWatch::new(self, board, request);
            let terms = || WaitTerms { deadline: deadline().into(), long: Some(&watch) };
            let run = || board.run(descriptor, layout, &self.tuning, operands(slices, *buffer_use), terms);
            self.guarded(&watch, run)
        };
        if let Some(from) = waits_from.get() {
            let slept = board.sleeps() != slept;
            self.note_board_op(request, from, slept, &result);
        }
        result
    }

    /// Runs a collective with the same outcome on all ranks. A failure restores in-place buffers.
    fn run_restoring(
        &self,
        board: &mut Board,
        request: &OperationRequest,
        slices: GroupSlices<'_>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let OperationRequest { descriptor, layout, buffer_use, .. } = request;
        let mut run = |slices: GroupSlices<'_>| {
            let operands = operands(slices, *buffer_use);
            let watch = BoardWatch::new(self, board, request);
            let terms = WaitTerms { deadline: deadline.into(), long: Some(&watch) };
            let run = || board.run_decided(descriptor, layout, &self.tuning, operands, terms);
            self.guarded(&watch, run)
        };
        match slices {
            GroupSlices::InPlace(both) if *buffer_use != BufferUse::Read => {
                self.run_with_backup(both, |both| run(GroupSlices::InPlace(both)))
            }
            // The user's call may be in place: an input that was premultiplied is in another buffer.
            GroupSlices::OutOfPlace { input, output } if reduces(request) => {
                self.run_with_backup(output, |output| run(GroupSlices::OutOfPlace { input, output }))
            }
            GroupSlices::Pieces { input, output: [output] } if reduces(request) => self
                .run_with_backup(output, |output| run(GroupSlices::Pieces { input, output: &mut [output] })),
            slices => run(slices),
        }
    }

    /// Runs a function that writes memory, and restores the memory if it fails.
    fn run_with_backup(
        &self,
        memory: &mut [u8],
        run: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut kept = core::mem::take(&mut *self.spare.lock());
        kept.clear();
        kept.extend_from_slice(memory);
        let outcome = run(memory);
        if outcome.is_err() {
            memory.copy_from_slice(&kept);
        }
        if kept.capacity() <= self.spare_bytes_max {
            *self.spare.lock() = kept;
        }
        outcome
    }

    /// Runs a function on the board. An error or panic in it fails the group.
    fn guarded(
        &self,
        watch: &BoardWatch<'_>,
        run: impl FnOnce() -> Result<(), BoardError>,
    ) -> Result<(), Error> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => result.map_err(|error| self.fail_group(watch, error)),
            Err(panic) => Err(self.fail_after_panic(&*panic)),
        }
    }

    /// Fails the group after an error of the board, and returns the cause that all ranks see.
    fn fail_group(&self, watch: &BoardWatch<'_>, error: BoardError) -> Error {
        let fault = self.engine.with(|driver| {
            let name = |rank: Rank| driver.name(rank);
            let cause = match &error {
                BoardError::Timeout { missing } => {
                    Cause::Timeout(driver.describe_wait(watch.id(), watch.call(), missing.clone()))
                }
                BoardError::Differs { rank } => {
                    let theirs = driver.call_on_board(*rank, watch.before);
                    driver.mismatch(watch.request.descriptor.to_string(), *rank, theirs)
                }
                BoardError::Left { rank } => Cause::PeerLost { who: name(*rank), how: Departure::Left },
                BoardError::Interrupted => Cause::AbortedByUser { who: name(self.rank()) },
                // Another rank sends the cause.
                BoardError::Aborted { .. } => return None,
            };
            driver.abort(cause);
            driver.fault().cloned()
        });
        match (fault, error) {
            (_, BoardError::Interrupted) => Error::Interrupted,
            (Ok(Some(cause)), _) => Error::GroupFailed(Box::new(cause)),
            // The cause arrives over the links at about the same time.
            (Ok(None), BoardError::Aborted { why, .. }) => wait_for_cause(|| self.failure())
                .unwrap_or_else(|| Error::System(format!("the group was aborted: {why}"))),
            (Ok(None), _) => Error::Left,
            (Err(error), _) => error,
        }
    }

    /// The cause, if the group has failed.
    pub(super) fn failure(&self) -> Option<Error> {
        let fault = self.engine.with(|driver| driver.fault().cloned());
        fault.map_or_else(Some, |cause| cause.map(|cause| Error::GroupFailed(Box::new(cause))))
    }
}

fn operands(slices: GroupSlices<'_>, buffer_use: BufferUse) -> Operands<'_> {
    match (slices, buffer_use) {
        (GroupSlices::InPlace(both), BufferUse::ReadWrite) => Operands::InPlace(both),
        (GroupSlices::InPlace(both), BufferUse::Read) => {
            Operands::OutOfPlace { input: Pieces::One(both), output: PiecesMut::One(&mut []) }
        }
        (GroupSlices::InPlace(both), BufferUse::Write) => {
            Operands::OutOfPlace { input: Pieces::One(&[]), output: PiecesMut::One(both) }
        }
        (GroupSlices::OutOfPlace { input, output }, _) => {
            Operands::OutOfPlace { input: Pieces::One(input), output: PiecesMut::One(output) }
        }
        (GroupSlices::Pieces { input, output }, _) => {
            Operands::OutOfPlace { input: Pieces::Many(input), output: PiecesMut::Many(output) }
        }
    }
}
