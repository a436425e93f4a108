//! Large reductions, in blocks with one piece per rank.
//!
//! The owner of a piece reduces the contributions of all ranks, and all ranks read the result from its slot.
//!
//! Contributions and results of different blocks alternate, so that ranks seldom wait: with two blocks ahead the rounds
//! are C0 C1 C2 R0 C3 R1 C4 R2 … An owner reduces directly from the slots of the other ranks into its result slot.

use super::operands::Operands;
use super::personalized::{lane, lane_count};
use super::pipeline::{RoundSchedule, RoundStep};
use super::tile_reducer::{TileReducer, tiles};
use core::ops::Range;
use ringfold_fabric::arena::{Fill, OtherSlots, Ranks, StepSlots};
use ringfold_proto::id::Rank;

pub(super) struct BlockReduce<'a> {
    operands: Operands<'a>,
    reducer: TileReducer,
    me: Rank,
    world: usize,
    /// The rank that gets the results; `None`: all ranks.
    root: Option<Rank>,
    bytes: usize,
    block_bytes: usize,
    count: u64,
    /// Contributions are this many blocks ahead of results, and results ahead of reading them.
    ahead: u64,
}

pub(super) struct ReduceBlocks {
    pub(super) bytes: usize,
    /// Bytes of a block: a multiple of 64 for each rank, or of 16 if slots are tiny.
    pub(super) block_bytes: usize,
    pub(super) ahead: u64,
}

enum Phase {
    Contribute(u64),
    Reduce(u64),
    Gather(u64),
    Nothing,
}

impl<'a> BlockReduce<'a> {
    pub(super) fn new(
        operands: Operands<'a>,
        reducer: TileReducer,
        (me, world): (Rank, usize),
        root: Option<Rank>,
        blocks: ReduceBlocks,
    ) -> Self {
        let ReduceBlocks { bytes, block_bytes, ahead } = blocks;
        let count = bytes.div_ceil(block_bytes) as u64;
        let ahead = ahead.min(count.saturating_sub(1));
        Self { operands, reducer, me, world, root, bytes, block_bytes, count, ahead }
    }

    fn phase(&self, index: u64) -> Phase {
        let time = index / 3;
        let is_block = |block: u64| block < self.count;
        match index % 3 {
            0 if is_block(time) => Phase::Contribute(time),
            1 => time.checked_sub(self.ahead).filter(|b| is_block(*b)).map_or(Phase::Nothing, Phase::Reduce),
            2 => time
                .checked_sub(2 * self.ahead)
                .filter(|b| is_block(*b))
                .map_or(Phase::Nothing, Phase::Gather),
            _ => Phase::Nothing,
        }
    }

    fn contribution_round(&self, block: u64) -> u64 {
        block + block.saturating_sub(self.ahead)
    }

    fn result_round(&self, block: u64) -> u64 {
        self.count.min(block + self.ahead + 1) + block
    }

    fn block(&self, block: u64) -> Range<usize> {
        let start = block as usize * self.block_bytes;
        start..self.bytes.min(start + self.block_bytes)
    }

    /// Bytes of the longest piece of a block, and of a lane of contributions to it.
    fn lane_bytes(&self, block: u64) -> usize {
        let align = if self.block_bytes >= 64 * self.world { 64 } else { 16 };
        self.block(block).len().div_ceil(self.world).next_multiple_of(align)
    }

    fn piece(&self, block: u64, owner: Rank) -> Range<usize> {
        let lane_bytes = self.lane_bytes(block);
        let Range { start, end } = self.block(block);
        let begin = end.min(start + owner.index() * lane_bytes);
        begin..end.min(begin + lane_bytes)
    }

    fn others(&self) -> Ranks {
        Ranks::all(self.world).without(self.me)
    }

    fn gets_results(&self) -> bool {
        self.root.is_none_or(|root| root == self.me)
    }

    fn contribute(&mut self, block: u64, slot: &mut [u8]) {
        let lane_bytes = self.lane_bytes(block);
        for owner in self.others() {
            let piece = self.piece(block, owner);
            let lane = &mut slot[lane(owner, self.me, lane_bytes)][..piece.len()];
            lane.copy_from_slice(self.operands.input(piece));
        }
    }

    fn reduce(&mut self, block: u64, slot: &mut [u8], others: OtherSlots<'_>) {
        let (me, lane_bytes) = (self.me, self.lane_bytes(block));
        let slot_bytes = lane_count(self.world) * lane_bytes;
        let piece = self.piece(block, me);
        for tile in tiles(piece.len()) {
            let within = piece.start + tile.start..piece.start + tile.end;
            let out = &mut slot[tile.clone()];
            let mine = self.operands.input(within.clone());
            let operand = |rank: usize| {
                if rank == me.index() {
                    return mine;
                }
                let sender = Rank::from_index(rank);
                &others.slot(sender, slot_bytes)[lane(me, sender, lane_bytes)][tile.clone()]
            };
            self.reducer.reduce_tile(operand, out);
            if self.gets_results() {
                self.operands.output(within).copy_from_slice(out);
            }
        }
    }

    fn gather(&mut self, block: u64, others: OtherSlots<'_>) {
        for owner in self.others() {
            let piece = self.piece(block, owner);
            let bytes = piece.len();
            self.operands.output(piece).copy_from_slice(others.slot(owner, bytes));
        }
    }
}

impl RoundSchedule for BlockReduce<'_> {
    fn rounds(&self) -> u64 {
        2 * self.count
    }

    fn steps(&self) -> u64 {
        3 * (self.count + 2 * self.ahead)
    }

    fn at(&self, index: u64) -> RoundStep {
        match self.phase(index) {
            Phase::Nothing => RoundStep { fill: None, read: None, released: 0 },
            Phase::Contribute(block) => {
                let bytes = lane_count(self.world) * self.lane_bytes(block);
                let fill = Fill { round: self.contribution_round(block), bytes };
                RoundStep { fill: Some(fill), read: None, released: 0 }
            }
            Phase::Reduce(block) => {
                let fill = Fill { round: self.result_round(block), bytes: self.piece(block, self.me).len() };
                let read = (self.contribution_round(block), self.others());
                // Rounds are read in order: those before the next one are no longer needed.
                RoundStep { fill: Some(fill), read: Some(read), released: read.0 + 1 }
            }
            Phase::Gather(block) => {
                let from = if self.gets_results() { self.others() } else { Ranks::NONE };
                let read = (self.result_round(block), from);
                RoundStep { fill: None, read: Some(read), released: read.0 + 1 }
            }
        }
    }

    fn act(&mut self, index: u64, slots: StepSlots<'_>) {
        match self.phase(index) {
            Phase::Nothing => {}
            Phase::Contribute(block) => self.contribute(block, slots.own),
            Phase::Reduce(block) => self.reduce(block, slots.own, slots.others),
            Phase::Gather(block) if self.gets_results() => self.gather(block, slots.others),
            Phase::Gather(_) => {}
        }
    }
}
