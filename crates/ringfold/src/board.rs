//! Collectives of ranks that share memory: everyone writes into its own slots and reads out of others'.
//!
//! A collective is a *script* (`pipeline.rs`): for each rank a list of moves over rounds that all ranks go through. There
//! are four families. `one_shot.rs` reduces what is small, `settle.rs` what is large; in `share.rs` what a rank has is
//! for all its readers, in `deal.rs` each has a lane of its own. `play.rs` chooses.

mod deal;
mod exchange;
mod fold;
mod one_shot;
mod operands;
mod pipeline;
mod play;
mod rows;
mod settings;
mod settle;
mod share;
#[cfg(test)]
mod tests;

pub use operands::{Operands, Pieces, PiecesMut};

use exchange::Exchange;
use fold::Fold;
use one_shot::OneShot;
use pipeline::Pipeline;
use play::{Play, Standing};
use ringfold_fabric::arena::{Arena, Seat};
use ringfold_fabric::waiter::CancelToken;
use ringfold_plan::layout::Layout;
use ringfold_proto::descriptor::{Collective, Descriptor, mix};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};
use settings::Settings;
use std::sync::Arc;
use std::time::Instant;

/// A rank's place among ranks that share an arena.
#[derive(Debug)]
pub struct Board {
    seat: Seat,
    world: usize,
    /// Rounds and collectives that all ranks have gone through.
    rounds: u64,
    collectives: u64,
    /// What was asked for last, and its fingerprint: programs repeat themselves.
    last: Option<(Descriptor, u64)>,
}

/// Why a collective failed. The board is of no use to any rank afterwards.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BoardError {
    /// Another rank gave up, or this one did earlier.
    #[error("{by} gave up: {why}")]
    Aborted {
        /// Who.
        by: Rank,
        /// Why.
        why: String,
    },
    /// The deadline is over.
    #[error("timed out waiting for {missing:?}")]
    Timeout {
        /// Who was waited for.
        missing: Vec<Rank>,
    },
    /// Another rank was asked for something else.
    #[error("{rank} runs something else")]
    Differs {
        /// Who.
        rank: Rank,
    },
    /// Whoever watches over this rank's waits had it leave off.
    #[error("the wait was interrupted")]
    Interrupted,
    /// Another rank is gone.
    #[error("{rank} has left")]
    Left {
        /// Who.
        rank: Rank,
    },
}

impl BoardError {
    fn aborted(arena: &Arena) -> Self {
        match arena.aborted() {
            Some(abort) => Self::Aborted { by: abort.by, why: abort.why },
            None => Self::Aborted { by: Rank(0), why: String::new() },
        }
    }
}

impl Board {
    /// A rank's place; `None` if it was taken before.
    pub fn new(arena: impl Into<Arc<Arena>>, me: Rank) -> Option<Self> {
        let arena = arena.into();
        let world = arena.geometry().world;
        Some(Self { seat: arena.seat(me)?, world, rounds: 0, collectives: 0, last: None })
    }

    /// Carries a collective out, together with all other ranks. The deadline is asked for if it comes to a wait.
    ///
    /// Elements of [`PremulSum`](ringfold_proto::reduce_op::ReduceOp::PremulSum) are multiplied by whoever calls.
    /// Nothing is quantised.
    ///
    /// # Panics
    /// If the operands are not as long as descriptor and layout say, or if it is a transfer.
    #[inline]
    pub fn run(
        &mut self,
        descriptor: &Descriptor,
        layout: &Layout,
        tuning: &Tuning,
        operands: Operands<'_>,
        deadline: impl FnOnce() -> Instant,
    ) -> Result<(), BoardError> {
        let mut deadline = once(deadline);
        let outcome = self.attempt(descriptor, layout, tuning, operands, &mut deadline);
        outcome.map_err(|error| self.give_up(error))
    }

    /// As [`Board::run`], but all ranks come to the same end, whoever dies when: a collective counts when everyone has
    /// its result, and whether that was so is decided in memory that all see.
    pub fn run_decided(
        &mut self,
        descriptor: &Descriptor,
        layout: &Layout,
        tuning: &Tuning,
        operands: Operands<'_>,
        deadline: Instant,
    ) -> Result<(), BoardError> {
        let barrier =
            Descriptor::all_reduce(0, DType::U8, ReduceOp::Sum).with_collective(Collective::Barrier);
        let mut until = || deadline;
        // The barrier's number. Nobody can have fixed it if this rank did not come so far.
        let point = self.collectives + 2;
        let outcome = self
            .attempt(descriptor, layout, tuning, operands, &mut until)
            .and_then(|()| self.attempt(&barrier, &Layout::Even, tuning, Operands::none(), &mut until));
        match outcome {
            Ok(()) if self.seat.arena().settle(point) => Ok(()),
            Ok(()) => Err(BoardError::aborted(self.seat.arena())),
            Err(error) => {
                let error = self.give_up(error);
                if self.seat.arena().seal() >= point { Ok(()) } else { Err(error) }
            }
        }
    }

