//! Collectives in shared memory: each rank writes its own slots and reads those of the other ranks.
//!
//! A collective is a *schedule* (`pipeline.rs`): per rank a list of steps over rounds that all ranks go through.
//! `collective_run.rs` chooses it: `one_shot.rs` for small reductions, `block_reduce.rs` for large ones, `multicast.rs` if
//! all readers read the same data of a rank, `personalized.rs` if each reader has its own part, `shared_reduce.rs` for large
//! reductions whose operands lie in shared buffers.

mod block_reduce;
mod collective_run;
mod direct_copy;
mod exchange;
mod mapped_buffers;
mod multicast;
mod one_shot;
mod operands;
mod peer_memory;
mod personalized;
mod pipeline;
mod settings;
mod shared_operands;
mod shared_reduce;
mod size_table;
#[cfg(test)]
mod tests;
mod tile_reducer;

pub use operands::{Operands, Pieces, PiecesMut};

use collective_run::{BoardContext, CollectiveRun};
use core::cell::RefCell;
use exchange::Exchange;
use mapped_buffers::MappedBuffers;
use one_shot::OneShot;
use peer_memory::{Introductions, PeerMemory};
use pipeline::Pipeline;
use ringfold_fabric::arena::{Arena, ArenaMember, WaitTerms};
use ringfold_fabric::waiter::{CancelToken, Policy};
use ringfold_fabric::worker_pool::WorkerPool;
use ringfold_plan::layout::Layout;
use ringfold_proto::descriptor::{Collective, Descriptor, mix};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};
use settings::Settings;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tile_reducer::TileReducer;

/// One rank's access to the shared-memory board.
#[derive(Debug)]
pub struct Board {
    member: ArenaMember,
    world: usize,
    /// Completed rounds and collectives; the same on all ranks.
    rounds: u64,
    collectives: u64,
    /// The last descriptor and its fingerprint: programs repeat calls.
    last: Option<(Descriptor, u64)>,
    /// The last two calls of this rank, for the others' errors; a rank that only sends may be one call ahead.
    calls: [CallNote; 2],
    /// The barrier behind a collective runs. Users do not call it.
    is_deciding: bool,
    /// The memory of all ranks, once they have agreed to read it.
    peers: Option<Vec<PeerMemory>>,
    /// The shared buffers of the other ranks.
    mapped: RefCell<MappedBuffers>,
    /// The threads that reduce shared buffers, if there are several.
    workers: Option<WorkerPool>,
}

/// Why a collective failed. No rank can use the board afterwards.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BoardError {
    /// Another rank aborted the board, or this one did earlier.
    #[error("{by} aborted: {why}")]
    Aborted { by: Rank, why: String },
    #[error("timed out waiting for {missing:?}")]
    Timeout { missing: Vec<Rank> },
    #[error("{rank} runs another collective")]
    Differs { rank: Rank },
    #[error("the wait was interrupted")]
    Interrupted,
    #[error("{rank} has left")]
    Left { rank: Rank },
}

/// A call of a rank: the number of the first such collective in a row, counted from 1, and the encoded descriptor.
type CallNote = [u8; 28];

/// The fingerprint of the [agreement](Board::agree_on_direct_copies).
const AGREEMENT: u64 = u64::from_le_bytes(*b"rfdirect");

impl BoardError {
    fn aborted(arena: &Arena) -> Self {
        match arena.aborted() {
            Some(abort) => Self::Aborted { by: abort.by, why: abort.why },
            None => Self::Aborted { by: Rank(0), why: String::new() },
        }
    }
}

impl Board {
    /// The longest piece from which on scatters and all-to-alls are direct, if the ranks have agreed.
    pub const DIRECT_BYTES_MIN: usize = Settings::DIRECT_BYTES_MIN;

    /// The smallest all-reduce and reduce-scatter that read shared buffers in place.
    pub const SHARED_BYTES_MIN: usize = Settings::SHARED_BYTES_MIN;

