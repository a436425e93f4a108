//! The memory blocks of an operation: source, target, scratch and the sum of weights.

use super::backup::Backup;
use super::byte_range;
use super::error_feedback::ErrorFeedback;
use super::pool::Pool;
use super::weighted_input::WeightedInput;
use crate::all_reduce::HostBuffers;
use core::ops::Range;
use ringfold_fabric::memory::{Lease, Memory, View};
use ringfold_plan::step::{OpBuffer, Region};
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::quantization::Quantization;

/// The memory blocks of an operation, the backup of its target, and the weighted form of its source.
pub(super) struct OperandMemory {
    element_bytes: usize,
    /// By [`Block`].
    blocks: [Bytes; 4],
    in_place: bool,
    /// Overwritten data, if it may have to be restored.
    backup: Option<Backup>,
    weighted: Option<WeightedInput>,
    /// The quantisation error that is carried over.
    feedback: Option<ErrorFeedback>,
    /// The index of the sum of weights, if there is one. It is not in the user's memory.
    tail: Option<u64>,
}

/// A contiguous block of memory.
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
    Writable(Memory),
}

/// The bytes of a region in a block.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct ByteSpan {
    block: Block,
    range: Range<usize>,
}

/// A range to be read and a range to be written.
pub(super) enum OperandPair<'a> {
    Same(&'a mut [u8]),
    Disjoint(&'a [u8], &'a mut [u8]),
}

impl OperandMemory {
    pub(super) fn new(
        buffers: HostBuffers,
        descriptor: &Descriptor,
        scratch_elements: u64,
        restores: bool,
        feedback: Option<ErrorFeedback>,
        pool: &mut Pool,
    ) -> Self {
        let element_bytes = descriptor.dtype.bytes();
        let weighted = descriptor.weight.map(|weight| WeightedInput::new(weight, descriptor.dtype));
        let tail = weighted.as_ref().map(|_| descriptor.count.saturating_sub(1));
        let (source, target) = match buffers {
            HostBuffers::InPlace(memory) => (None, memory),
            HostBuffers::OutOfPlace { source, target } => (Some(source), target),
        };
        if matches!(descriptor.collective, Collective::AllReduce | Collective::Broadcast { .. }) {
            let bytes = tail.unwrap_or(descriptor.count) as usize * element_bytes;
            // Only the root of a broadcast has a source.
            let source = source.as_ref().filter(|_| descriptor.collective == Collective::AllReduce);
            let source_bytes = source.map_or(target.len(), View::len);
            assert_eq!((source_bytes, target.len()), (bytes, bytes), "bytes of {descriptor}");
        }
        let in_place = source.is_none();
        let backup = (in_place && restores).then(|| Backup::new(target.len(), pool));
        let input = source.map_or_else(|| Bytes::Writable(Memory::zeroed(0)), Bytes::Input);
        let scratch = pool.take(scratch_elements as usize * element_bytes);
        let weight = weighted.as_ref().map_or_else(Vec::new, WeightedInput::element);
        let blocks =
            [input, Bytes::Writable(target), Bytes::Writable(scratch), Bytes::Writable(weight.into())];
        Self { element_bytes, blocks, in_place, backup, weighted, feedback, tail }
    }

    /// Divides regions of the same length into contiguous parts: the sum of weights is a separate part. The byte range is
    /// that of the part within the region.
    pub(super) fn split<const N: usize>(
        &self,
        regions: [Region; N],
    ) -> impl Iterator<Item = (Range<usize>, [Region; N])> + use<N> {
        let count = regions[0].count;
        let end = |region: &Region| region.offset + u64::from(count);
        let has_tail = |region: &Region| {
            region.buffer != OpBuffer::Scratch && self.tail.is_some_and(|tail| end(region) > tail)
        };
        let body = if regions.iter().any(has_tail) { count - 1 } else { count };
        let element_bytes = self.element_bytes;
        let parts = [(0, body), (body, count - body)].into_iter().filter(|(_, count)| *count > 0);
        parts.map(move |(first, count)| {
            let part = |r: Region| Region { offset: r.offset + u64::from(first), count, ..r };
            (byte_range(u64::from(first), count, element_bytes), regions.map(part))
        })
    }

