//! Regions in the form in which they travel when that is not how they lie in memory.

use super::pool::Pool;
use core::ops::Range;
use ringfold_fabric::memory::{Lease, Memory};
use ringfold_kernels::wire_bytes;
use ringfold_plan::step::{Place, Region};
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::quantization::Quantization;
use std::collections::BTreeMap;

/// Elements of a chunk at least, as a guess; smaller ones make more memory necessary.
const CHUNK_ELEMENTS: u64 = 1024;

/// What is taken when the guess was wrong.
const MORE_BYTES: usize = 64 * 1024;

/// Quantised regions. Each has room of its own, which is written again only where the region is: so what holds
/// for memory holds here, and nothing changes while it is on its way out.
pub(super) struct Wire {
    quantization: Quantization,
    /// Whether a region of the source shares its room with the target's, as in-place plans allow.
    shared: bool,
    /// The first is the pool's.
    blocks: Vec<Memory>,
    /// Bytes of the last block that are given out.
    used: usize,
    rooms: BTreeMap<Key, Room>,
    /// Elements of the longest region.
    longest: u32,
}

type Key = (Place, u64, u32);

struct Room {
    block: usize,
    range: Range<usize>,
    /// Whether the bytes stand for what is in memory, and must be sent as they are.
    verbatim: bool,
}

impl Wire {
    /// Room for all regions of an operation.
    pub(super) fn new(
        quantization: Quantization,
        descriptor: &Descriptor,
        world: usize,
        pool: &mut Pool,
    ) -> Self {
        let chunks = descriptor.count.div_ceil(CHUNK_ELEMENTS) as usize + world;
        let integers = descriptor.count as usize * quantization.dtype.bytes();
        let block = pool.take(integers + chunks * Quantization::PARAMETER_BYTES);
        let shared = descriptor.collective == Collective::AllReduce;
        Self { quantization, shared, blocks: vec![block], used: 0, rooms: BTreeMap::new(), longest: 0 }
    }

    pub(super) fn quantization(&self) -> Quantization {
        self.quantization
    }

    /// Whether the region was settled or stored, and not changed since. The source never was.
    pub(super) fn is_verbatim(&self, region: Region) -> bool {
        region.place != Place::Source && self.rooms.get(&self.key(region)).is_some_and(|room| room.verbatim)
    }

    /// Where the region is to be encoded, for once.
    pub(super) fn encoded_mut(&mut self, region: Region) -> &mut [u8] {
        self.room(region, false)
    }

    /// Where the region's final form is to be written. It is sent from there from now on.
    pub(super) fn settle(&mut self, region: Region) -> &mut [u8] {
        self.forget(region);
        self.room(region, true)
    }

    /// Elements have changed: what overlaps them is no longer sent verbatim.
    pub(super) fn forget(&mut self, region: Region) {
        let (place, offset, count) = self.key(region);
        let reach = offset.saturating_sub(u64::from(self.longest));
        for ((_, start, length), room) in
            self.rooms.range_mut((place, reach, 0)..(place, offset + u64::from(count), 0))
        {
            room.verbatim &= start + u64::from(*length) <= offset;
        }
    }

    /// What was written for a region.
    #[cfg(test)]
    pub(super) fn encoded(&self, region: Region) -> &[u8] {
        let room = &self.rooms[&self.key(region)];
        &self.blocks[room.block].as_slice()[room.range.clone()]
    }

    /// What was written for a region, to be sent.
    pub(super) fn lease(&self, region: Region) -> Lease {
        let room = &self.rooms[&self.key(region)];
        self.blocks[room.block].lease(room.range.clone())
    }

    /// Nothing is sent any more.
    pub(super) fn clear(&mut self) {
        self.rooms.clear();
        self.blocks.truncate(1);
        self.used = 0;
    }

    /// Gives the memory back.
    pub(super) fn retire(self, pool: &mut Pool) {
        self.blocks.into_iter().take(1).for_each(|block| pool.give(block));
    }

    fn key(&self, region: Region) -> Key {
        let is_shared = self.shared && region.place == Place::Source;
        (if is_shared { Place::Target } else { region.place }, region.offset, region.count)
    }

    fn room(&mut self, region: Region, verbatim: bool) -> &mut [u8] {
        self.longest = self.longest.max(region.count);
        let key = self.key(region);
        let room = self.rooms.entry(key).or_insert_with(|| {
            let bytes = wire_bytes(self.quantization, region.count as usize);
            if self.blocks.last().is_none_or(|block| block.len() - self.used < bytes) {
                self.blocks.push(Memory::zeroed(bytes.max(MORE_BYTES)));
                self.used = 0;
            }
            self.used += bytes;
            Room { block: self.blocks.len() - 1, range: self.used - bytes..self.used, verbatim }
        });
        room.verbatim = verbatim;
        &mut self.blocks[room.block].as_mut_slice()[room.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::dtype::DType;
    use ringfold_proto::quantization::QuantizationAlgorithm;
    use ringfold_proto::reduce_op::ReduceOp;

    #[test]
    fn a_change_ends_the_verbatim_sending_of_all_that_it_touches_and_of_nothing_else() {
        let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 };
        let descriptor = Descriptor::all_reduce(100, DType::F32, ReduceOp::Sum);
        let mut wire = Wire::new(quantization, &descriptor, 2, &mut Pool::default());
        let region = |offset, count| Region { place: Place::Target, offset, count };
        for (offset, count) in [(0, 10), (10, 30), (40, 5), (45, 1)] {
            wire.settle(region(offset, count)).fill(offset as u8);
        }
        wire.forget(region(39, 2));
        let verbatim = |offset, count| wire.is_verbatim(region(offset, count));
        assert!(verbatim(0, 10) && !verbatim(10, 30) && !verbatim(40, 5) && verbatim(45, 1));
        assert!(!wire.is_verbatim(region(0, 10).at(Place::Source)));
        assert_eq!(wire.encoded(region(45, 1)), [45; 17]);
    }
}
