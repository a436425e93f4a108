//! Large reductions out of shared buffers: each rank reads the tensors of the others where they lie.
//!
//! In an all-reduce each block has a piece per rank. The owner of a piece reads that piece of the inputs of all ranks, in rank
//! order, and writes the result into its own output; the others copy it from there. Blocks are so small that the result is
//! still in a cache then. In a reduce-scatter each rank reads its part of all inputs.
//!
//! A rank only writes its own tensors. The result may replace the input: an owner has read a piece of all inputs before it
//! announces the result, and only then others overwrite theirs. A rank that aborts returns at once, and may change what others
//! still read; so every rank checks, after its last read, that nobody has aborted. No rank returns before all have done that.

use super::operands::{Operands, PartBounds};
use super::pipeline::{RoundSchedule, RoundStep};
use super::shared_operands::RankTensors;
use super::tile_reducer::{TILE_BYTES, TileReducer, tiles};
use core::ops::Range;
use parking_lot::Mutex;
use ringfold_fabric::arena::{Fill, Ranks, StepSlots};
use ringfold_fabric::worker_pool::WorkerPool;
use ringfold_proto::id::Rank;

pub(super) struct SharedReduce<'a, 'p> {
    pub(super) operands: Operands<'a>,
    pub(super) reducer: TileReducer,
    pub(super) me: Rank,
    pub(super) world: usize,
    /// By rank; none of this rank.
    pub(super) tensors: Vec<Option<RankTensors>>,
    pub(super) split: ReduceSplit,
    /// Bytes of a piece: a multiple of 64.
    pub(super) piece_bytes: usize,
    /// Blocks that are reduced ahead of copying their results.
    pub(super) ahead: u64,
    /// The threads that share the work of this rank, if there are several.
    pub(super) workers: Option<&'p WorkerPool>,
}

/// Which part of the tensor a rank reduces.
pub(super) enum ReduceSplit {
    /// A piece of each block; all ranks get the whole result.
    Pieces { bytes: usize, whole: PartBounds },
    /// Its part; nobody else gets the result.
    Part(PartBounds),
}

enum Phase {
    Reduce(u64),
    Copy(u64),
    Nothing,
}

impl SharedReduce<'_, '_> {
    /// The number of blocks.
    fn count(&self) -> u64 {
        let (bytes, block_bytes) = match &self.split {
            ReduceSplit::Pieces { bytes, .. } => (*bytes, self.world * self.piece_bytes),
            ReduceSplit::Part(parts) => (parts.len(self.me), self.piece_bytes),
        };
        bytes.div_ceil(block_bytes) as u64
    }

    fn ahead(&self) -> u64 {
        self.ahead.min(self.count().saturating_sub(1))
    }

    fn copies(&self) -> bool {
        matches!(self.split, ReduceSplit::Pieces { .. })
    }

    fn phase(&self, index: u64) -> Phase {
        if !self.copies() {
            return Phase::Reduce(index);
        }
        let time = index / 2;
        let is_block = |block: &u64| *block < self.count();
        match index % 2 {
            0 => Some(time).filter(is_block).map_or(Phase::Nothing, Phase::Reduce),
            _ => time.checked_sub(self.ahead()).filter(is_block).map_or(Phase::Nothing, Phase::Copy),
        }
    }

    /// A rank's piece of a block, relative to the tensor.
    fn piece(&self, bytes: usize, block: u64, owner: Rank) -> Range<usize> {
        let start = block as usize * self.world * self.piece_bytes;
        // The last block is divided evenly, too.
        let left = (bytes - start).min(self.world * self.piece_bytes);
        let each = left.div_ceil(self.world).next_multiple_of(64);
        let end = start + left;
        let begin = end.min(start + owner.index() * each);
        begin..end.min(begin + each)
    }

