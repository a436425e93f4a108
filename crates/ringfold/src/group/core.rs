//! What a group is made of, and how it carries operations out: on the board that its ranks share, or over links.

use super::builder::GroupBuilder;
use super::driver::{GroupDriver, GroupEnded};
use super::lane::{Job, Lane, Then};
use super::operation::{GroupBuffers, GroupOp, GroupSlices, Lengths, Operation, Request, Side, Standing};
use super::retired;
use super::work::GroupWork;
use crate::all_reduce::HostBuffers;
use crate::board::{Board, BoardError, Operands, Pieces, PiecesMut};
use crate::engine::Engine;
use crate::{Error, limits};
use parking_lot::{Mutex, MutexGuard};
use ringfold_fabric::memory::{Memory, View, lend, lend_all, lend_all_mut, lend_mut};
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::cause::{Cause, Waiting};
use ringfold_proto::descriptor::Collective;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{CallId, Rank};
use ringfold_proto::tuning::Tuning;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A group's parts.
pub(super) struct Core {
    pub(super) standing: Standing,
    pub(super) name: String,
    pub(super) members: Vec<String>,
    pub(super) tuning: Tuning,
    pub(super) timeout: Mutex<Duration>,
    pub(super) engine: Engine<GroupDriver>,
    /// Whether it has failed. The driver knows why.
    pub(super) is_over: Arc<AtomicBool>,
    /// What callers that wait look at now and then.
    pub(super) watch: Option<CancelToken>,
    /// Whether what a failed operation has overwritten is put back; what keeps it meanwhile.
    pub(super) restores: bool,
    pub(super) spare: Mutex<Vec<u8>>,
    /// None where ranks do not share memory.
    pub(super) board: Option<Mutex<Board>>,
    pub(super) lane: Lane,
    /// What groups that split off inherit.
    pub(super) blueprint: GroupBuilder,
}

impl GroupSlices<'_> {
    fn lengths(&self) -> Lengths {
        match self {
            Self::InPlace(both) => Lengths::InPlace(both.len()),
            Self::Apart { input, output } => Lengths::Apart { input: input.len(), output: output.len() },
            Self::Pieces { input, output } => Lengths::Apart {
                input: input.iter().map(|piece| piece.len()).sum(),
                output: output.iter().map(|piece| piece.len()).sum(),
            },
        }
    }
}

impl GroupSlices<'_> {
    /// The output of a group of one: its input.
    fn pass(self) {
        match self {
            Self::Apart { input, output } => output.copy_from_slice(input),
            Self::Pieces { input: [input], output: [output] } => output.copy_from_slice(input),
            Self::InPlace(_) | Self::Pieces { .. } => {}
        }
    }
}

impl Core {
    pub(super) fn engine(&self) -> &Engine<GroupDriver> {
        &self.engine
    }

