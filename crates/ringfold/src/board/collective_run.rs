//! Chooses the schedule of a collective on one rank, and runs it.

use super::BoardError;
use super::block_reduce::{BlockReduce, ReduceBlocks};
use super::direct_copy::{DirectCopy, Outcomes};
use super::exchange::Exchange;
use super::mapped_buffers::MappedBuffers;
use super::multicast::Multicast;
use super::one_shot::OneShot;
use super::operands::{Operands, PartBounds};
use super::peer_memory::PeerMemory;
use super::personalized::{Personalized, lane_count};
#[cfg(test)]
use super::pipeline::Progress;
use super::pipeline::{Pipeline, RoundSchedule};
use super::settings::Settings;
use super::shared_operands::{RankTensors, SharedOperands};
use super::shared_reduce::{ReduceSplit, SharedReduce};
use super::size_table::SizeTable;
use super::tile_reducer::TileReducer;
use core::cell::RefCell;
use core::sync::atomic::{Ordering, fence};
use ringfold_fabric::arena::{ArenaMember, Ranks, WaitTerms};
use ringfold_fabric::worker_pool::WorkerPool;
use ringfold_plan::layout::Layout;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;

/// `'a` is the lifetime of the operands, `'p` that of the access to other processes.
pub(super) struct CollectiveRun<'a, 'p> {
    stage: Stage<'a, 'p>,
    pipeline: Pipeline,
    pub(super) next_round: u64,
    fingerprint: u64,
    exchange_ahead: u64,
}

