//! The memory of one operation: the user's buffers and scratch, and the kernels that work on them.

mod backup;
mod error_feedback;
mod final_ranges;
mod intervals;
mod operand_memory;
mod pool;
mod quantized;
#[cfg(test)]
mod tests;
mod weighted_input;

pub(crate) use error_feedback::{ErrorFeedback, Residual};
pub(crate) use final_ranges::FinalRanges;
pub(crate) use pool::Pool;

use crate::all_reduce::HostBuffers;
use core::ops::Range;
use final_ranges::LastWrites;
use operand_memory::{ByteSpan, OperandMemory, OperandPair};
use quantized::QuantizedRegions;
use ringfold_fabric::memory::{Lease, Memory};
use ringfold_kernels::{
    checksum, dequantize, dequantize_reduce, digest, divide, quantize, reduce, reduce_into,
};
use ringfold_plan::plan::Plan;
use ringfold_plan::step::{Left, Region};
use ringfold_plan::workspace::Workspace;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::reduce_op::ReduceOp;
use std::sync::Arc;

/// Bytes to be sent: from the user's memory, unless they are quantized.
pub(crate) type Payload = Lease;

/// The tensors of one operation.
///
/// It relies on what the checker proves for every plan, also if source and target are the same memory: own data is read
/// from the source before the target is written there, and nothing is overwritten that is still being sent.
pub(crate) struct TensorWorkspace {
    descriptor: Descriptor,
    world: u64,
    memory: OperandMemory,
    /// The encoded regions, if the operation is quantized.
    quantized: Option<QuantizedRegions>,
    /// What is reported as final.
    last_writes: Option<LastWrites>,
    /// For tests: a bit of the result flips before its digest is computed.
    is_faulty: bool,
}

impl TensorWorkspace {
    /// A workspace with scratch memory, for an operation of `world` members.
    ///
    /// If it `restores`, in-place data is backed up until the operation is decided. With a weight, the buffers have one
    /// element less than the descriptor. With `feedback`, quantisation errors are carried over.
    ///
    /// # Panics
    /// If the lengths of the buffers do not match the descriptor, if it has both weight and quantization, or if there is
    /// feedback without quantization.
    pub(crate) fn new(
        buffers: HostBuffers,
        descriptor: Descriptor,
        scratch_elements: u64,
        world: usize,
        restores: bool,
        feedback: Option<ErrorFeedback>,
        pool: &mut Pool,
    ) -> Self {
        assert!(feedback.is_none() || descriptor.quantization.is_some(), "nothing is quantized");
        assert!(
            descriptor.weight.is_none() || descriptor.quantization.is_none(),
            "a weighted average is not quantized"
        );
        pool.begin();
        let memory = OperandMemory::new(buffers, &descriptor, scratch_elements, restores, feedback, pool);
        let quantized = descriptor.quantization.map(|q| QuantizedRegions::new(q, &descriptor, world, pool));
        Self { descriptor, world: world as u64, memory, quantized, last_writes: None, is_faulty: false }
    }

    /// Reports which ranges of the target are final, while the plan runs. A weighted average has none: all of it is
    /// divided when the operation is committed.
    pub(crate) fn report_finals(&mut self, plan: &Plan, finals: Arc<FinalRanges>) {
        if self.descriptor.weight.is_none() {
            self.last_writes = Some(LastWrites::new(plan, self.descriptor.dtype.bytes(), finals));
        }
    }

    /// For tests: a bit of the result flips before its digest is computed.
    pub(crate) fn flip_result(&mut self) {
        self.is_faulty = true;
    }

    /// Returns scratch memory to the pool, and the buffers to the caller. Nothing may be being sent.
    pub(crate) fn retire(self, pool: &mut Pool) -> HostBuffers {
        if let Some(quantized) = self.quantized {
            quantized.retire(pool);
        }
        self.memory.retire(pool)
    }

    /// As [`retire`](Self::retire), of an operation that may be resumed: also returns its scratch memory.
    pub(crate) fn suspend(self, pool: &mut Pool) -> (HostBuffers, Memory) {
        let Self { mut memory, .. } = self;
        let scratch = memory.replace_scratch(Memory::zeroed(0));
        (memory.retire(pool), scratch)
    }

