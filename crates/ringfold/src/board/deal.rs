//! Scatter, all-to-all and reduce-scatter: a slot has a lane for each other rank.

use super::exchange::Chunks;
use super::fold::{Fold, TILE_BYTES, tiles};
use super::operands::{Cuts, Operands};
use core::ops::Range;
use ringfold_fabric::arena::{Others, Ranks};
use ringfold_proto::id::Rank;

pub(super) struct Deal<'a> {
    pub(super) operands: Operands<'a>,
    /// What goes to each rank, in the input.
    pub(super) send: Cuts,
    /// What comes from each rank, in the output; of a reduction, nothing.
    pub(super) receive: Cuts,
    pub(super) me: Rank,
    pub(super) world: usize,
    /// Who has something.
    pub(super) givers: Ranks,
    /// What comes from all ranks is folded, rather than kept.
    pub(super) fold: Option<Fold>,
    pub(super) lane_bytes: usize,
    pub(super) count: u64,
}

impl Deal<'_> {
    fn range(&self, part: usize, chunk: u64) -> Range<usize> {
        let start = part.min((chunk as usize).saturating_mul(self.lane_bytes));
        start..part.min(start + self.lane_bytes)
    }

    /// Filled bytes are the same for all chunks and ranks: not everyone knows what others get.
    fn slot_bytes(&self) -> usize {
        lane_count(self.world) * self.lane_bytes
    }

    fn fold(&mut self, fold: Fold, chunk: u64, others: Others<'_>) {
        let (me, lane_bytes, slot_bytes) = (self.me, self.lane_bytes, self.slot_bytes());
        let range = self.range(self.send.len(me), chunk);
        for tile in tiles(range.len()) {
            let within = range.start + tile.start..range.start + tile.end;
            let theirs = |rank: usize| {
                let giver = Rank::from_index(rank);
                &others.slot(giver, slot_bytes)[lane(me, giver, lane_bytes)][tile.clone()]
            };
            if let Some((mine, out)) = self.operands.both(&self.send, me, within.clone()) {
                fold.tile(|rank| if rank == me.index() { mine } else { theirs(rank) }, out);
            } else {
                // The result replaces an operand of its own.
                let mut out = [0; TILE_BYTES];
                let out = &mut out[..tile.len()];
                let mine = self.operands.input_part(&self.send, me, within.clone());
                fold.tile(|rank| if rank == me.index() { mine } else { theirs(rank) }, out);
                self.operands.output_part(&self.send, me, within).copy_from_slice(out);
            }
        }
    }
}

/// The lanes of a slot.
pub(super) fn lane_count(world: usize) -> usize {
    world.saturating_sub(1).max(1)
}

/// Where the lane for a rank is in the slot of a giver, which has none for itself.
pub(super) fn lane(to: Rank, giver: Rank, lane_bytes: usize) -> Range<usize> {
    let index = to.index() - usize::from(to.index() > giver.index());
    index * lane_bytes..(index + 1) * lane_bytes
}

impl Chunks for Deal<'_> {
    fn count(&self) -> u64 {
        self.count
    }

    fn fill_bytes(&self, _chunk: u64) -> Option<usize> {
        (self.givers.contains(self.me) && self.world > 1).then_some(self.slot_bytes())
    }

    fn sources(&self, _chunk: u64) -> Ranks {
        self.givers.without(self.me)
    }

    fn reads(&self) -> bool {
        self.fold.is_some() || !self.givers.without(self.me).is_empty()
    }

    fn fill(&mut self, chunk: u64, slot: &mut [u8]) {
        if !slot.is_empty() {
            for to in Ranks::all(self.world).without(self.me) {
                let range = self.range(self.send.len(to), chunk);
                let lane = &mut slot[lane(to, self.me, self.lane_bytes)][..range.len()];
                lane.copy_from_slice(self.operands.input_part(&self.send, to, range));
            }
        }
        if self.fold.is_none() && self.givers.contains(self.me) {
            let range = self.range(self.send.len(self.me), chunk);
            self.operands.pass(&self.send, &self.receive, self.me, range);
        }
    }

    fn read(&mut self, chunk: u64, others: Others<'_>) {
        if let Some(fold) = self.fold {
            return self.fold(fold, chunk, others);
        }
        for giver in self.sources(chunk) {
            let range = self.range(self.receive.len(giver), chunk);
            let lane = &others.slot(giver, self.slot_bytes())[lane(self.me, giver, self.lane_bytes)];
            let bytes = range.len();
            self.operands.output_part(&self.receive, giver, range).copy_from_slice(&lane[..bytes]);
        }
    }
}
