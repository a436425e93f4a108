//! Scatter, all-to-all and reduce-scatter: a slot has one lane per other rank.

use super::exchange::Chunks;
use super::operands::{Operands, PartBounds};
use super::tile_reducer::{TILE_BYTES, TileReducer, tiles};
use core::ops::Range;
use ringfold_fabric::arena::{OtherSlots, Ranks};
use ringfold_proto::id::Rank;

pub(super) struct Personalized<'a> {
    pub(super) operands: Operands<'a>,
    /// The part for each rank, in the input.
    pub(super) send: PartBounds,
    /// The part from each rank, in the output; empty for a reduction.
    pub(super) receive: PartBounds,
    pub(super) me: Rank,
    pub(super) world: usize,
    pub(super) senders: Ranks,
    /// For a reduction: combines the parts from all ranks.
    pub(super) reducer: Option<TileReducer>,
    pub(super) lane_bytes: usize,
    pub(super) count: u64,
}

impl Personalized<'_> {
    fn range(&self, part: usize, chunk: u64) -> Range<usize> {
        let start = part.min((chunk as usize).saturating_mul(self.lane_bytes));
        start..part.min(start + self.lane_bytes)
    }

    /// The ranks whose memory this one reads, if it copies directly.
    pub(super) fn direct_sources(&self) -> Ranks {
        self.senders.without(self.me)
    }

    /// What another rank reads of this one.
    pub(super) fn piece_for(&self, to: Rank) -> &[u8] {
        if !self.senders.contains(self.me) || to == self.me {
            return &[];
        }
        self.operands.input_part(&self.send, to, 0..self.send.len(to))
    }

    /// Where the part of a source goes.
    pub(super) fn target(&mut self, from: Rank) -> &mut [u8] {
        self.operands.output_part(&self.receive, from, 0..self.receive.len(from))
    }

    /// Copies the piece that stays with this rank.
    pub(super) fn copy_own(&mut self) {
        if self.senders.contains(self.me) {
            self.operands.copy_own(&self.send, &self.receive, self.me, 0..self.send.len(self.me));
        }
    }

    /// The same for all chunks and ranks: a rank does not know the sizes of other pairs.
    fn slot_bytes(&self) -> usize {
        lane_count(self.world) * self.lane_bytes
    }

    fn reduce(&mut self, reducer: TileReducer, chunk: u64, others: OtherSlots<'_>) {
        let (me, lane_bytes, slot_bytes) = (self.me, self.lane_bytes, self.slot_bytes());
        let range = self.range(self.send.len(me), chunk);
        for tile in tiles(range.len()) {
            let within = range.start + tile.start..range.start + tile.end;
            let theirs = |rank: usize| {
                let sender = Rank::from_index(rank);
                &others.slot(sender, slot_bytes)[lane(me, sender, lane_bytes)][tile.clone()]
            };
            if let Some((mine, out)) = self.operands.both(&self.send, me, within.clone()) {
                reducer.reduce_tile(|rank| if rank == me.index() { mine } else { theirs(rank) }, out);
            } else {
                // The result replaces this rank's operand.
                let mut out = [0; TILE_BYTES];
                let out = &mut out[..tile.len()];
                let mine = self.operands.input_part(&self.send, me, within.clone());
                reducer.reduce_tile(|rank| if rank == me.index() { mine } else { theirs(rank) }, out);
                self.operands.output_part(&self.send, me, within).copy_from_slice(out);
            }
        }
    }
}

pub(super) fn lane_count(world: usize) -> usize {
    world.saturating_sub(1).max(1)
}

/// The lane for a rank in a sender's slot, which has none for the sender itself.
pub(super) fn lane(to: Rank, sender: Rank, lane_bytes: usize) -> Range<usize> {
    let index = to.index() - usize::from(to.index() > sender.index());
    index * lane_bytes..(index + 1) * lane_bytes
}

impl Chunks for Personalized<'_> {
    fn count(&self) -> u64 {
        self.count
    }

    fn fill_bytes(&self, _chunk: u64) -> Option<usize> {
        (self.senders.contains(self.me) && self.world > 1).then_some(self.slot_bytes())
    }

    fn sources(&self, _chunk: u64) -> Ranks {
        self.senders.without(self.me)
    }

    fn reads(&self) -> bool {
        self.reducer.is_some() || !self.senders.without(self.me).is_empty()
    }

    fn fill(&mut self, chunk: u64, slot: &mut [u8]) {
        if !slot.is_empty() {
            for to in Ranks::all(self.world).without(self.me) {
                let range = self.range(self.send.len(to), chunk);
                let lane = &mut slot[lane(to, self.me, self.lane_bytes)][..range.len()];
                lane.copy_from_slice(self.operands.input_part(&self.send, to, range));
            }
        }
        if self.reducer.is_none() && self.senders.contains(self.me) {
            let range = self.range(self.send.len(self.me), chunk);
            self.operands.copy_own(&self.send, &self.receive, self.me, range);
        }
    }

    fn read(&mut self, chunk: u64, others: OtherSlots<'_>) {
        if let Some(reducer) = self.reducer {
            return self.reduce(reducer, chunk, others);
        }
        for sender in self.sources(chunk) {
            let range = self.range(self.receive.len(sender), chunk);
            let lane = &others.slot(sender, self.slot_bytes())[lane(self.me, sender, self.lane_bytes)];
            let bytes = range.len();
            self.operands.output_part(&self.receive, sender, range).copy_from_slice(&lane[..bytes]);
        }
    }
}