    pub(super) fn span(&self, region: Region) -> ByteSpan {
        let whole = byte_range(region.offset, region.count, self.element_bytes);
        if region.buffer == OpBuffer::Scratch {
            return ByteSpan { block: Block::Scratch, range: whole };
        }
        if self.tail == Some(region.offset) && region.count > 0 {
            return ByteSpan { block: Block::Tail, range: 0..self.element_bytes };
        }
        // In place there is no input, and weighted or corrected data is in the output.
        let is_input = region.buffer == OpBuffer::Source
            && !self.in_place
            && self.weighted.is_none()
            && self.feedback.is_none();
        ByteSpan { block: if is_input { Block::Input } else { Block::Output }, range: whole }
    }

    /// Whether a region of the source has arrived.
    pub(super) fn has_input(&self, region: Region) -> bool {
        let whole = byte_range(region.offset, region.count, self.element_bytes);
        // The sum of weights is not in the source.
        let view = self.blocks[Block::Input as usize].view();
        view.is_none_or(|view| view.has(whole.start.min(view.len())..whole.end.min(view.len())))
    }

    /// The bytes of a contiguous region, for reading. Own data is multiplied by the weight, or corrected, first.
    pub(super) fn read(&mut self, region: Region) -> ByteSpan {
        let span = self.span(region);
        if region.buffer == OpBuffer::Source && span.block == Block::Output {
            let [input, output, ..] = &mut self.blocks;
            if self.weighted.is_some() || self.feedback.is_some() {
                if let Some(backup) = &mut self.backup {
                    backup.save(output.as_slice(), span.range.clone());
                }
                let source = input.view();
                if let Some(weighted) = &mut self.weighted {
                    weighted.multiply(source, output.as_mut_slice(), span.range.clone());
                }
                if let Some(feedback) = &mut self.feedback {
                    feedback.add(source, output.as_mut_slice(), span.range.clone());
                }
            }
        }
        span
    }

    /// The bytes of a contiguous region, for writing. The user's input is backed up first.
    pub(super) fn write(&mut self, region: Region) -> ByteSpan {
        debug_assert!(region.buffer != OpBuffer::Source, "{region:?} is read-only");
        let span = self.span(region);
        if let Some(backup) = &mut self.backup
            && span.block == Block::Output
        {
            backup.save(self.blocks[Block::Output as usize].as_slice(), span.range.clone());
        }
        span
    }

    /// Records what is lost by quantising a region of the tensor, `factor` times.
    pub(super) fn note_error(
        &mut self,
        quantization: Quantization,
        region: Region,
        span: &ByteSpan,
        encoded: &[u8],
        factor: u64,
    ) {
        if let Some(feedback) = &mut self.feedback
            && region.buffer != OpBuffer::Scratch
        {
            let data = self.blocks[span.block as usize].part(span.range.clone());
            feedback.note(quantization, region.offset, data, encoded, factor as f64);
        }
    }

    /// The error that is carried over, for a committed operation.
    pub(super) fn take_feedback(&mut self) -> Option<ErrorFeedback> {
        self.feedback.take()
    }

    pub(super) fn bytes(&self, span: &ByteSpan) -> &[u8] {
        self.blocks[span.block as usize].part(span.range.clone())
    }

    pub(super) fn bytes_mut(&mut self, span: &ByteSpan) -> &mut [u8] {
        self.blocks[span.block as usize].part_mut(span.range.clone())
    }

