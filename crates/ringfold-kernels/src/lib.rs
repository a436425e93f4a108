//! All CPU kernels over tensor bytes: reductions, quantisation, hashing, conversions.
//!
//! Tensors are byte slices of any alignment and a [`DType`](ringfold_proto::dtype::DType), in the host's byte order.
//! The fastest instruction set of the machine is selected at run time ([`Level`]).
//!
//! # All peers get the same bits
//! Peers with different processors reduce parts of one tensor, so all functions are bit-identical at every level and
//! for either order of operands:
//! - Sums and products of integers wrap; nothing is fused or reassociated.
//! - f16 and bf16 are computed in f32 and rounded to nearest even at each step.
//! - NaN results are canonical: quiet, positive, without payload (0x7e00, 0x7fc0, 0x7fc00000, 0x7ff8000000000000).
//! - Max and Min are NaN if either operand is, and order −0 before +0.
//!
//! This relies on the processor's default float mode: a thread that flushes subnormals to zero, or does not round to
//! nearest, gets other results.
//!
//! # Panics
//! Slices of unequal length, partial elements and unsupported operations are bugs of the caller and panic, as
//! documented. The contents of slices never cause a panic.

mod convert;
mod divide;
mod element;
mod half;
mod hash;
mod isa;
mod lanes;
mod level;
mod number;
mod operator;
mod packed;
mod quantize;
mod reduce;
mod scale;

pub use convert::{convert, convert_at};
pub use divide::{divide, divide_at};
pub use hash::{LEAF_BYTES, LeafHash, TreeHash, checksum, digest, leaf_hash, root_hash, tree_hash};
pub use level::Level;
pub use quantize::{
    dequantize, dequantize_at, dequantize_reduce, dequantize_reduce_at, quantize, quantize_at, wire_bytes,
};
pub use reduce::{reduce, reduce_at, reduce_into, reduce_into_at};
pub use scale::{scale, scale_at, scale_in_place, scale_in_place_at};