    /// Uses the scratch memory of an operation that is resumed, and what is in it.
    pub(crate) fn resume(&mut self, scratch: Memory, elements: u64, pool: &mut Pool) {
        let bytes = elements as usize * self.descriptor.dtype.bytes();
        let enough = if scratch.len() >= bytes {
            scratch
        } else {
            let mut longer = pool.take(bytes);
            longer.as_mut_slice()[..scratch.len()].copy_from_slice(scratch.as_slice());
            pool.give(scratch);
            longer
        };
        pool.give(self.memory.replace_scratch(enough));
    }

    /// The quantisation error that a committed operation leaves for the next one.
    pub(crate) fn take_residual(&mut self) -> Option<Residual> {
        self.memory.take_feedback().map(ErrorFeedback::into_residual)
    }

    /// Prepares a region for sending.
    fn prepare(&mut self, region: Region) -> Outgoing {
        if let Some(quantized) = &mut self.quantized {
            if !quantized.is_verbatim(region) {
                let span = self.memory.read(region);
                let dtype = self.descriptor.dtype;
                let (quantization, encoded) = (quantized.quantization(), quantized.encoded_mut(region));
                quantize(quantization, dtype, self.memory.bytes(&span), encoded);
                self.memory.note_error(quantization, region, &span, encoded, 1);
            }
            return Outgoing::Encoded(region);
        }
        let mut parts = self.memory.split([region]).map(|(_, [part])| part);
        match (parts.next(), parts.next()) {
            (Some(body), Some(tail)) => {
                // The sum of weights is not adjacent to the user's elements, so this chunk is copied.
                let (body, tail) = (self.memory.read(body), self.memory.read(tail));
                Outgoing::Copy([self.memory.bytes(&body), self.memory.bytes(&tail)].concat())
            }
            (part, _) => Outgoing::Verbatim(self.memory.read(part.unwrap_or(region))),
        }
    }

    /// Writes `own` to `into`.
    fn copy_elements(&mut self, own: Region, into: Region) {
        for (_, [own, into]) in self.memory.split([own, into]) {
            let own = self.memory.read(own);
            if own != self.memory.span(into) {
                let into = self.memory.write(into);
                if let OperandPair::Disjoint(own, into) = self.memory.pair(&own, &into) {
                    into.copy_from_slice(own);
                }
            }
        }
    }

    /// Discards the encoded form of a region that has changed.
    fn forget_encoded(&mut self, region: Region) {
        if let Some(quantized) = &mut self.quantized {
            quantized.forget(region);
        }
    }

    fn clear_encoded(&mut self) {
        if let Some(quantized) = &mut self.quantized {
            quantized.clear();
        }
    }
}

/// The bytes to be sent, and where they are.
enum Outgoing {
    /// Elements in memory.
    Verbatim(ByteSpan),
    /// The quantized form of a region.
    Encoded(Region),
    /// A copy.
    Copy(Vec<u8>),
}

impl Workspace for TensorWorkspace {
    type Payload = Payload;
    type Frame = [u8];

    fn has_input(&self, region: Region) -> bool {
        self.memory.has_input(region)
    }

    fn note_done(&mut self, step: u32) {
        if let Some(last_writes) = &self.last_writes {
            last_writes.note_done(step);
        }
    }

    fn load(&mut self, region: Region) -> Payload {
        match (self.prepare(region), &self.quantized) {
            (Outgoing::Encoded(region), Some(quantized)) => quantized.lease(region),
            (Outgoing::Verbatim(span), _) => self.memory.lease(&span),
            (Outgoing::Copy(bytes), _) => Lease::from(bytes),
            (Outgoing::Encoded(_), None) => unreachable!("only quantized regions are encoded"),
        }
    }

    fn load_checked(&mut self, region: Region) -> (Payload, u32) {
        match (self.prepare(region), &self.quantized) {
            (Outgoing::Encoded(region), Some(quantized)) => {
                (quantized.lease(region), checksum(quantized.encoded(region)))
            }
            (Outgoing::Verbatim(span), _) => (self.memory.lease(&span), checksum(self.memory.bytes(&span))),
            (Outgoing::Copy(bytes), _) => {
                let sum = checksum(&bytes);
                (Lease::from(bytes), sum)
            }
            (Outgoing::Encoded(_), None) => unreachable!("only quantized regions are encoded"),
        }
    }

    fn checksum(&self, frame: &[u8]) -> u32 {
        checksum(frame)
    }

