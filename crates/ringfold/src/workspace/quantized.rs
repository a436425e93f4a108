//! The quantized form of regions, as they are sent.

use super::pool::Pool;
use core::ops::Range;
use ringfold_fabric::memory::{Lease, Memory};
use ringfold_kernels::wire_bytes;
use ringfold_plan::step::{OpBuffer, Region};
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::quantization::Quantization;
use std::collections::BTreeMap;

/// The assumed minimum of elements per chunk; smaller chunks need more memory.
const CHUNK_ELEMENTS: u64 = 1024;

/// The size of additional blocks, if the assumption was wrong.
const MORE_BYTES: usize = 64 * 1024;

/// The quantized regions of an operation.
///
/// Each region has its own bytes, rewritten only when the region changes: as for other memory, nothing changes while it
/// is being sent.
pub(super) struct QuantizedRegions {
    quantization: Quantization,
    /// Whether a region of the source uses the same bytes as that of the target, as in-place plans allow.
    shared: bool,
    /// The first block is from the pool.
    blocks: Vec<Memory>,
    used: usize,
    regions: BTreeMap<Key, EncodedRegion>,
    longest: u32,
}

type Key = (OpBuffer, u64, u32);

struct EncodedRegion {
    block: usize,
    range: Range<usize>,
    /// Whether the bytes are the final form, and must be sent unchanged.
    verbatim: bool,
}

impl QuantizedRegions {
    /// Allocates memory for all regions of an operation.
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
        Self { quantization, shared, blocks: vec![block], used: 0, regions: BTreeMap::new(), longest: 0 }
    }

    pub(super) fn quantization(&self) -> Quantization {
        self.quantization
    }

    /// Whether the region was settled or stored, and not changed since. Never true for the source.
    pub(super) fn is_verbatim(&self, region: Region) -> bool {
        region.buffer != OpBuffer::Source
            && self.regions.get(&self.key(region)).is_some_and(|encoded| encoded.verbatim)
    }

    /// The bytes for encoding the region once.
    pub(super) fn encoded_mut(&mut self, region: Region) -> &mut [u8] {
        self.entry(region, false)
    }

    /// The bytes for the region's final form, which is sent from now on.
    pub(super) fn settle(&mut self, region: Region) -> &mut [u8] {
        self.forget(region);
        self.entry(region, true)
    }

    /// Discards the final form of all regions that overlap changed elements.
    pub(super) fn forget(&mut self, region: Region) {
        let (buffer, offset, count) = self.key(region);
        let reach = offset.saturating_sub(u64::from(self.longest));
        for ((_, start, length), encoded) in
            self.regions.range_mut((buffer, reach, 0)..(buffer, offset + u64::from(count), 0))
        {
            encoded.verbatim &= start + u64::from(*length) <= offset;
        }
    }

    pub(super) fn encoded(&self, region: Region) -> &[u8] {
        let encoded = &self.regions[&self.key(region)];
        &self.blocks[encoded.block].as_slice()[encoded.range.clone()]
    }

    pub(super) fn lease(&self, region: Region) -> Lease {
        let encoded = &self.regions[&self.key(region)];
        self.blocks[encoded.block].lease(encoded.range.clone())
    }

    pub(super) fn clear(&mut self) {
        self.regions.clear();
        self.blocks.truncate(1);
        self.used = 0;
    }

    pub(super) fn retire(self, pool: &mut Pool) {
        self.blocks.into_iter().take(1).for_each(|block| pool.give(block));
    }

    fn key(&self, region: Region) -> Key {
        let is_shared = self.shared && region.buffer == OpBuffer::Source;
        (if is_shared { OpBuffer::Target } else { region.buffer }, region.offset, region.count)
    }

    fn entry(&mut self, region: Region, verbatim: bool) -> &mut [u8] {
        self.longest = self.longest.max(region.count);
        let key = self.key(region);
        let encoded = self.regions.entry(key).or_insert_with(|| {
            let bytes = wire_bytes(self.quantization, region.count as usize);
            if self.blocks.last().is_none_or(|block| block.len() - self.used < bytes) {
                self.blocks.push(Memory::zeroed(bytes.max(MORE_BYTES)));
                self.used = 0;
            }
            self.used += bytes;
            EncodedRegion { block: self.blocks.len() - 1, range: self.used - bytes..self.used, verbatim }
        });
        encoded.verbatim = verbatim;
        &mut self.blocks[encoded.block].as_mut_slice()[encoded.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::dtype::DType;
    use ringfold_proto::quantization::QuantizationAlgorithm;
    use ringfold_proto::reduce_op::ReduceOp;

    #[test]
    fn a_change_discards_exactly_the_overlapping_regions() {
        let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 };
        let descriptor = Descriptor::all_reduce(100, DType::F32, ReduceOp::Sum);
        let mut regions = QuantizedRegions::new(quantization, &descriptor, 2, &mut Pool::default());
        let region = |offset, count| Region { buffer: OpBuffer::Target, offset, count };
        for (offset, count) in [(0, 10), (10, 30), (40, 5), (45, 1)] {
            regions.settle(region(offset, count)).fill(offset as u8);
        }
        regions.forget(region(39, 2));
        let verbatim = |offset, count| regions.is_verbatim(region(offset, count));
        assert!(verbatim(0, 10) && !verbatim(10, 30) && !verbatim(40, 5) && verbatim(45, 1));
        assert!(!regions.is_verbatim(region(0, 10).at(OpBuffer::Source)));
        assert_eq!(regions.encoded(region(45, 1)), [45; 17]);
    }
}