    /// When an operation that begins now has to have ended.
    fn deadline(&self, timeout: Option<Duration>) -> Instant {
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
        let request = self.standing.request(&op, dtype, slices.lengths())?;
        if let GroupSlices::Pieces { input, output } = &slices {
            let input: Vec<_> = input.iter().map(|piece| piece.len()).collect();
            let output: Vec<_> = output.iter().map(|piece| piece.len()).collect();
            self.standing.check_pieces(&op, &request, &input, &output)?;
        }
        if self.standing.world == 1 && self.lane.is_idle() && !self.is_over.load(Ordering::Acquire) {
            // Whoever is alone has all data already.
            slices.pass();
            return Ok(());
        }
        let is_transfer = matches!(request.descriptor.collective, Collective::Transfer { .. });
        if !is_transfer
            && self.lane.is_idle()
            && let Some(board) = &self.board
        {
            let mut board = self.take_board(board, timeout)?;
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
                return self.run_on_links(&request, operation.buffers, deadline, self.watch.as_ref()).0;
            }
            let job = self.put_in_line(operation, None)?;
            self.wait_in_line(&job)
        };
        match slices {
            GroupSlices::InPlace(both) => lend_mut(both, |both| wait(GroupBuffers::InPlace(both))),
            GroupSlices::Apart { input, output } => lend(input, |input| {
                lend_mut(output, |output| {
                    wait(GroupBuffers::Apart { input: vec![input], output: vec![output] })
                })
            }),
            GroupSlices::Pieces { input, output } => lend_all(input.iter().copied(), |input| {
                let output = output.iter_mut().map(|piece| &mut **piece).collect();
                lend_all_mut(output, |output| wait(GroupBuffers::Apart { input, output }))
            }),
        }
    }

    /// Begins an operation. If it is a collective, something may be done when it has succeeded.
    pub(super) fn submit(
        self: &Arc<Self>,
        operation: Operation,
        then: Option<Then>,
    ) -> Result<GroupWork, Error> {
        let request = self.standing.request(&operation.op, operation.dtype, lengths(&operation.buffers))?;
        if let GroupBuffers::Apart { input, output } = &operation.buffers {
            let input: Vec<_> = input.iter().map(View::len).collect();
            let output: Vec<_> = output.iter().map(Memory::len).collect();
            self.standing.check_pieces(&operation.op, &request, &input, &output)?;
        }
        if let Collective::Transfer { .. } = request.descriptor.collective {
            if self.lane.is_retired() {
                return Err(Error::Left);
            }
            let buffers = on_host(operation.buffers, request.side).0;
            let deadline = self.deadline(operation.timeout);
            let started = self.engine.with(|driver| driver.start(&request, buffers, deadline))?;
            let call = started.map_err(|(error, _)| error)?;
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
        if let Some(watch) = &self.watch {
            return watch.wait(|until| job.wait(Some(until))).unwrap_or_else(|| {
                self.give_up();
                job.wait(None);
                Err(Error::Interrupted)
            });
        }
        job.wait(None).unwrap_or(Err(Error::Left))
    }

    /// Waits until no other thread is on the board.
    fn take_board<'a>(
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

    /// The thread that takes operations from the line.
    pub(super) fn work_off(self: Arc<Self>) {
        while let Some(job) = self.lane.next() {
            if let Some(operation) = job.take() {
                let carry_out = || self.carry_out(operation, job.deadline);
                let (result, buffers) = catch_unwind(AssertUnwindSafe(carry_out))
                    .unwrap_or_else(|_| (Err(self.break_down()), None));
                // Whatever comes next in order may want what is still to be done.
                job.complete(&result, buffers.as_ref());
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
            self.engine.wait_to_the_end(call);
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
    fn give_up(&self) {
        let _ = self.engine.with(|driver| driver.give_up(Cause::GivenUp { who: driver.name(self.rank()) }));
    }

    /// An operation has panicked. Nobody who waits for it, here or elsewhere, shall wait for ever.
    fn break_down(&self) -> Error {
        self.give_up();
        Error::Internal("an operation of the group panicked".into())
    }

    fn carry_out(
        &self,
        operation: Operation,
        deadline: Instant,
    ) -> (Result<(), Error>, Option<GroupBuffers>) {
        let Operation { op, dtype, mut buffers, .. } = operation;
        let request = match self.standing.request(&op, dtype, lengths(&buffers)) {
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
            GroupBuffers::Apart { input, output } => {
                let input: Vec<&[u8]> = input.iter().map(View::as_slice).collect();
                let mut output: Vec<&mut [u8]> = output.iter_mut().map(Memory::as_mut_slice).collect();
                let slices = GroupSlices::Pieces { input: &input, output: &mut output };
                self.run_on_board(&mut board, &request, slices, || deadline)
            }
        };
        (result, Some(buffers))
    }

    fn run_on_board(
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
            Err(_) => Err(self.break_down()),
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
                BoardError::Left { rank } => {
                    Cause::PeerLost { who: name(*rank), how: ringfold_proto::cause::Departure::Left }
                }
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

    fn run_on_links(
        &self,
        request: &Request,
        buffers: GroupBuffers,
        deadline: Instant,
        watch: Option<&CancelToken>,
    ) -> (Result<(), Error>, Option<GroupBuffers>) {
        let kept = match &buffers {
            GroupBuffers::Apart { output, .. } if self.restores && reduces(request) => {
                output.first().map(|output| output.as_slice().to_vec())
            }
            _ => None,
        };
        let (buffers, unpack) = on_host(buffers, request.side);
        let started = self.engine.with_waiter(|driver| driver.start(request, buffers, deadline));
        let call = match started {
            Ok(Ok(call)) => call,
            Ok(Err((error, buffers))) => return (Err(error), Some(unpack.finish(Some(buffers), false))),
            Err(error) => return (Err(error), None),
        };
        let GroupEnded { result, buffers } = self.wait_watched(call, watch);
        let mut buffers = unpack.finish(buffers, result.is_ok());
        if let (Err(_), Some(kept), GroupBuffers::Apart { output, .. }) = (&result, kept, &mut buffers)
            && let Some(output) = output.first_mut()
        {
            output.as_mut_slice().copy_from_slice(&kept);
        }
        (result, Some(buffers))
    }

    /// Waits for the end of a call; whoever has to leave off gives the group up, which ends it.
    fn wait_watched(&self, call: CallId, watch: Option<&CancelToken>) -> GroupEnded {
        let Some(watch) = watch else { return self.engine.wait_to_the_end(call) };
        watch.wait(|until| self.engine.wait_until(call, Some(until))).unwrap_or_else(|| {
            self.give_up();
            GroupEnded { result: Err(Error::Interrupted), ..self.engine.wait_to_the_end(call) }
        })
    }

    /// Waits over the links until all ranks have come.
    pub(super) fn meet_on_links(&self, until: Instant) {
        let none = Lengths::Apart { input: 0, output: 0 };
        let buffers = GroupBuffers::Apart { input: Vec::new(), output: Vec::new() };
        if let Ok(request) = self.standing.request(&GroupOp::Barrier, DType::U8, none)
            && let (Err(error), _) = self.run_on_links(&request, buffers, until, self.watch.as_ref())
        {
            tracing::debug!(%error, "the group failed as soon as it was formed");
        }
    }

    fn rank(&self) -> Rank {
        Rank::from_index(self.standing.me)
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

/// Whether all of an output is the combination of inputs of its size.
fn reduces(request: &Request) -> bool {
    matches!(request.descriptor.collective, Collective::AllReduce | Collective::Reduce { .. })
}

fn lengths(buffers: &GroupBuffers) -> Lengths {
    match buffers {
        GroupBuffers::InPlace(both) => Lengths::InPlace(both.len()),
        GroupBuffers::Apart { input, output } => Lengths::Apart {
            input: input.iter().map(View::len).sum(),
            output: output.iter().map(Memory::len).sum(),
        },
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

/// What the links work on, and what it takes to give it back as it came.
fn on_host(buffers: GroupBuffers, side: Side) -> (HostBuffers, Unpack) {
    match (buffers, side) {
        (GroupBuffers::InPlace(both), Side::Both | Side::Output) => {
            (HostBuffers::InPlace(both), Unpack::AsIs)
        }
        (GroupBuffers::InPlace(both), Side::Input) => {
            let target = Memory::zeroed(0);
            (HostBuffers::OutOfPlace { source: both.into_view(), target }, Unpack::AsIs)
        }
        (GroupBuffers::Apart { mut input, mut output }, _) if input.len() <= 1 && output.len() <= 1 => {
            let source = input.pop().unwrap_or_else(|| Memory::zeroed(0).into_view());
            let target = output.pop().unwrap_or_else(|| Memory::zeroed(0));
            (HostBuffers::OutOfPlace { source, target }, Unpack::AsIs)
        }
        (GroupBuffers::Apart { input, output }, _) => {
            let source = input.iter().map(View::as_slice).collect::<Vec<_>>().concat();
            // What this rank has no use for stays as it is.
            let used = if side == Side::Input { &[][..] } else { &output[..] };
            let target = Memory::zeroed(used.iter().map(Memory::len).sum());
            (HostBuffers::OutOfPlace { source: View::from(source), target }, Unpack::Pieces { input, output })
        }
    }
}

/// How memory that was packed comes back.
enum Unpack {
    AsIs,
    Pieces { input: Vec<View>, output: Vec<Memory> },
}

impl Unpack {
    /// What a failed operation has left stays where it is.
    fn finish(self, buffers: Option<HostBuffers>, is_good: bool) -> GroupBuffers {
        match (self, buffers) {
            (Self::Pieces { input, mut output }, packed) => {
                if let Some(HostBuffers::OutOfPlace { target, .. }) = packed.filter(|_| is_good) {
                    let mut rest = target.as_slice();
                    for piece in &mut output {
                        let Some((bytes, others)) = rest.split_at_checked(piece.len()) else { break };
                        piece.as_mut_slice().copy_from_slice(bytes);
                        rest = others;
                    }
                }
                GroupBuffers::Apart { input, output }
            }
            (Self::AsIs, Some(buffers)) => GroupBuffers::from(buffers),
            (Self::AsIs, None) => GroupBuffers::Apart { input: Vec::new(), output: Vec::new() },
        }
    }
}

impl From<HostBuffers> for GroupBuffers {
    fn from(buffers: HostBuffers) -> Self {
        match buffers {
            HostBuffers::InPlace(both) => Self::InPlace(both),
            HostBuffers::OutOfPlace { source, target } => {
                Self::Apart { input: vec![source], output: vec![target] }
            }
        }
    }
}