#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
enum Stage<'a, 'p> {
    OneShot(Exchange<OneShot<'a>>),
    BlockReduce(BlockReduce<'a>),
    Multicast(Exchange<Multicast<'a>>),
    Personalized(Exchange<Personalized<'a>>),
    SizeTable {
        sizes: Exchange<SizeTable>,
        then: Pairwise<'a, 'p>,
    },
    DirectCopy(Exchange<DirectCopy<'a, 'p>>),
    Outcomes {
        outcomes: Exchange<Outcomes>,
        pieces: Personalized<'a>,
    },
    SharedOperands {
        announced: Exchange<SharedOperands<'p>>,
        then: Shareable<'a, 'p>,
    },
    SharedAgreement {
        outcomes: Exchange<Outcomes>,
        tensors: Vec<Option<RankTensors>>,
        then: Shareable<'a, 'p>,
    },
    SharedReduce {
        reduce: SharedReduce<'a, 'p>,
        context: BoardContext<'p>,
    },
    SharedEnd(Exchange<Outcomes>),
    Done,
}

/// An exchange whose sizes only the two ranks of each pair know, until all ranks have exchanged them.
struct Pairwise<'a, 'p> {
    context: BoardContext<'p>,
    collective: Collective,
    operands: Operands<'a>,
    send: PartBounds,
    receive: PartBounds,
}

/// A reduction that reads the operands of all ranks in place if they lie in shared buffers.
struct Shareable<'a, 'p> {
    context: BoardContext<'p>,
    operands: Operands<'a>,
    reducer: TileReducer,
    split: ReduceSplit,
}

/// The rank, the number of ranks, and the settings of the board.
#[derive(Clone, Copy)]
pub(super) struct BoardContext<'p> {
    pub(super) me: Rank,
    pub(super) world: usize,
    pub(super) settings: Settings,
    /// The memory of all ranks, if they may read it.
    pub(super) peers: Option<&'p [PeerMemory]>,
    pub(super) mapped: &'p RefCell<MappedBuffers>,
    pub(super) workers: Option<&'p WorkerPool>,
}

impl<'a, 'p> CollectiveRun<'a, 'p> {
    /// # Panics
    /// If the lengths of the operands do not match the collective, or if it is a transfer.
    pub(super) fn new(
        context: BoardContext<'p>,
        descriptor: &Descriptor,
        layout: &Layout,
        operands: Operands<'a>,
        (first, fingerprint): (u64, u64),
    ) -> Self {
        let stage = context.stage(descriptor, layout, operands);
        let next_round = first + stage.rounds();
        let exchange_ahead = context.settings.exchange_ahead;
        Self { stage, pipeline: Pipeline::new(first, fingerprint), next_round, fingerprint, exchange_ahead }
    }

    #[cfg(test)]
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    #[cfg(test)]
    pub(super) fn poll(&mut self, member: &mut ArenaMember) -> Result<Progress, BoardError> {
        let progress = match &mut self.stage {
            Stage::OneShot(schedule) => self.pipeline.poll(member, schedule),
            Stage::BlockReduce(schedule) => self.pipeline.poll(member, schedule),
            Stage::Multicast(schedule) => self.pipeline.poll(member, schedule),
            Stage::Personalized(schedule) => self.pipeline.poll(member, schedule),
            Stage::SizeTable { sizes, .. } => self.pipeline.poll(member, sizes),
            Stage::DirectCopy(schedule) => self.pipeline.poll(member, schedule),
            Stage::Outcomes { outcomes, .. }
            | Stage::SharedAgreement { outcomes, .. }
            | Stage::SharedEnd(outcomes) => self.pipeline.poll(member, outcomes),
            Stage::SharedOperands { announced, .. } => self.pipeline.poll(member, announced),
            Stage::SharedReduce { reduce, .. } => self.pipeline.poll(member, reduce),
            Stage::Done => return Ok(Progress::Done),
        }?;
        if progress == Progress::Done && self.advance(member)? {
            return Ok(Progress::Moved);
        }
        Ok(progress)
    }

    pub(super) fn run<'t>(
        &mut self,
        member: &mut ArenaMember,
        terms: &mut impl FnMut() -> WaitTerms<'t>,
    ) -> Result<(), BoardError> {
        loop {
            match &mut self.stage {
                Stage::OneShot(schedule) => self.pipeline.run(member, schedule, terms),
                Stage::BlockReduce(schedule) => self.pipeline.run(member, schedule, terms),
                Stage::Multicast(schedule) => self.pipeline.run(member, schedule, terms),
                Stage::Personalized(schedule) => self.pipeline.run(member, schedule, terms),
                Stage::SizeTable { sizes, .. } => self.pipeline.run(member, sizes, terms),
                Stage::DirectCopy(schedule) => self.pipeline.run(member, schedule, terms),
                Stage::Outcomes { outcomes, .. }
                | Stage::SharedAgreement { outcomes, .. }
                | Stage::SharedEnd(outcomes) => self.pipeline.run(member, outcomes, terms),
                Stage::SharedOperands { announced, .. } => self.pipeline.run(member, announced, terms),
                Stage::SharedReduce { reduce, .. } => self.pipeline.run(member, reduce, terms),
                Stage::Done => return Ok(()),
            }?;
            if !self.advance(member)? {
                return Ok(());
            }
        }
    }

    /// Starts the next stage; returns false if there is none.
    fn advance(&mut self, member: &ArenaMember) -> Result<bool, BoardError> {
        self.stage = match core::mem::replace(&mut self.stage, Stage::Done) {
            Stage::SizeTable { sizes, then } => {
                if let Some(rank) = sizes.chunks.differs {
                    return Err(BoardError::Differs { rank });
                }
                then.stage(usize::try_from(sizes.chunks.longest).unwrap_or(usize::MAX))
            }
            Stage::DirectCopy(schedule) => {
                let DirectCopy { pieces, is_refused, differs, .. } = schedule.chunks;
                if let Some(rank) = differs {
                    return Err(BoardError::Differs { rank });
                }
                // A rank that aborts returns, and changes what others may still read.
                if member.arena().is_aborted() {
                    return Err(BoardError::aborted(member.arena()));
                }
                let outcomes = Outcomes { me: pieces.me, world: pieces.world, is_refused };
                Stage::Outcomes { outcomes: Exchange::new(outcomes, 0), pieces }
            }
            Stage::Outcomes { outcomes, pieces } if outcomes.chunks.is_refused => {
                Stage::Personalized(Exchange::new(pieces, self.exchange_ahead))
            }
            Stage::SharedOperands { announced, then } => {
                let SharedOperands { are_shared, is_refused, tensors, .. } = announced.chunks;
                if are_shared {
                    let BoardContext { me, world, .. } = then.context;
                    let outcomes = Exchange::new(Outcomes { me, world, is_refused }, 0);
                    Stage::SharedAgreement { outcomes, tensors, then }
                } else {
                    then.through_slots()
                }
            }
            Stage::SharedAgreement { outcomes, tensors, then } => match outcomes.chunks.is_refused {
                true => then.through_slots(),
                false => then.in_place(tensors),
            },
            Stage::SharedReduce { context, .. } => {
                // What was read is older than this check.
                fence(Ordering::SeqCst);
                // A rank that aborts returns, and changes what others may still read.
                if member.arena().is_aborted() {
                    return Err(BoardError::aborted(member.arena()));
                }
                context.mapped.borrow().note_use();
                let BoardContext { me, world, .. } = context;
                Stage::SharedEnd(Exchange::new(Outcomes { me, world, is_refused: false }, 0))
            }
            _ => return Ok(false),
        };
        self.pipeline = Pipeline::new(self.next_round, self.fingerprint);
        self.next_round += self.stage.rounds();
        Ok(true)
    }
}

impl Stage<'_, '_> {
    fn rounds(&self) -> u64 {
        match self {
            Self::OneShot(schedule) => schedule.rounds(),
            Self::BlockReduce(schedule) => schedule.rounds(),
            Self::Multicast(schedule) => schedule.rounds(),
            Self::Personalized(schedule) => schedule.rounds(),
            Self::SizeTable { sizes, .. } => sizes.rounds(),
            Self::DirectCopy(schedule) => schedule.rounds(),
            Self::Outcomes { outcomes, .. }
            | Self::SharedAgreement { outcomes, .. }
            | Self::SharedEnd(outcomes) => outcomes.rounds(),
            Self::SharedOperands { announced, .. } => announced.rounds(),
            Self::SharedReduce { reduce, .. } => reduce.rounds(),
            Self::Done => 0,
        }
    }
}

impl<'p> BoardContext<'p> {
    fn all_ranks(&self) -> Ranks {
        Ranks::all(self.world)
    }

    fn stage<'a>(
        self,
        descriptor: &Descriptor,
        layout: &Layout,
        mut operands: Operands<'a>,
    ) -> Stage<'a, 'p> {
        let Self { me, world, .. } = self;
        let element_bytes = descriptor.dtype.bytes();
        let bytes = |elements: u64| {
            let bytes =
                usize::try_from(elements).ok().and_then(|elements| elements.checked_mul(element_bytes));
            bytes.expect("operands are within memory")
        };
        let parts = || {
            let parts = layout.parts(descriptor, world);
            PartBounds::new(world, |rank| bytes(parts.of(rank).count))
        };
        let whole = bytes(descriptor.count);
        if let Layout::Pairs { send, receive } = layout {
            return self.pairwise(descriptor, operands, (send, receive), bytes);
        }
        match descriptor.collective {
            Collective::AllReduce => self.reduction(descriptor, None, whole, operands),
            Collective::Reduce { root } => self.reduction(descriptor, Some(root), whole, operands),
            Collective::Barrier => self.multicast(
                Operands::none(),
                self.all_ranks(),
                self.all_ranks(),
                PartBounds::new(0, |_| 0),
                0,
            ),
            Collective::Broadcast { root } => {
                let part = PartBounds::new(world, |rank| if rank == root { whole } else { 0 });
                operands.check((me == root).then_some(&part), (me != root).then_some(&part));
                self.multicast(operands, Ranks::one(root), self.all_ranks(), part, whole)
            }
            Collective::AllGather => {
                let parts = parts();
                operands.check(Some(&self.alone(parts.len(me))), Some(&parts));
                let longest = parts.longest();
                self.multicast(operands, self.all_ranks(), self.all_ranks(), parts, longest)
            }
            Collective::ReduceScatter => {
                let parts = parts();
                operands.check(Some(&parts), Some(&self.alone(parts.len(me))));
                let reducer = TileReducer::new(descriptor, world);
                if self.settings.announces_operands(parts.total(), world) {
                    return self.shareable(operands, reducer, ReduceSplit::Part(parts), None);
                }
                self.reduce_scatter(operands, reducer, parts)
            }
            Collective::Gather { root } => {
                let parts = parts();
                let output = (me == root).then_some(&parts);
                operands.check(Some(&self.alone(parts.len(me))), output);
                let longest = parts.longest();
                self.multicast(operands, self.all_ranks(), Ranks::one(root), parts, longest)
            }
            Collective::Scatter { root } => {
                let parts = parts();
                let mine = self.from(root, parts.len(me));
                let send = if me == root { parts.clone() } else { PartBounds::new(0, |_| 0) };
                operands.check((me == root).then_some(&send), Some(&mine));
                self.personalized(operands, Ranks::one(root), None, (send, mine), parts.longest())
            }
            Collective::AllToAll => {
                let parts = parts();
                let receive = PartBounds::new(world, |_| parts.len(me));
                operands.check(Some(&parts), Some(&receive));
                let longest = parts.longest();
                self.personalized(operands, self.all_ranks(), None, (parts, receive), longest)
            }
            Collective::Transfer { .. } => panic!("a board runs no transfers"),
        }
    }

    /// A buffer with this rank's part only.
    fn alone(&self, bytes: usize) -> PartBounds {
        self.from(self.me, bytes)
    }

    fn from(&self, rank: Rank, bytes: usize) -> PartBounds {
        PartBounds::new(self.world, |other| if other == rank { bytes } else { 0 })
    }

    fn reduction<'a>(
        self,
        descriptor: &Descriptor,
        root: Option<Rank>,
        bytes: usize,
        mut operands: Operands<'a>,
    ) -> Stage<'a, 'p> {
        let Self { me, world, settings, .. } = self;
        let whole = self.alone(bytes);
        operands.check(Some(&whole), root.is_none_or(|root| root == me).then_some(&whole));
        let reducer = TileReducer::new(descriptor, world);
        if settings.takes_one_shot(bytes, world) {
            let chunk_bytes = settings.slot_bytes;
            let one_shot = OneShot { operands, reducer, me, world, root, bytes, chunk_bytes };
            return Stage::OneShot(Exchange::new(one_shot, settings.exchange_ahead));
        }
        if root.is_none() && settings.announces_operands(bytes, world) {
            return self.shareable(operands, reducer, ReduceSplit::Pieces { bytes, whole }, Some(bytes));
        }
        self.block_reduce(operands, reducer, root, bytes)
    }

