//! Every loop over tensor bytes: reductions, quantisation, hashing, conversions.
//!
//! Tensors come as byte slices of any alignment and a [`DType`](ringfold_proto::dtype::DType), in the byte order of
//! the host. The fastest instructions of the machine are chosen at run time ([`Level`]).
//!
//! # All peers get the same bits
//! Peers with different processors reduce parts of one tensor, so every function gives the same bits at every
//! level and for either order of operands:
//! - Sums and products of integers wrap; nothing is fused or reassociated.
//! - f16 and bf16 are computed as f32 and rounded to nearest even at each step.
//! - A NaN result is always the type's canonical one: quiet, positive, without payload (0x7e00, 0x7fc0, 0x7fc00000,
//!   0x7ff8000000000000).
//! - Max and Min are NaN if either operand is, and hold −0 to be less than +0.
//!
//! This relies on the processor's default float mode: a thread that flushes subnormals to zero, or rounds otherwise
//! than to nearest, gets other results.
//!
//! # Panics
//! Slices of unequal length, parts of elements and operations without meaning are programmers' errors and panic;
//! each function says so. Contents never do, wherever they come from.

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
pub use hash::{LEAF_BYTES, LeafHash, TreeHash, leaf_hash, root_hash, tree_hash};
pub use level::Level;
pub use quantize::{
    Side, dequantize, dequantize_at, dequantize_reduce, dequantize_reduce_at, quantize, quantize_at,
    wire_bytes,
};
pub use reduce::{reduce, reduce_at, reduce_into_at, reduce_into_left, reduce_into_right};
pub use scale::{scale, scale_at, scale_in_place, scale_in_place_at};
