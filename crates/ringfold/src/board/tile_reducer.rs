//! Reduces the operands of all ranks in rank order, one tile at a time.

use core::ops::Range;
use ringfold_kernels::{divide, reduce, reduce_into};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;

/// Bytes of a tile: partial results stay in the L1 cache while the operands are added.
pub(super) const TILE_BYTES: usize = 8192;

#[derive(Clone, Copy, Debug)]
pub(super) struct TileReducer {
    dtype: DType,
    op: ReduceOp,
    world: usize,
}

impl TileReducer {
    pub(super) fn new(descriptor: &Descriptor, world: usize) -> Self {
        Self { dtype: descriptor.dtype, op: descriptor.op, world }
    }

    /// Reduces the operands of all ranks into `out`; divides an average. All slices have the same length.
    #[inline]
    pub(super) fn reduce_tile<'a>(&self, operand: impl Fn(usize) -> &'a [u8], out: &mut [u8]) {
        let Self { dtype, op, world } = *self;
        if world == 1 {
            out.copy_from_slice(operand(0));
            return;
        }
        reduce(dtype, op, operand(0), operand(1), out);
        for rank in 2..world {
            reduce_into(dtype, op, out, operand(rank));
        }
        if op == ReduceOp::Avg {
            divide(dtype, out, world as u64);
        }
    }
}

pub(super) fn tiles(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..bytes).step_by(TILE_BYTES).map(move |start| start..bytes.min(start + TILE_BYTES))
}