    fn digest(&mut self) -> u64 {
        if core::mem::take(&mut self.is_faulty) {
            self.memory.flip_bit();
        }
        let [result, weights] = self.memory.result();
        if weights.is_empty() { digest(result) } else { digest(result) ^ digest(weights).rotate_left(1) }
    }

    fn copy(&mut self, own: Region, into: Region) {
        self.forget_encoded(into);
        self.copy_elements(own, into);
    }

    fn store(&mut self, frame: &[u8], into: Region) {
        if let Some(quantized) = &mut self.quantized {
            let span = self.memory.write(into);
            dequantize(quantized.quantization(), self.descriptor.dtype, frame, self.memory.bytes_mut(&span));
            quantized.settle(into).copy_from_slice(frame);
            return;
        }
        for (bytes, [into]) in self.memory.split([into]) {
            let span = self.memory.write(into);
            self.memory.bytes_mut(&span).copy_from_slice(&frame[bytes]);
        }
    }

    fn reduce(&mut self, frame: &[u8], own: Region, into: Region, left: Left) {
        let Descriptor { dtype, op, .. } = self.descriptor;
        if let Some(quantized) = &mut self.quantized {
            quantized.forget(into);
            let quantization = quantized.quantization();
            self.copy_elements(own, into);
            let span = self.memory.write(into);
            dequantize_reduce(quantization, dtype, op, frame, self.memory.bytes_mut(&span));
            return;
        }
        for (bytes, [own, into]) in self.memory.split([own, into]) {
            let frame = &frame[bytes];
            let (own, into) = (self.memory.read(own), self.memory.write(into));
            match (self.memory.pair(&own, &into), left) {
                (OperandPair::Same(both), _) => reduce_into(dtype, op, both, frame),
                (OperandPair::Disjoint(own, into), Left::Own) => reduce(dtype, op, own, frame, into),
                (OperandPair::Disjoint(own, into), Left::Frame) => reduce(dtype, op, frame, own, into),
            }
        }
    }

    fn combine(&mut self, left: Region, right: Region, into: Region) {
        let Descriptor { dtype, op, .. } = self.descriptor;
        self.forget_encoded(into);
        for (_, [left, right, into]) in self.memory.split([left, right, into]) {
            let (left_span, right) = (self.memory.read(left), self.memory.read(right));
            if right == self.memory.span(into) {
                let into = self.memory.write(into);
                match self.memory.pair(&left_span, &into) {
                    OperandPair::Same(_) => unreachable!("operands are different elements"),
                    OperandPair::Disjoint(left, into) => reduce_into(dtype, op, into, left),
                }
                continue;
            }
            // Only small messages are combined this way; the chunk stays in the cache between the two passes.
            self.copy_elements(left, into);
            let into = self.memory.write(into);
            match self.memory.pair(&right, &into) {
                OperandPair::Same(_) => unreachable!("checked above"),
                OperandPair::Disjoint(right, into) => reduce_into(dtype, op, into, right),
            }
        }
    }

    fn settle(&mut self, region: Region) {
        let Descriptor { dtype, op, weight, .. } = self.descriptor;
        // A weighted average is divided in `keep`, when the sum of the weights is final.
        if op == ReduceOp::Avg && weight.is_none() && self.world > 1 {
            let span = self.memory.write(region);
            divide(dtype, self.memory.bytes_mut(&span), self.world);
        }
        if let Some(quantized) = &mut self.quantized {
            let span = self.memory.write(region);
            let quantization = quantized.quantization();
            let encoded = quantized.settle(region);
            quantize(quantization, dtype, self.memory.bytes(&span), encoded);
            // An average counts once for each member in the sum.
            let factor = if op == ReduceOp::Avg { self.world } else { 1 };
            self.memory.note_error(quantization, region, &span, encoded, factor);
            dequantize(quantization, dtype, encoded, self.memory.bytes_mut(&span));
        }
    }

    fn restore(&mut self) {
        self.memory.restore();
        self.clear_encoded();
    }

    /// Also divides weighted averages: a committed operation neither sends nor receives any more. All ranks have the
    /// same bits of the sums and of the sum of weights, so they get the same results.
    fn keep(&mut self) {
        self.memory.keep();
        self.clear_encoded();
    }
}

/// The bytes of `count` elements from `first` on.
fn byte_range(first: u64, count: u32, element_bytes: usize) -> Range<usize> {
    let start = first as usize * element_bytes;
    start..start + count as usize * element_bytes
}
