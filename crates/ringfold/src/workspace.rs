//! The memory under one operation: the user's, some of our own, and the kernels that work on both.

mod backup;
mod intervals;
mod places;
mod pool;
mod share;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use pool::Pool;

use crate::all_reduce::HostBuffers;
use core::ops::Range;
use places::{Pair, Places, Spot};
use ringfold_fabric::memory::Lease;
use ringfold_kernels::{
    Side, dequantize, dequantize_reduce, divide, quantize, reduce, reduce_into_left, reduce_into_right,
};
use ringfold_plan::step::{Left, Region};
use ringfold_plan::workspace::Workspace;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::reduce_op::ReduceOp;
use wire::Wire;

/// Bytes on their way out: of the user's memory where they travel as they are.
pub(crate) type Payload = Lease;

/// Tensors under one operation.
///
/// It rests on what the checker proves of every plan: own data is read from the source and before the target
/// holds anything else there, and nothing is overwritten that is still on its way out, even if source and
/// target are the same memory.
pub(crate) struct TensorWorkspace {
    descriptor: Descriptor,
    world: u64,
    places: Places,
    /// What travels, if that is not what lies in memory.
    wire: Option<Wire>,
}

impl TensorWorkspace {
    /// Buffers with so many elements of scratch, for an operation of so many members. If it `restores`, what is
    /// overwritten in place is kept until the operation is decided. With a weight, the
    /// buffers have one element less than the descriptor counts.
    ///
    /// # Panics
    /// If the buffers are not as long as the descriptor says, or if it asks for a weight and a quantisation.
    pub(crate) fn new(
        buffers: HostBuffers,
        descriptor: Descriptor,
        scratch_elements: u64,
        world: usize,
        restores: bool,
        pool: &mut Pool,
    ) -> Self {
        assert!(
            descriptor.weight.is_none() || descriptor.quantization.is_none(),
            "a weighted average is not quantised"
        );
        pool.begin();
        let places = Places::new(buffers, &descriptor, scratch_elements, restores, pool);
        let wire = descriptor.quantization.map(|q| Wire::new(q, &descriptor, world, pool));
        Self { descriptor, world: world as u64, places, wire }
    }

    /// Gives memory of our own back to the pool, and the user's to the caller. Nothing may be on its way out.
    pub(crate) fn retire(self, pool: &mut Pool) -> HostBuffers {
        if let Some(wire) = self.wire {
            wire.retire(pool);
        }
        self.places.retire(pool)
    }

    /// Prepares a region for travelling.
    fn prepare(&mut self, region: Region) -> Outgoing {
        if let Some(wire) = &mut self.wire {
            if !wire.is_verbatim(region) {
                let spot = self.places.read(region);
                let dtype = self.descriptor.dtype;
                quantize(wire.quantization(), dtype, self.places.bytes(&spot), wire.encoded_mut(region));
            }
            return Outgoing::Encoded(region);
        }
        let mut parts = self.places.cut([region]).map(|(_, [part])| part);
        match (parts.next(), parts.next()) {
            (Some(body), Some(tail)) => {
                // The sum of weights has no place behind the user's elements, so these few travel as a copy.
                let (body, tail) = (self.places.read(body), self.places.read(tail));
                Outgoing::Copy([self.places.bytes(&body), self.places.bytes(&tail)].concat())
            }
            (part, _) => Outgoing::Verbatim(self.places.read(part.unwrap_or(region))),
        }
    }

    /// Writes `own` to `into`.
    fn copy_elements(&mut self, own: Region, into: Region) {
        for (_, [own, into]) in self.places.cut([own, into]) {
            let own = self.places.read(own);
            if own != self.places.spot(into) {
                let into = self.places.write(into);
                if let Pair::Apart(own, into) = self.places.pair(&own, &into) {
                    into.copy_from_slice(own);
                }
            }
        }
    }

    /// Notes that a region has changed: what was known of how it travels is no longer true.
    fn forget_encoded(&mut self, region: Region) {
        if let Some(wire) = &mut self.wire {
            wire.forget(region);
        }
    }
}

/// What travels, and where it is.
enum Outgoing {
    /// Elements as they lie in memory.
    Verbatim(Spot),
    /// The wire form of a region.
    Encoded(Region),
    /// Bytes of their own.
    Copy(Vec<u8>),
}

impl Workspace for TensorWorkspace {
    type Payload = Payload;
    type Frame = [u8];