    /// Asks where the operands of all ranks lie, before it chooses how they are reduced.
    fn shareable<'a>(
        self,
        operands: Operands<'a>,
        reducer: TileReducer,
        split: ReduceSplit,
        output_bytes: Option<usize>,
    ) -> Stage<'a, 'p> {
        let input_bytes = match &split {
            ReduceSplit::Pieces { bytes, .. } => *bytes,
            ReduceSplit::Part(parts) => parts.total(),
        };
        let bytes = (input_bytes, output_bytes);
        let announced = SharedOperands::new((self.me, self.world), &operands, bytes, self.mapped);
        let then = Shareable { context: self, operands, reducer, split };
        Stage::SharedOperands { announced: Exchange::new(announced, 0), then }
    }

    fn block_reduce<'a>(
        self,
        operands: Operands<'a>,
        reducer: TileReducer,
        root: Option<Rank>,
        bytes: usize,
    ) -> Stage<'a, 'p> {
        let Self { me, world, settings, .. } = self;
        let blocks = ReduceBlocks {
            bytes,
            block_bytes: world * settings.chunk_bytes(bytes.div_ceil(world), settings.lane_bytes_max(world)),
            ahead: settings.block_ahead,
        };
        Stage::BlockReduce(BlockReduce::new(operands, reducer, (me, world), root, blocks))
    }

    fn reduce_scatter<'a>(
        self,
        operands: Operands<'a>,
        reducer: TileReducer,
        parts: PartBounds,
    ) -> Stage<'a, 'p> {
        let (longest, nothing) = (parts.longest(), PartBounds::new(0, |_| 0));
        self.personalized(operands, self.all_ranks(), Some(reducer), (parts, nothing), longest)
    }

    fn multicast<'a>(
        self,
        operands: Operands<'a>,
        senders: Ranks,
        receivers: Ranks,
        parts: PartBounds,
        longest: usize,
    ) -> Stage<'a, 'p> {
        let Self { me, settings, .. } = self;
        let chunk_bytes = settings.chunk_bytes(longest, settings.slot_bytes);
        let count = longest.div_ceil(chunk_bytes).max(1) as u64;
        // The root of a broadcast may have no output.
        let keeps_own =
            senders.contains(me) && receivers.contains(me) && operands.output_bytes() >= parts.total().max(1);
        let chunks = Multicast { operands, parts, me, senders, receivers, keeps_own, chunk_bytes, count };
        Stage::Multicast(Exchange::new(chunks, settings.exchange_ahead))
    }

    fn personalized<'a>(
        self,
        operands: Operands<'a>,
        senders: Ranks,
        reducer: Option<TileReducer>,
        (send, receive): (PartBounds, PartBounds),
        longest: usize,
    ) -> Stage<'a, 'p> {
        let Self { me, world, settings, peers, .. } = self;
        let lane_bytes = settings.chunk_bytes(longest, settings.lane_bytes_max(world));
        let count = longest.div_ceil(lane_bytes).max(1) as u64;
        let is_copy = reducer.is_none();
        let pieces = Personalized { operands, send, receive, me, world, senders, reducer, lane_bytes, count };
        match peers {
            Some(peers) if is_copy && longest >= settings.direct_bytes_min => {
                let direct = DirectCopy { pieces, peers, is_refused: false, differs: None };
                Stage::DirectCopy(Exchange::new(direct, 0))
            }
            _ => Stage::Personalized(Exchange::new(pieces, settings.exchange_ahead)),
        }
    }

    fn pairwise<'a>(
        self,
        descriptor: &Descriptor,
        mut operands: Operands<'a>,
        (send, receive): (&[u64], &[u64]),
        bytes: impl Fn(u64) -> usize,
    ) -> Stage<'a, 'p> {
        let Self { me, world, settings, .. } = self;
        let bounds = |sizes: &[u64]| PartBounds::new(world, |rank| bytes(sizes[rank.index()]));
        let (collective, send, receive) = (descriptor.collective, bounds(send), bounds(receive));
        // Buffers that this rank does not use are not checked.
        let sends = !matches!(collective, Collective::Scatter { root } if root != me);
        let receives = !matches!(collective, Collective::Gather { root } if root != me);
        operands.check(sends.then_some(&send), receives.then_some(&receive));
        let table =
            |parts: &PartBounds| core::array::from_fn(|rank| parts.len(Rank::from_index(rank)) as u64);
        let sizes =
            SizeTable { me, world, send: table(&send), receive: table(&receive), longest: 0, differs: None };
        let then = Pairwise { context: self, collective, operands, send, receive };
        Stage::SizeTable { sizes: Exchange::new(sizes, settings.exchange_ahead), then }
    }
}

