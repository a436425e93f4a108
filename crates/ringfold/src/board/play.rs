//! What a collective comes to on one rank of a board: which script, and how it is cut.

use super::BoardError;
use super::deal::{Deal, lane_count};
use super::exchange::Exchange;
use super::fold::Fold;
use super::one_shot::OneShot;
use super::operands::{Cuts, Operands};
#[cfg(test)]
use super::pipeline::Progress;
use super::pipeline::{Pipeline, Script};
use super::rows::Rows;
use super::settings::Settings;
use super::settle::{Settle, Whole};
use super::share::Share;
use ringfold_fabric::arena::{Ranks, Seat};
use ringfold_plan::layout::Layout;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;
use std::time::Instant;

/// A collective that is under way on one rank.
pub(super) struct Play<'a> {
    stage: Stage<'a>,
    pipeline: Pipeline,
    pub(super) next_round: u64,
    fingerprint: u64,
}

#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, on the stack, and nothing is allocated"
)]
enum Stage<'a> {
    OneShot(Exchange<OneShot<'a>>),
    Settle(Settle<'a>),
    Share(Exchange<Share<'a>>),
    Deal(Exchange<Deal<'a>>),
    Rows { rows: Exchange<Rows>, then: Pairwise<'a> },
    Done,
}

/// An exchange in which only two ranks know what goes between them, before all know how long it takes.
struct Pairwise<'a> {
    rank: Standing,
    collective: Collective,
    operands: Operands<'a>,
    send: Cuts,
    receive: Cuts,
}

/// Who a rank is, and what it goes by.
#[derive(Clone, Copy)]
pub(super) struct Standing {
    pub(super) me: Rank,
    pub(super) world: usize,
    pub(super) settings: Settings,
}

impl<'a> Play<'a> {
    /// # Panics
    /// If operands are not as long as the collective says, or if it is none for a board.
    pub(super) fn new(
        rank: Standing,
        descriptor: &Descriptor,
        layout: &Layout,
        operands: Operands<'a>,
        (first, fingerprint): (u64, u64),
    ) -> Self {
        let stage = rank.stage(descriptor, layout, operands);
        let next_round = first + stage.rounds();
        Self { stage, pipeline: Pipeline::new(first, fingerprint), next_round, fingerprint }
    }

    #[cfg(test)]
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Makes the next move, if it can be made.
    #[cfg(test)]
    pub(super) fn poll(&mut self, seat: &mut Seat) -> Result<Progress, BoardError> {
        let progress = match &mut self.stage {
            Stage::OneShot(script) => self.pipeline.poll(seat, script),
            Stage::Settle(script) => self.pipeline.poll(seat, script),
            Stage::Share(script) => self.pipeline.poll(seat, script),
            Stage::Deal(script) => self.pipeline.poll(seat, script),
            Stage::Rows { rows, .. } => self.pipeline.poll(seat, rows),
            Stage::Done => return Ok(Progress::Done),
        }?;
        if progress == Progress::Done && self.advance()? {
            return Ok(Progress::Moved);
        }
        Ok(progress)
    }

    /// Gets to the end.
    pub(super) fn run(
        &mut self,
        seat: &mut Seat,
        deadline: &mut impl FnMut() -> Instant,
    ) -> Result<(), BoardError> {
        loop {
            match &mut self.stage {
                Stage::OneShot(script) => self.pipeline.run(seat, script, deadline),
                Stage::Settle(script) => self.pipeline.run(seat, script, deadline),
                Stage::Share(script) => self.pipeline.run(seat, script, deadline),
                Stage::Deal(script) => self.pipeline.run(seat, script, deadline),
                Stage::Rows { rows, .. } => self.pipeline.run(seat, rows, deadline),
                Stage::Done => return Ok(()),
            }?;
            if !self.advance()? {
                return Ok(());
            }
        }
    }

    /// Goes on to the next stage, if there is one.
    fn advance(&mut self) -> Result<bool, BoardError> {
        let Stage::Rows { rows, then } = core::mem::replace(&mut self.stage, Stage::Done) else {
            return Ok(false);
        };
        if let Some(rank) = rows.chunks.differs {
            return Err(BoardError::Differs { rank });
        }
        let longest = usize::try_from(rows.chunks.longest).unwrap_or(usize::MAX);
        self.stage = then.stage(longest);
        self.pipeline = Pipeline::new(self.next_round, self.fingerprint);
        self.next_round += self.stage.rounds();
        Ok(true)
    }
}

impl Stage<'_> {
    fn rounds(&self) -> u64 {
        match self {
            Self::OneShot(script) => script.rounds(),
            Self::Settle(script) => script.rounds(),
            Self::Share(script) => script.rounds(),
            Self::Deal(script) => script.rounds(),
            Self::Rows { rows, .. } => rows.rounds(),
            Self::Done => 0,
        }
    }
}

impl Standing {
    fn everyone(&self) -> Ranks {
        Ranks::all(self.world)
    }

    fn stage<'a>(self, descriptor: &Descriptor, layout: &Layout, mut operands: Operands<'a>) -> Stage<'a> {
        let Self { me, world, .. } = self;
        let element_bytes = descriptor.dtype.bytes();
        let bytes = |elements: u64| {
            let bytes =
                usize::try_from(elements).ok().and_then(|elements| elements.checked_mul(element_bytes));
            bytes.expect("operands are within memory")
        };
        let parts = || {
            let parts = layout.parts(descriptor, world);
            Cuts::new(world, |rank| bytes(parts.of(rank).count))
        };
        let whole = bytes(descriptor.count);
        match descriptor.collective {
            Collective::AllReduce => self.reduction(descriptor, None, whole, operands),
            Collective::Reduce { root } => self.reduction(descriptor, Some(root), whole, operands),
            Collective::Barrier => {
                self.share(Operands::none(), self.everyone(), self.everyone(), Cuts::new(0, |_| 0), 0)
            }
            Collective::Broadcast { root } => {
                let part = Cuts::new(world, |rank| if rank == root { whole } else { 0 });
                operands.check((me == root).then_some(&part), (me != root).then_some(&part));
                self.share(operands, Ranks::one(root), self.everyone(), part, whole)
            }
            Collective::AllGather => {
                let parts = parts();
                operands.check(Some(&self.alone(parts.len(me))), Some(&parts));
                let longest = parts.longest();
                self.share(operands, self.everyone(), self.everyone(), parts, longest)
            }
            Collective::ReduceScatter => {
                let parts = parts();
                operands.check(Some(&parts), Some(&self.alone(parts.len(me))));
                let fold = Some(Fold::new(descriptor, world));
                let (longest, nothing) = (parts.longest(), Cuts::new(0, |_| 0));
                self.deal(operands, self.everyone(), fold, (parts, nothing), longest)
            }
            Collective::Gather { root } => match layout {
                Layout::Pairs { send, receive } => self.rows(descriptor, operands, (send, receive), bytes),
                _ => {
                    let parts = parts();
                    let output = (me == root).then_some(&parts);
                    operands.check(Some(&self.alone(parts.len(me))), output);
                    let longest = parts.longest();
                    self.share(operands, self.everyone(), Ranks::one(root), parts, longest)
                }
            },
            Collective::Scatter { root } => match layout {
                Layout::Pairs { send, receive } => self.rows(descriptor, operands, (send, receive), bytes),
                _ => {
                    let (parts, mine) =
                        (parts(), self.from(root, bytes(layout.parts(descriptor, world).of(me).count)));
                    let send = if me == root { parts.clone() } else { Cuts::new(0, |_| 0) };
                    operands.check((me == root).then_some(&send), Some(&mine));
                    self.deal(operands, Ranks::one(root), None, (send, mine), parts.longest())
                }
            },
            Collective::AllToAll => match layout {
                Layout::Pairs { send, receive } => self.rows(descriptor, operands, (send, receive), bytes),
                _ => {
                    let parts = parts();
                    let receive = Cuts::new(world, |_| parts.len(me));
                    operands.check(Some(&parts), Some(&receive));
                    let longest = parts.longest();
                    self.deal(operands, self.everyone(), None, (parts, receive), longest)
                }
            },
            Collective::Transfer { .. } => panic!("a transfer is none for a board"),
        }
    }

    /// A buffer that has this rank's part alone.
    fn alone(&self, bytes: usize) -> Cuts {
        self.from(self.me, bytes)
    }

    fn from(&self, rank: Rank, bytes: usize) -> Cuts {
        Cuts::new(self.world, |other| if other == rank { bytes } else { 0 })
    }

    fn reduction<'a>(
        self,
        descriptor: &Descriptor,
        root: Option<Rank>,
        bytes: usize,
        mut operands: Operands<'a>,
    ) -> Stage<'a> {
        let Self { me, world, settings } = self;
        let whole = self.alone(bytes);
        operands.check(Some(&whole), root.is_none_or(|root| root == me).then_some(&whole));
        let fold = Fold::new(descriptor, world);
        if settings.takes_one_shot(bytes, world) {
            let chunk_bytes = settings.slot_bytes;
            let one_shot = OneShot { operands, fold, me, world, root, bytes, chunk_bytes };
            return Stage::OneShot(Exchange::new(one_shot, settings.exchange_ahead));
        }
        let whole = Whole {
            bytes,
            block_bytes: world * settings.chunk_bytes(bytes.div_ceil(world), settings.lane_bytes_max(world)),
            ahead: settings.settle_ahead,
        };
        Stage::Settle(Settle::new(operands, fold, (me, world), root, whole))
    }

    fn share<'a>(
        self,
        operands: Operands<'a>,
        givers: Ranks,
        takers: Ranks,
        parts: Cuts,
        longest: usize,
    ) -> Stage<'a> {
        let Self { me, settings, .. } = self;
        let chunk_bytes = settings.chunk_bytes(longest, settings.slot_bytes);
        let count = longest.div_ceil(chunk_bytes).max(1) as u64;
        // A root that broadcasts may have no buffer for what it knows already.
        let keeps_own =
            givers.contains(me) && takers.contains(me) && operands.output_bytes() >= parts.total().max(1);
        let share = Share { operands, parts, me, givers, takers, keeps_own, chunk_bytes, count };
        Stage::Share(Exchange::new(share, settings.exchange_ahead))
    }

    fn deal<'a>(
        self,
        operands: Operands<'a>,
        givers: Ranks,
        fold: Option<Fold>,
        (send, receive): (Cuts, Cuts),
        longest: usize,
    ) -> Stage<'a> {
        let Self { me, world, settings } = self;
        let lane_bytes = settings.chunk_bytes(longest, settings.lane_bytes_max(world));
        let count = longest.div_ceil(lane_bytes).max(1) as u64;
        let deal = Deal { operands, send, receive, me, world, givers, fold, lane_bytes, count };
        Stage::Deal(Exchange::new(deal, settings.exchange_ahead))
    }

    fn rows<'a>(
        self,
        descriptor: &Descriptor,
        mut operands: Operands<'a>,
        (send, receive): (&[u64], &[u64]),
        bytes: impl Fn(u64) -> usize,
    ) -> Stage<'a> {
        let Self { me, world, settings } = self;
        let cut = |sizes: &[u64]| Cuts::new(world, |rank| bytes(sizes[rank.index()]));
        let (collective, send, receive) = (descriptor.collective, cut(send), cut(receive));
        // Memory that this rank has no use for may be there all the same.
        let sends = !matches!(collective, Collective::Scatter { root } if root != me);
        let receives = !matches!(collective, Collective::Gather { root } if root != me);
        operands.check(sends.then_some(&send), receives.then_some(&receive));
        let table = |cuts: &Cuts| core::array::from_fn(|rank| cuts.len(Rank::from_index(rank)) as u64);
        let rows =
            Rows { me, world, send: table(&send), receive: table(&receive), longest: 0, differs: None };
        let then = Pairwise { rank: self, collective, operands, send, receive };
        Stage::Rows { rows: Exchange::new(rows, settings.exchange_ahead), then }
    }
}

impl<'a> Pairwise<'a> {
    fn stage(self, longest: usize) -> Stage<'a> {
        let Self { rank, collective, operands, send, receive } = self;
        match collective {
            Collective::Gather { root } => {
                // Only the root knows the parts of others, and only the root needs to.
                let parts = if rank.me == root { receive } else { rank.alone(send.len(root)) };
                rank.share(operands, rank.everyone(), Ranks::one(root), parts, longest)
            }
            Collective::Scatter { root } => {
                rank.deal(operands, Ranks::one(root), None, (send, receive), longest)
            }
            _ => rank.deal(operands, rank.everyone(), None, (send, receive), longest),
        }
    }
}

/// The widest lane, for a slot of so many bytes.
pub(super) fn lane_bytes_max(slot_bytes: usize, world: usize) -> usize {
    let lane_bytes = slot_bytes / lane_count(world);
    if lane_bytes >= 64 { lane_bytes / 64 * 64 } else { lane_bytes / 16 * 16 }
}