    fn load(&mut self, region: Region) -> Payload {
        match (self.prepare(region), &self.wire) {
            (Outgoing::Encoded(region), Some(wire)) => wire.lease(region),
            (Outgoing::Verbatim(spot), _) => self.places.lease(&spot),
            (Outgoing::Copy(bytes), _) => Lease::from(bytes),
            (Outgoing::Encoded(_), None) => unreachable!("only what is quantised is encoded"),
        }
    }

    fn copy(&mut self, own: Region, into: Region) {
        self.forget_encoded(into);
        self.copy_elements(own, into);
    }

    fn store(&mut self, frame: &[u8], into: Region) {
        if let Some(wire) = &mut self.wire {
            let spot = self.places.write(into);
            dequantize(wire.quantization(), self.descriptor.dtype, frame, self.places.bytes_mut(&spot));
            wire.settle(into).copy_from_slice(frame);
            return;
        }
        for (bytes, [into]) in self.places.cut([into]) {
            let spot = self.places.write(into);
            self.places.bytes_mut(&spot).copy_from_slice(&frame[bytes]);
        }
    }

    fn reduce(&mut self, frame: &[u8], own: Region, into: Region, left: Left) {
        let Descriptor { dtype, op, .. } = self.descriptor;
        if let Some(wire) = &mut self.wire {
            wire.forget(into);
            let quantization = wire.quantization();
            self.copy_elements(own, into);
            let side = if left == Left::Own { Side::Left } else { Side::Right };
            let spot = self.places.write(into);
            dequantize_reduce(quantization, dtype, op, frame, self.places.bytes_mut(&spot), side);
            return;
        }
        for (bytes, [own, into]) in self.places.cut([own, into]) {
            let frame = &frame[bytes];
            let (own, into) = (self.places.read(own), self.places.write(into));
            match (self.places.pair(&own, &into), left) {
                (Pair::Same(both), Left::Own) => reduce_into_left(dtype, op, both, frame),
                (Pair::Same(both), Left::Frame) => reduce_into_right(dtype, op, frame, both),
                (Pair::Apart(own, into), Left::Own) => reduce(dtype, op, own, frame, into),
                (Pair::Apart(own, into), Left::Frame) => reduce(dtype, op, frame, own, into),
            }
        }
    }

    fn combine(&mut self, left: Region, right: Region, into: Region) {
        let Descriptor { dtype, op, .. } = self.descriptor;
        self.forget_encoded(into);
        for (_, [left, right, into]) in self.places.cut([left, right, into]) {
            let (left_spot, right) = (self.places.read(left), self.places.read(right));
            if right == self.places.spot(into) {
                let into = self.places.write(into);
                match self.places.pair(&left_spot, &into) {
                    Pair::Same(_) => unreachable!("operands are never the same elements"),
                    Pair::Apart(left, into) => reduce_into_right(dtype, op, left, into),
                }
                continue;
            }
            // Only small messages are combined so, and a chunk stays in the cache between the two passes.
            self.copy_elements(left, into);
            let into = self.places.write(into);
            match self.places.pair(&right, &into) {
                Pair::Same(_) => unreachable!("it was told apart above"),
                Pair::Apart(right, into) => reduce_into_left(dtype, op, into, right),
            }
        }
    }

    fn settle(&mut self, region: Region) {
        let Descriptor { dtype, op, weight, .. } = self.descriptor;
        // A weighted average is divided when the sum of the weights is known to be final.
        if op == ReduceOp::Avg && weight.is_none() && self.world > 1 {
            let spot = self.places.write(region);
            divide(dtype, self.places.bytes_mut(&spot), self.world);
        }
        if let Some(wire) = &mut self.wire {
            let spot = self.places.write(region);
            let quantization = wire.quantization();
            let encoded = wire.settle(region);
            quantize(quantization, dtype, self.places.bytes(&spot), encoded);
            dequantize(quantization, dtype, encoded, self.places.bytes_mut(&spot));
        }
    }

    fn restore(&mut self) {
        self.places.restore();
        self.clear_wire();
    }

    /// Divides weighted averages too. That can wait until here: an operation is committed only when it is done,
    /// and then it neither sends nor takes anything any more. All ranks hold the same bits of the sums and
    /// of the sum of weights, so they get the same bits.
    fn keep(&mut self) {
        self.places.keep();
        self.clear_wire();
    }
}

impl TensorWorkspace {
    fn clear_wire(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.clear();
        }
    }
}

/// The bytes of so many elements from `first` on.
fn byte_range(first: u64, count: u32, element_bytes: usize) -> Range<usize> {
    let start = first as usize * element_bytes;
    start..start + count as usize * element_bytes
}