    /// A span to be read, and a span to be written.
    ///
    /// # Panics
    /// If they overlap without being the same.
    pub(super) fn pair(&mut self, own: &ByteSpan, into: &ByteSpan) -> OperandPair<'_> {
        if own == into {
            return OperandPair::Same(self.bytes_mut(into));
        }
        let (from, to) = (own.range.clone(), into.range.clone());
        if own.block == into.block {
            let block = self.blocks[own.block as usize].as_mut_slice();
            let [own, into] = block.get_disjoint_mut([from, to]).expect("operands do not overlap");
            return OperandPair::Disjoint(own, into);
        }
        let indices = [own.block as usize, into.block as usize];
        let [own, into] = self.blocks.get_disjoint_mut(indices).expect("different blocks");
        OperandPair::Disjoint(own.part(from), into.part_mut(to))
    }

    pub(super) fn lease(&self, span: &ByteSpan) -> Lease {
        match &self.blocks[span.block as usize] {
            Bytes::Input(view) => view.lease(span.range.clone()),
            Bytes::Writable(memory) => memory.lease(span.range.clone()),
        }
    }

    /// The user's output, and the sum of weights if there is one.
    pub(super) fn result(&self) -> [&[u8]; 2] {
        [Block::Output, Block::Tail].map(|block| self.blocks[block as usize].as_slice())
    }

    /// For tests: flips a bit of the output, as faulty memory does.
    pub(super) fn flip_bit(&mut self) {
        let output = self.blocks[Block::Output as usize].as_mut_slice();
        if let Some(byte) = output.get_mut(output.len() / 2) {
            *byte ^= 1;
        }
    }

    /// Restores what was overwritten in place.
    pub(super) fn restore(&mut self) {
        if let Some(backup) = &mut self.backup {
            backup.restore(self.blocks[Block::Output as usize].as_mut_slice());
        }
    }

    /// Makes the result final: divides it by the sum of weights, and discards the backup.
    pub(super) fn keep(&mut self) {
        let [_, output, _, tail] = &mut self.blocks;
        if let Some(weighted) = self.weighted.take() {
            weighted.divide(output.as_mut_slice(), tail.as_slice());
        }
        if let Some(backup) = &mut self.backup {
            backup.forget();
        }
    }

    /// Replaces the scratch memory. Nothing of it may be in the process of being sent.
    pub(super) fn replace_scratch(&mut self, scratch: Memory) -> Memory {
        match core::mem::replace(&mut self.blocks[Block::Scratch as usize], Bytes::Writable(scratch)) {
            Bytes::Writable(before) => before,
            Bytes::Input(_) => unreachable!("scratch is writable"),
        }
    }

    /// Returns scratch memory to the pool, and the user's buffers to the caller.
    pub(super) fn retire(self, pool: &mut Pool) -> HostBuffers {
        let [input, output, scratch, _] = self.blocks;
        if let Bytes::Writable(memory) = scratch {
            pool.give(memory);
        }
        if let Some(backup) = self.backup {
            backup.retire(pool);
        }
        match (input, output) {
            (Bytes::Input(source), Bytes::Writable(target)) => HostBuffers::OutOfPlace { source, target },
            (_, Bytes::Writable(memory)) => HostBuffers::InPlace(memory),
            (_, Bytes::Input(_)) => unreachable!("the output is writable"),
        }
    }

    #[cfg(test)]
    pub(super) fn output(&self) -> &[u8] {
        self.blocks[Block::Output as usize].as_slice()
    }
}

impl Bytes {
    /// The source, unless the operation is in place.
    fn view(&self) -> Option<&View> {
        match self {
            Self::Input(view) => Some(view),
            Self::Writable(_) => None,
        }
    }

    fn part(&self, range: Range<usize>) -> &[u8] {
        match self {
            Self::Input(view) => view.part(range),
            Self::Writable(memory) => memory.part(range),
        }
    }

    fn part_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        match self {
            Self::Input(_) => panic!("the source is read-only"),
            Self::Writable(memory) => memory.part_mut(range),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Input(view) => view.as_slice(),
            Self::Writable(memory) => memory.as_slice(),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Input(_) => panic!("the source is read-only"),
            Self::Writable(memory) => memory.as_mut_slice(),
        }
    }
}