    /// The board of a rank; `None` if that rank's member is taken.
    pub fn new(arena: impl Into<Arc<Arena>>, me: Rank) -> Option<Self> {
        let arena = arena.into();
        let world = arena.geometry().world;
        let (member, mapped) = (arena.join(me)?, RefCell::default());
        Some(Self {
            member,
            world,
            rounds: 0,
            collectives: 0,
            last: None,
            calls: [CallNote::default(); 2],
            is_deciding: false,
            peers: None,
            mapped,
            workers: None,
        })
    }

    /// Runs a collective, together with all other ranks. The terms are computed only if there is a wait.
    ///
    /// The caller multiplies the elements of [`PremulSum`](ringfold_proto::reduce_op::ReduceOp::PremulSum). The board does
    /// not quantize.
    ///
    /// # Panics
    /// If the lengths of the operands do not match descriptor and layout, or if it is a transfer.
    #[inline]
    pub fn run<'t, T: Into<WaitTerms<'t>>>(
        &mut self,
        descriptor: &Descriptor,
        layout: &Layout,
        tuning: &Tuning,
        operands: Operands<'_>,
        terms: impl FnOnce() -> T,
    ) -> Result<(), BoardError> {
        let mut terms = once(|| terms().into());
        let outcome = self.attempt(descriptor, layout, tuning, operands, &mut terms);
        outcome.map_err(|error| self.abort(error))
    }