    fn reduce(&mut self, block: u64) {
        let me = self.me;
        // The range within this rank's part.
        let range = match &self.split {
            ReduceSplit::Pieces { bytes, .. } => self.piece(*bytes, block, me),
            ReduceSplit::Part(parts) => {
                let start = block as usize * self.piece_bytes;
                start..parts.len(me).min(start + self.piece_bytes)
            }
        };
        let (ReduceSplit::Pieces { whole: parts, .. } | ReduceSplit::Part(parts)) = &self.split;
        let (tensors, reducer, start) = (&self.tensors, self.reducer, parts.start(me) + range.start);
        // The result may replace this rank's operand.
        let (mine, out) = match &self.operands {
            Operands::InPlace(_) => (None, self.operands.output_part(parts, me, range)),
            Operands::OutOfPlace { .. } => {
                let (mine, out) = self.operands.both(parts, me, range).expect("it is out of place");
                (Some(mine), out)
            }
        };
        in_parts(self.workers, out, |at, out| {
            for tile in tiles(out.len()) {
                let within = at + tile.start..at + tile.end;
                let theirs = |rank: usize| -> &[u8] {
                    let tensors = tensors[rank].as_ref().expect("the tensors of the others are mapped");
                    tensors.input(start + within.start..start + within.end)
                };
                let out = &mut out[tile];
                if let Some(mine) = mine {
                    let mine = &mine[within.clone()];
                    reducer.reduce_tile(|rank| if rank == me.index() { mine } else { theirs(rank) }, out);
                } else {
                    let mut result = [0; TILE_BYTES];
                    let result = &mut result[..out.len()];
                    let mine = &*out;
                    reducer.reduce_tile(|rank| if rank == me.index() { mine } else { theirs(rank) }, result);
                    out.copy_from_slice(result);
                }
            }
        });
    }

    fn copy(&mut self, block: u64) {
        let ReduceSplit::Pieces { bytes, .. } = self.split else { return };
        // Each rank begins with another owner.
        for distance in 1..self.world {
            let owner = Rank::from_index((self.me.index() + distance) % self.world);
            let piece = self.piece(bytes, block, owner);
            let tensors = self.tensors[owner.index()].as_ref().expect("the tensors of the others are mapped");
            in_parts(self.workers, self.operands.output(piece.clone()), |at, out| {
                let start = piece.start + at;
                out.copy_from_slice(tensors.output(start..start + out.len()));
            });
        }
    }
}

impl RoundSchedule for SharedReduce<'_, '_> {
    fn rounds(&self) -> u64 {
        if self.copies() { self.count() } else { 0 }
    }

    fn steps(&self) -> u64 {
        if self.copies() { 2 * (self.count() + self.ahead()) } else { self.count() }
    }

    fn at(&self, index: u64) -> RoundStep {
        let nothing = RoundStep { fill: None, read: None, released: 0 };
        match self.phase(index) {
            Phase::Reduce(round) if self.copies() => {
                RoundStep { fill: Some(Fill { round, bytes: 0 }), ..nothing }
            }
            Phase::Copy(round) => {
                let others = Ranks::all(self.world).without(self.me);
                // Rounds are read in order: those before the next one are no longer needed.
                RoundStep { read: Some((round, others)), released: round + 1, ..nothing }
            }
            Phase::Reduce(_) | Phase::Nothing => nothing,
        }
    }

    fn act(&mut self, index: u64, _slots: StepSlots<'_>) {
        match self.phase(index) {
            Phase::Reduce(block) => self.reduce(block),
            Phase::Copy(block) => self.copy(block),
            Phase::Nothing => {}
        }
    }
}

/// Calls the function for parts of the output, and where they begin: one per worker, of whole tiles.
fn in_parts(workers: Option<&WorkerPool>, out: &mut [u8], write: impl Fn(usize, &mut [u8]) + Sync) {
    let Some(workers) = workers.filter(|_| out.len() > TILE_BYTES) else { return write(0, out) };
    let part_bytes = out.len().div_ceil(workers.parts()).next_multiple_of(TILE_BYTES);
    let parts: Vec<_> = out.chunks_mut(part_bytes).map(Mutex::new).collect();
    workers.run(&|index| {
        if let Some(part) = parts.get(index) {
            write(index * part_bytes, &mut part.lock());
        }
    });
}
