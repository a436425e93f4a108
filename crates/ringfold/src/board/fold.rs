//! Operands of all ranks become one, in rank order, a tile at a time.

use core::ops::Range;
use ringfold_kernels::{divide, reduce, reduce_into_left};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;

/// Bytes that are folded at once: partial results stay in the nearest cache while one operand after the other joins.
pub(super) const TILE_BYTES: usize = 8192;

/// What becomes of the elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    dtype: DType,
    op: ReduceOp,
    /// How many ranks contribute.
    world: usize,
}

impl Fold {
    pub(super) fn new(descriptor: &Descriptor, world: usize) -> Self {
        Self { dtype: descriptor.dtype, op: descriptor.op, world }
    }

    /// `out` becomes the fold of everyone's operand; an average is divided. All slices have one length.
    #[inline]
    pub(super) fn tile<'a>(&self, operand: impl Fn(usize) -> &'a [u8], out: &mut [u8]) {
        let Self { dtype, op, world } = *self;
        if world == 1 {
            out.copy_from_slice(operand(0));
            return;
        }
        reduce(dtype, op, operand(0), operand(1), out);
        for rank in 2..world {
            reduce_into_left(dtype, op, out, operand(rank));
        }
        if op == ReduceOp::Avg {
            divide(dtype, out, world as u64);
        }
    }
}

/// The tiles of so many bytes.
pub(super) fn tiles(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..bytes).step_by(TILE_BYTES).map(move |start| start..bytes.min(start + TILE_BYTES))
}
