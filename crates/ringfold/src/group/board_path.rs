//! Collectives on the board that all ranks of a group share.

use super::buffers::reduces;
use super::core::Core;
use super::operation::{GroupSlices, Request, Side};
use crate::board::{Board, BoardError, Operands, Pieces, PiecesMut};
use crate::{Error, limits};
use parking_lot::{Mutex, MutexGuard};
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::cause::{Cause, Departure, Waiting};
use ringfold_proto::id::Rank;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

impl Core {
    /// Waits until no other thread is on the board.
    pub(super) fn take_board<'a>(
        &self,
        board: &'a Mutex<Board>,
        timeout: Option<Duration>,
    ) -> Result<MutexGuard<'a, Board>, Error> {
        if let Some(board) = board.try_lock() {
            return Ok(board);
        }
        let until = self.deadline(timeout);
        let every = self.watch.as_ref().map_or(limits::OPERATION_MAX, CancelToken::interval);
        loop {
            let now = Instant::now();
            if let Some(board) = board.try_lock_until(until.min(now + every)) {
                return Ok(board);
            }
            if now >= until {
                return Err(Error::Misuse("an operation of another thread takes too long".into()));
            }
            // Nothing has begun: nobody has to be told.
            if self.watch.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Err(Error::Interrupted);
            }
        }
    }

    pub(super) fn run_on_board(
        &self,
        board: &mut Board,
        request: &Request,
        slices: GroupSlices<'_>,
        deadline: impl FnOnce() -> Instant,
    ) -> Result<(), Error> {
        if self.lane.is_closed() {
            return Err(Error::Left);
        }
        if self.restores {
            return self.run_restoring(board, request, slices, deadline());
        }
        // The clock is not read here: the board asks for the deadline when it has to wait.
        let Request { descriptor, layout, side, .. } = request;
        let run = || board.run(descriptor, layout, &self.tuning, on_board(slices, *side), deadline);
        self.guarded(request, run)
    }

    /// All ranks come to the same end, and what a failed operation has overwritten is put back.
    fn run_restoring(
        &self,
        board: &mut Board,
        request: &Request,
        slices: GroupSlices<'_>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let Request { descriptor, layout, side, .. } = request;
        let mut run = |slices: GroupSlices<'_>| {
            let operands = on_board(slices, *side);
            let run = || board.run_decided(descriptor, layout, &self.tuning, operands, deadline);
            self.guarded(request, run)
        };
        match slices {
            GroupSlices::InPlace(both) if *side != Side::Input => {
                self.put_back(both, |both| run(GroupSlices::InPlace(both)))
            }
            // To the user this may be in place: only what was multiplied by a factor before comes from elsewhere.
            GroupSlices::Apart { input, output } if reduces(request) => {
                self.put_back(output, |output| run(GroupSlices::Apart { input, output }))
            }
            GroupSlices::Pieces { input, output: [output] } if reduces(request) => {
                self.put_back(output, |output| run(GroupSlices::Pieces { input, output: &mut [output] }))
            }
            slices => run(slices),
        }
    }

    /// Runs something that writes memory, which is as it was before if that fails.
    fn put_back(
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
        if kept.capacity() <= limits::SPARE_BYTES_MAX {
            *self.spare.lock() = kept;
        }
        outcome
    }

    /// Runs something on the board. Whatever goes wrong in there, the others must not wait for this rank.
    fn guarded(&self, request: &Request, run: impl FnOnce() -> Result<(), BoardError>) -> Result<(), Error> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => result.map_err(|error| self.explain(request, error)),
            Err(panic) => Err(self.break_down(&*panic)),
        }
    }

    /// The board has failed: what happened, in the words that all ranks hear.
    fn explain(&self, request: &Request, error: BoardError) -> Error {
        let told = self.engine.with(|driver| {
            let name = |rank: Rank| driver.name(rank);
            let cause = match &error {
                BoardError::Timeout { missing } => {
                    Cause::Timeout { waited_for: driver.names(missing.iter().copied()) }
                }
                BoardError::Differs { rank } => Cause::Mismatch {
                    one: Waiting { who: name(self.rank()), call: request.descriptor.to_string() },
                    other: Waiting { who: name(*rank), call: "something else".into() },
                },
                BoardError::Left { rank } => Cause::PeerLost { who: name(*rank), how: Departure::Left },
                BoardError::Interrupted => Cause::GivenUp { who: name(self.rank()) },
                // Someone else knows why, and tells.
                BoardError::Aborted { .. } => return None,
            };
            driver.give_up(cause);
            driver.fault().cloned()
        });
        match (told, error) {
            (_, BoardError::Interrupted) => Error::Interrupted,
            (Ok(Some(cause)), _) => Error::Over(Box::new(cause)),
            (Ok(None), BoardError::Aborted { why, .. }) => self.hear_fault(why),
            (Ok(None), _) => Error::Left,
            (Err(error), _) => error,
        }
    }

    /// The memory says that someone gave up; who and why comes over the links at the same time.
    fn hear_fault(&self, why: String) -> Error {
        let until = Instant::now() + limits::FAULT_NEWS_MAX;
        loop {
            match self.engine.with(|driver| driver.fault().cloned()) {
                Ok(Some(cause)) => return Error::Over(Box::new(cause)),
                Ok(None) if Instant::now() < until => std::thread::sleep(limits::FAULT_NEWS_PAUSE),
                Ok(None) => return Error::System(format!("the group was aborted: {why}")),
                Err(error) => return error,
            }
        }
    }
}

/// What counts of memory that is given for the length of a call.
fn on_board(slices: GroupSlices<'_>, side: Side) -> Operands<'_> {
    match (slices, side) {
        (GroupSlices::InPlace(both), Side::Both) => Operands::InPlace(both),
        (GroupSlices::InPlace(both), Side::Input) => {
            Operands::Apart { input: Pieces::One(both), output: PiecesMut::One(&mut []) }
        }
        (GroupSlices::InPlace(both), Side::Output) => {
            Operands::Apart { input: Pieces::One(&[]), output: PiecesMut::One(both) }
        }
        (GroupSlices::Apart { input, output }, _) => {
            Operands::Apart { input: Pieces::One(input), output: PiecesMut::One(output) }
        }
        (GroupSlices::Pieces { input, output }, _) => {
            Operands::Apart { input: Pieces::Many(input), output: PiecesMut::Many(output) }
        }
    }
}
