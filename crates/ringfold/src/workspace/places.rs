//! Where the elements of an operation lie.

use super::backup::Backup;
use super::byte_range;
use super::pool::Pool;
use super::share::Share;
use crate::all_reduce::HostBuffers;
use core::ops::Range;
use ringfold_fabric::memory::{Lease, Memory, View};
use ringfold_plan::step::{Place, Region};
use ringfold_proto::descriptor::{Collective, Descriptor};

/// Source, target and scratch, what is kept of the target, and what is made of the source.
pub(super) struct Places {
    element_bytes: usize,
    /// By [`Block`].
    blocks: [Bytes; 4],
    /// Whether source and target are the same.
    in_place: bool,
    /// What was overwritten, if it may have to be put back.
    backup: Option<Backup>,
    share: Option<Share>,
    /// The position of the sum of weights, if there is one. It has no place in the user's memory.
    tail: Option<u64>,
}

/// Contiguous memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Input,
    Output,
    Scratch,
    Tail,
}

enum Bytes {
    /// Never written.
    Input(View),
    Ours(Memory),
}

/// A region's bytes.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Spot {
    block: Block,
    range: Range<usize>,
}

/// Bytes to be read and bytes to be written.
pub(super) enum Pair<'a> {
    /// They are the same.
    Same(&'a mut [u8]),
    /// They have nothing in common.
    Apart(&'a [u8], &'a mut [u8]),
}

impl Places {
    pub(super) fn new(
        buffers: HostBuffers,
        descriptor: &Descriptor,
        scratch_elements: u64,
        restores: bool,
        pool: &mut Pool,
    ) -> Self {
        let element_bytes = descriptor.dtype.bytes();
        let share = descriptor.weight.map(|weight| Share::new(weight, descriptor.dtype));
        let tail = share.as_ref().map(|_| descriptor.count.saturating_sub(1));
        let (source, target) = match buffers {
            HostBuffers::InPlace(memory) => (None, memory),
            HostBuffers::OutOfPlace { source, target } => (Some(source), target),
        };
        if matches!(descriptor.collective, Collective::AllReduce | Collective::Broadcast { .. }) {
            let bytes = tail.unwrap_or(descriptor.count) as usize * element_bytes;
            // Of a broadcast only the root has a source.
            let source = source.as_ref().filter(|_| descriptor.collective == Collective::AllReduce);
            let source_bytes = source.map_or(target.len(), View::len);
            assert_eq!((source_bytes, target.len()), (bytes, bytes), "bytes of {descriptor}");
        }
        let in_place = source.is_none();
        let backup = (in_place && restores).then(|| Backup::new(target.len(), pool));
        let input = source.map_or_else(|| Bytes::Ours(Memory::zeroed(0)), Bytes::Input);
        let scratch = pool.take(scratch_elements as usize * element_bytes);
        let weight = share.as_ref().map_or_else(Vec::new, Share::element);
        let blocks = [input, Bytes::Ours(target), Bytes::Ours(scratch), Bytes::Ours(weight.into())];
        Self { element_bytes, blocks, in_place, backup, share, tail }
    }

    /// Cuts regions of one length so that the parts are contiguous: off the sum of weights, if one of them has
    /// it. The bytes are those of the part within the region.
    pub(super) fn cut<const N: usize>(
        &self,
        regions: [Region; N],
    ) -> impl Iterator<Item = (Range<usize>, [Region; N])> + use<N> {
        let count = regions[0].count;
        let end = |region: &Region| region.offset + u64::from(count);
        let has_tail = |region: &Region| {
            region.place != Place::Scratch && self.tail.is_some_and(|tail| end(region) > tail)
        };
        let body = if regions.iter().any(has_tail) { count - 1 } else { count };
        let element_bytes = self.element_bytes;
        let parts = [(0, body), (body, count - body)].into_iter().filter(|(_, count)| *count > 0);
        parts.map(move |(first, count)| {
            let part = |r: Region| Region { offset: r.offset + u64::from(first), count, ..r };
            (byte_range(u64::from(first), count, element_bytes), regions.map(part))
        })
    }

    /// Where a contiguous region lies.
    pub(super) fn spot(&self, region: Region) -> Spot {
        let whole = byte_range(region.offset, region.count, self.element_bytes);
        if region.place == Place::Scratch {
            return Spot { block: Block::Scratch, range: whole };
        }
        if self.tail == Some(region.offset) && region.count > 0 {
            return Spot { block: Block::Tail, range: 0..self.element_bytes };
        }
        // In place there is no input, and what was multiplied by the weight lies in the output.
        let is_input = region.place == Place::Source && !self.in_place && self.share.is_none();
        Spot { block: if is_input { Block::Input } else { Block::Output }, range: whole }
    }

