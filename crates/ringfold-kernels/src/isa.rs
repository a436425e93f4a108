//! Intrinsics for 16-bit floats, which the compiler does not generate from plain loops.

use crate::half::{Bf16, F16};
use crate::lanes::Lanes;
use crate::packed::Packed;
use core::convert::Infallible;

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// 16-bit floats per block.
pub(crate) const BLOCK: usize = 32;

/// An instruction set. A value of an implementing type proves that the machine has it.
pub(crate) trait Isa: Copy {
    type Blocks: Blocks;

    /// Block conversions of 16-bit floats, if they are faster than a plain loop.
    fn blocks(self) -> Option<Self::Blocks>;
}

/// Conversions of 16-bit floats by blocks.
pub(crate) trait Blocks: Copy {
    /// The f32 values of a block, in an order that is the same for widening and narrowing.
    type Singles: Lanes;

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