    /// As [`Board::run`], but with the same outcome on all ranks, also if a rank dies.
    ///
    /// A collective succeeds when all ranks have the result; this is decided by a word in the arena.
    pub fn run_decided<'t>(
        &mut self,
        descriptor: &Descriptor,
        layout: &Layout,
        tuning: &Tuning,
        operands: Operands<'_>,
        terms: impl Into<WaitTerms<'t>>,
    ) -> Result<(), BoardError> {
        let terms = terms.into();
        let barrier =
            Descriptor::all_reduce(0, DType::U8, ReduceOp::Sum).with_collective(Collective::Barrier);
        let mut until = || terms;
        // The number of the barrier. No rank can have decided it before this rank reaches it.
        let point = self.collectives + 2;
        let outcome = self.attempt(descriptor, layout, tuning, operands, &mut until).and_then(|()| {
            self.is_deciding = true;
            self.attempt(&barrier, &Layout::Even, tuning, Operands::none(), &mut until)
        });
        self.is_deciding = false;
        match outcome {
            Ok(()) if self.member.arena().settle(point) => Ok(()),
            Ok(()) => Err(BoardError::aborted(self.member.arena())),
            Err(error) => {
                let error = self.abort(error);
                if self.member.arena().seal() >= point { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Agrees with all other ranks whether large copies read the memory of the other processes directly: if all of them
    /// may, and `is_on` on all ranks. Returns why not, the same on all ranks.
    pub fn agree_on_direct_copies<'t>(
        &mut self,
        is_on: bool,
        terms: impl Into<WaitTerms<'t>>,
    ) -> Result<Result<(), String>, BoardError> {
        let terms = terms.into();
        self.agree(is_on, &mut || terms).map_err(|error| self.abort(error))
    }

    fn agree<'t>(
        &mut self,
        is_on: bool,
        terms: &mut impl FnMut() -> WaitTerms<'t>,
    ) -> Result<Result<(), String>, BoardError> {
        let mut introductions = Exchange::new(Introductions::new(self.member.rank(), self.world, is_on), 0);
        Pipeline::new(self.rounds, AGREEMENT).run(&mut self.member, &mut introductions, terms)?;
        let mut verdicts = Exchange::new(introductions.chunks.verdicts(), 0);
        Pipeline::new(self.rounds + 1, AGREEMENT).run(&mut self.member, &mut verdicts, terms)?;
        self.rounds += 2;
        if let Some(refusal) = verdicts.chunks.refusal {
            return Ok(Err(refusal.to_string()));
        }
        self.peers = Some(introductions.chunks.peers);
        Ok(Ok(()))
    }

    /// The threads that reduce shared buffers.
    pub fn threads(&self) -> usize {
        self.workers.as_ref().map_or(1, WorkerPool::parts)
    }

    /// Has shared buffers reduced by this thread and these workers. Ranks may differ in it.
    pub fn set_workers(&mut self, workers: WorkerPool) {
        self.workers = Some(workers);
    }

    /// Sets what cancels waits that are [cancellable](Self::set_cancellable).
    pub fn set_cancel(&mut self, cancel: CancelToken) {
        self.member.set_cancel(cancel);
    }

    /// Sets whether later waits can be cancelled.
    #[inline]
    pub fn set_cancellable(&mut self, is_cancellable: bool) {
        self.member.set_cancellable(is_cancellable);
    }

    /// Whether each rank has a core of its own; without, it waits without a spin.
    pub fn set_own_cores(&mut self, each_has_one: bool) {
        self.member.set_policy(Policy::BOARD.for_cores(each_has_one));
    }

    /// How often this rank has slept in a wait so far.
    pub fn sleeps(&self) -> u64 {
        self.member.sleeps()
    }

    /// Counts the collectives of this rank that have read shared buffers in place.
    pub fn shared_collectives(&self) -> Arc<AtomicU64> {
        self.mapped.borrow().uses().clone()
    }

    /// The round that the next collective begins with.
    pub(crate) fn next_round(&self) -> u64 {
        self.rounds
    }

    /// The number of collectives that were begun.
    pub(crate) fn collectives(&self) -> u64 {
        self.collectives
    }

    /// Leaves the board: ranks that wait for this one fail.
    pub fn leave(&self) {
        self.member.leave();
    }

    #[inline]
    fn attempt<'t>(
        &mut self,
        descriptor: &Descriptor,
        layout: &Layout,
        tuning: &Tuning,
        operands: Operands<'_>,
        terms: &mut impl FnMut() -> WaitTerms<'t>,
    ) -> Result<(), BoardError> {
        if self.member.arena().is_aborted() {
            return Err(BoardError::aborted(self.member.arena()));
        }
        let settings = Settings::new(self.member.arena().geometry(), tuning);
        let (me, world) = (self.member.rank(), self.world);
        let fingerprint = self.fingerprint(descriptor, layout);
        self.collectives += 1;
        let bytes = descriptor.bytes() as usize;
        let (is_short, bytes, operands) = match descriptor.collective {
            Collective::Barrier => (true, 0, Operands::none()),
            Collective::AllReduce => (bytes <= settings.short_bytes_max(), bytes, operands),
            _ => (false, bytes, operands),
        };
        if is_short {
            // The short path: no choice of a schedule, and no large value to move.
            let reducer = TileReducer::new(descriptor, world);
            let chunk_bytes = settings.slot_bytes;
            let one_shot = OneShot { operands, reducer, me, world, root: None, bytes, chunk_bytes };
            let mut schedule = Exchange::new(one_shot, 0);
            Pipeline::new(self.rounds, fingerprint).run(&mut self.member, &mut schedule, terms)?;
            self.rounds += 1;
            return Ok(());
        }
        let context = BoardContext {
            me,
            world,
            settings,
            peers: self.peers.as_deref(),
            mapped: &self.mapped,
            workers: self.workers.as_ref(),
        };
        let mut run = CollectiveRun::new(context, descriptor, layout, operands, (self.rounds, fingerprint));
        run.run(&mut self.member, terms)?;
        self.rounds = run.next_round;
        Ok(())
    }

    #[cfg(test)]
    fn begin<'a, 'p>(
        &mut self,
        descriptor: &Descriptor,
        layout: &Layout,
        tuning: &Tuning,
        operands: Operands<'a>,
        (peers, mapped): (Option<&'p [PeerMemory]>, &'p RefCell<MappedBuffers>),
    ) -> CollectiveRun<'a, 'p> {
        let mut settings = Settings::new(self.member.arena().geometry(), tuning);
        settings.direct_bytes_min = 1;
        settings.shared_bytes_min = 1;
        settings.shared_piece_bytes = 192;
        let fingerprint = self.fingerprint(descriptor, layout);
        self.collectives += 1;
        let context = BoardContext {
            me: self.member.rank(),
            world: self.world,
            settings,
            peers,
            mapped,
            workers: None,
        };
        CollectiveRun::new(context, descriptor, layout, operands, (self.rounds, fingerprint))
    }

    /// Identifies the call: it must be the same on all ranks.
    #[inline(always)]
    fn fingerprint(&mut self, descriptor: &Descriptor, layout: &Layout) -> u64 {
        let common = match self.last {
            Some((last, fingerprint)) if last == *descriptor => fingerprint,
            _ => {
                let fingerprint = descriptor.fingerprint(Algorithm::Direct, 0);
                self.last = Some((*descriptor, fingerprint));
                if !self.is_deciding {
                    self.note_call(descriptor);
                }
                fingerprint
            }
        };
        let common = match layout {
            Layout::Even => common,
            Layout::Parts(sizes) => sizes.iter().copied().fold(mix(common, 1), mix),
            Layout::Pairs { .. } => mix(common, 2),
            // Boards are for groups of fixed ranks, which never lose one.
            Layout::Resumed(_) => mix(common, 3),
        };
        // The same collective at another time has another fingerprint.
        common.wrapping_add(self.collectives.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Notes for the other ranks which call begins now.
    fn note_call(&mut self, descriptor: &Descriptor) {
        let mut note = CallNote::default();
        let (number, encoded) = note.split_at_mut(8);
        if postcard::to_slice(descriptor, encoded).is_ok() {
            number.copy_from_slice(&(self.collectives + 1).to_le_bytes());
        }
        self.calls = [self.calls[1], note];
        let words = self.calls.as_flattened().as_chunks().0;
        self.member.note(core::array::from_fn(|index| u64::from_le_bytes(words[index])));
    }

    /// What a rank has called as the collective with this number, counted from 0; none if it is further, or has not begun.
    pub(crate) fn call_of(arena: &Arena, rank: Rank, number: u64) -> Option<Descriptor> {
        let bytes = arena.note_of(rank).map(u64::to_le_bytes);
        let (calls, _) = bytes.as_flattened().as_chunks::<{ size_of::<CallNote>() }>();
        calls.iter().rev().find_map(|note| {
            let (first, encoded) = note.split_first_chunk()?;
            let is_it = (1..=number + 1).contains(&u64::from_le_bytes(*first));
            postcard::take_from_bytes(encoded).ok().filter(|_| is_it).map(|(descriptor, _)| descriptor)
        })
    }

    /// Aborts the board for all ranks.
    #[cold]
    fn abort(&mut self, error: BoardError) -> BoardError {
        let me = self.member.rank();
        let why = match &error {
            BoardError::Aborted { .. } => return error,
            BoardError::Timeout { missing } => {
                let mut missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>();
                missing.truncate(8);
                format!("timed out waiting for {}", missing.join(", "))
            }
            BoardError::Differs { rank } => format!("{rank} and {me} run different collectives"),
            BoardError::Left { rank } => format!("{rank} has left"),
            BoardError::Interrupted => format!("{me} was interrupted"),
        };
        self.member.arena().abort(me, &why);
        error
    }
}

fn once<T: Copy>(terms: impl FnOnce() -> T) -> impl FnMut() -> T {
    let mut terms = Some(terms);
    let mut known = None;
    move || *known.get_or_insert_with(|| (terms.take().expect("called once"))())
}