impl<'a, 'p> Pairwise<'a, 'p> {
    fn stage(self, longest: usize) -> Stage<'a, 'p> {
        let Self { context, collective, operands, send, receive } = self;
        match collective {
            Collective::Gather { root } => {
                // Only the root knows, and needs, the parts of the other ranks.
                let parts = if context.me == root { receive } else { context.alone(send.len(root)) };
                context.multicast(operands, context.all_ranks(), Ranks::one(root), parts, longest)
            }
            Collective::Scatter { root } => {
                context.personalized(operands, Ranks::one(root), None, (send, receive), longest)
            }
            _ => context.personalized(operands, context.all_ranks(), None, (send, receive), longest),
        }
    }
}

impl<'a, 'p> Shareable<'a, 'p> {
    fn through_slots(self) -> Stage<'a, 'p> {
        let Self { context, operands, reducer, split } = self;
        match split {
            ReduceSplit::Pieces { bytes, .. } => context.block_reduce(operands, reducer, None, bytes),
            ReduceSplit::Part(parts) => context.reduce_scatter(operands, reducer, parts),
        }
    }

    fn in_place(self, tensors: Vec<Option<RankTensors>>) -> Stage<'a, 'p> {
        let Self { context, operands, reducer, split } = self;
        let BoardContext { me, world, settings, workers, .. } = context;
        let (piece_bytes, ahead) = (settings.shared_piece_bytes, settings.exchange_ahead);
        let reduce =
            SharedReduce { operands, reducer, me, world, tensors, split, piece_bytes, ahead, workers };
        Stage::SharedReduce { reduce, context }
    }
}

/// The maximum bytes of a lane in a slot.
pub(super) fn lane_bytes_max(slot_bytes: usize, world: usize) -> usize {
    let lane_bytes = slot_bytes / lane_count(world);
    if lane_bytes >= 64 { lane_bytes / 64 * 64 } else { lane_bytes / 16 * 16 }
}
