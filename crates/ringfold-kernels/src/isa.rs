//! Intrinsics for reductions of floats: conversions of 16-bit floats, and one test for NaNs per block, which the compiler
//! does not generate from plain loops.

use crate::half::{Bf16, F16};
use crate::lanes::Lanes;
use crate::packed::Packed;
use core::convert::Infallible;

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Elements of up to 32 bits per block. Their f32 values fill half of the registers of AVX2: smaller blocks are slower by
/// the branch for NaNs.
pub(crate) const BLOCK: usize = 64;
/// f64 per block.
pub(crate) const BLOCK_F64: usize = BLOCK / 2;

/// An instruction set. A value of an implementing type proves that the machine has it.
pub(crate) trait Isa: Copy {
    type Blocks: Blocks;

    /// Loads and stores of blocks, if they are faster than a plain loop.
    fn blocks(self) -> Option<Self::Blocks>;
}

/// Loads and stores of floats by blocks.
pub(crate) trait Blocks: Copy {
    /// The f32 values of a block, in an order that is the same for widening and narrowing.
    type Singles: Lanes;
    /// The values of a block of f64.
    type Doubles: Lanes;

    fn load_f32(self, block: &[Packed<f32>; BLOCK]) -> Self::Singles;
    fn store_f32(self, singles: Self::Singles, block: &mut [Packed<f32>; BLOCK]);

    fn load_f64(self, block: &[Packed<f64>; BLOCK_F64]) -> Self::Doubles;
    fn store_f64(self, doubles: Self::Doubles, block: &mut [Packed<f64>; BLOCK_F64]);

    /// Exact, except that NaNs may become quiet.
    fn widen_f16(self, halves: &[Packed<F16>; BLOCK]) -> Self::Singles;
    /// Rounds to nearest even. NaNs must be canonical.
    fn narrow_f16(self, singles: Self::Singles, halves: &mut [Packed<F16>; BLOCK]);

    /// Exact.
    fn widen_bf16(self, halves: &[Packed<Bf16>; BLOCK]) -> Self::Singles;
    /// Rounds to nearest even. NaNs must be canonical.
    fn narrow_bf16(self, singles: Self::Singles, halves: &mut [Packed<Bf16>; BLOCK]);
}

/// No intrinsics: plain loops only.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Isa for Portable {
    type Blocks = Infallible;

    #[inline(always)]
    fn blocks(self) -> Option<Infallible> {
        None
    }
}

/// Never constructed.
impl Blocks for Infallible {
    type Singles = f32;
    type Doubles = f64;

    fn load_f32(self, _: &[Packed<f32>; BLOCK]) -> f32 {
        match self {}
    }

    fn store_f32(self, _: f32, _: &mut [Packed<f32>; BLOCK]) {
        match self {}
    }

    fn load_f64(self, _: &[Packed<f64>; BLOCK_F64]) -> f64 {
        match self {}
    }

    fn store_f64(self, _: f64, _: &mut [Packed<f64>; BLOCK_F64]) {
        match self {}
    }

    fn widen_f16(self, _: &[Packed<F16>; BLOCK]) -> f32 {
        match self {}
    }

    fn narrow_f16(self, _: f32, _: &mut [Packed<F16>; BLOCK]) {
        match self {}
    }

    fn widen_bf16(self, _: &[Packed<Bf16>; BLOCK]) -> f32 {
        match self {}
    }

    fn narrow_bf16(self, _: f32, _: &mut [Packed<Bf16>; BLOCK]) {
        match self {}
    }
}