    /// Where a contiguous region lies that is about to be read. Own data is multiplied by its weight first.
    pub(super) fn read(&mut self, region: Region) -> Spot {
        let spot = self.spot(region);
        if region.place == Place::Source && spot.block == Block::Output {
            let [input, output, ..] = &mut self.blocks;
            if let Some(share) = &mut self.share {
                if let Some(backup) = &mut self.backup {
                    backup.save(output.as_slice(), spot.range.clone());
                }
                let source = (!self.in_place).then(|| input.as_slice());
                share.multiply(source, output.as_mut_slice(), spot.range.clone());
            }
        }
        spot
    }

    /// Where a contiguous region lies that is about to be written. What it holds is kept if it is the user's input.
    pub(super) fn write(&mut self, region: Region) -> Spot {
        debug_assert!(region.place != Place::Source, "{region:?} is not to be written");
        let spot = self.spot(region);
        if let Some(backup) = &mut self.backup
            && spot.block == Block::Output
        {
            backup.save(self.blocks[Block::Output as usize].as_slice(), spot.range.clone());
        }
        spot
    }

    pub(super) fn bytes(&self, spot: &Spot) -> &[u8] {
        &self.blocks[spot.block as usize].as_slice()[spot.range.clone()]
    }

    pub(super) fn bytes_mut(&mut self, spot: &Spot) -> &mut [u8] {
        &mut self.blocks[spot.block as usize].as_mut_slice()[spot.range.clone()]
    }

    /// Bytes to be read, and bytes to be written.
    ///
    /// # Panics
    /// If they overlap and are not the same.
    pub(super) fn pair(&mut self, own: &Spot, into: &Spot) -> Pair<'_> {
        if own == into {
            return Pair::Same(self.bytes_mut(into));
        }
        let (from, to) = (own.range.clone(), into.range.clone());
        if own.block == into.block {
            let block = self.blocks[own.block as usize].as_mut_slice();
            let [own, into] = block.get_disjoint_mut([from, to]).expect("operands lie apart");
            return Pair::Apart(own, into);
        }
        let indices = [own.block as usize, into.block as usize];
        let [own, into] = self.blocks.get_disjoint_mut(indices).expect("the blocks are different");
        Pair::Apart(&own.as_slice()[from], &mut into.as_mut_slice()[to])
    }

    /// Bytes to be sent.
    pub(super) fn lease(&self, spot: &Spot) -> Lease {
        match &self.blocks[spot.block as usize] {
            Bytes::Input(view) => view.lease(spot.range.clone()),
            Bytes::Ours(memory) => memory.lease(spot.range.clone()),
        }
    }

    /// Puts back what was overwritten in place.
    pub(super) fn restore(&mut self) {
        if let Some(backup) = &mut self.backup {
            backup.restore(self.blocks[Block::Output as usize].as_mut_slice());
        }
    }

    /// The result is final: it is divided by the weights, and what was overwritten is forgotten.
    pub(super) fn keep(&mut self) {
        let [_, output, _, tail] = &mut self.blocks;
        if let Some(share) = self.share.take() {
            share.divide(output.as_mut_slice(), tail.as_slice());
        }
        if let Some(backup) = &mut self.backup {
            backup.forget();
        }
    }

    /// Gives memory of our own back, and lets go of the user's.
    pub(super) fn retire(self, pool: &mut Pool) -> HostBuffers {
        let [input, output, scratch, _] = self.blocks;
        if let Bytes::Ours(memory) = scratch {
            pool.give(memory);
        }
        if let Some(backup) = self.backup {
            backup.retire(pool);
        }
        match (input, output) {
            (Bytes::Input(source), Bytes::Ours(target)) => HostBuffers::OutOfPlace { source, target },
            (_, Bytes::Ours(memory)) => HostBuffers::InPlace(memory),
            (_, Bytes::Input(_)) => unreachable!("the output is written"),
        }
    }

    /// What the user gets.
    #[cfg(test)]
    pub(super) fn output(&self) -> &[u8] {
        self.blocks[Block::Output as usize].as_slice()
    }
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Input(view) => view.as_slice(),
            Self::Ours(memory) => memory.as_slice(),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Input(_) => panic!("the source is not to be written"),
            Self::Ours(memory) => memory.as_mut_slice(),
        }
    }
}