    /// What may cancel waits, where that is [wanted](Self::set_cancellable).
    pub fn set_cancel(&mut self, cancel: CancelToken) {
        self.seat.set_cancel(cancel);
    }

    /// Whether waits may be cancelled from now on.
    #[inline]
    pub fn set_cancellable(&mut self, is_cancellable: bool) {
        self.seat.set_cancellable(is_cancellable);
    }

    /// Says goodbye: whoever waits for this rank from now on is told that it has left.
    pub fn leave(&self) {
        self.seat.leave();
    }

    #[inline]
    fn attempt(
        &mut self,
        descriptor: &Descriptor,
        layout: &Layout,
        tuning: &Tuning,
        operands: Operands<'_>,
        deadline: &mut impl FnMut() -> Instant,
    ) -> Result<(), BoardError> {
        if self.seat.arena().is_aborted() {
            return Err(BoardError::aborted(self.seat.arena()));
        }
        let settings = Settings::new(self.seat.arena().geometry(), tuning);
        let (me, world) = (self.seat.rank(), self.world);
        let fingerprint = self.fingerprint(descriptor, layout);
        self.collectives += 1;
        let bytes = descriptor.bytes() as usize;
        let (is_short, bytes, operands) = match descriptor.collective {
            Collective::Barrier => (true, 0, Operands::none()),
            Collective::AllReduce => (bytes <= settings.short_bytes_max(), bytes, operands),
            _ => (false, bytes, operands),
        };
        if is_short {
            // A short way for what is short: nothing is chosen, and nothing large is moved about.
            let fold = Fold::new(descriptor, world);
            let chunk_bytes = settings.slot_bytes;
            let one_shot = OneShot { operands, fold, me, world, root: None, bytes, chunk_bytes };
            let mut script = Exchange::new(one_shot, 0);
            Pipeline::new(self.rounds, fingerprint).run(&mut self.seat, &mut script, deadline)?;
            self.rounds += 1;
            return Ok(());
        }
        let standing = Standing { me, world, settings };
        let mut play = Play::new(standing, descriptor, layout, operands, (self.rounds, fingerprint));
        play.run(&mut self.seat, deadline)?;
        self.rounds = play.next_round;
        Ok(())
    }

    /// Begins a collective that is to be polled.
    #[cfg(test)]
    fn begin<'a>(
        &mut self,
        descriptor: &Descriptor,
        layout: &Layout,
        tuning: &Tuning,
        operands: Operands<'a>,
    ) -> Play<'a> {
        let settings = Settings::new(self.seat.arena().geometry(), tuning);
        let standing = Standing { me: self.seat.rank(), world: self.world, settings };
        let fingerprint = self.fingerprint(descriptor, layout);
        self.collectives += 1;
        Play::new(standing, descriptor, layout, operands, (self.rounds, fingerprint))
    }

    /// What all ranks must be asked for alike, and when.
    #[inline]
    fn fingerprint(&mut self, descriptor: &Descriptor, layout: &Layout) -> u64 {
        let common = match self.last {
            Some((last, fingerprint)) if last == *descriptor => fingerprint,
            _ => {
                let fingerprint = descriptor.fingerprint(Algorithm::Direct, 0);
                self.last = Some((*descriptor, fingerprint));
                fingerprint
            }
        };
        let common = match layout {
            Layout::Even => common,
            Layout::Parts(sizes) => sizes.iter().copied().fold(mix(common, 1), mix),
            Layout::Pairs { .. } => mix(common, 2),
        };
        // The same collective at another time is another one.
        common.wrapping_add(self.collectives.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// What fails for one fails for all.
    #[cold]
    fn give_up(&mut self, error: BoardError) -> BoardError {
        let me = self.seat.rank();
        let why = match &error {
            BoardError::Aborted { .. } => return error,
            BoardError::Timeout { missing } => {
                let mut missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>();
                missing.truncate(8);
                format!("timed out waiting for {}", missing.join(", "))
            }
            BoardError::Differs { rank } => format!("{rank} runs something else than {me}"),
            BoardError::Left { rank } => format!("{rank} has left"),
            BoardError::Interrupted => format!("{me} was interrupted"),
        };
        self.seat.arena().abort(me, &why);
        error
    }
}

/// Asks once, and remembers.
fn once(deadline: impl FnOnce() -> Instant) -> impl FnMut() -> Instant {
    let mut deadline = Some(deadline);
    let mut known = None;
    move || *known.get_or_insert_with(|| (deadline.take().expect("it is asked once"))())
}
