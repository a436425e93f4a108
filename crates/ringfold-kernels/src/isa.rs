//! The few things that need instructions which plain loops do not reach: floats of 16 bits.

use crate::half::{Bf16, F16};
use crate::lanes::Lanes;
use crate::packed::Packed;
use core::convert::Infallible;

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Floats of 16 bits that are worked on at once.
pub(crate) const BLOCK: usize = 32;

/// The instructions at hand. A value of an implementing type proves that the machine has them.
pub(crate) trait Isa: Copy {
    type Blocks: Blocks;

    /// The means to work on floats of 16 bits by blocks, if that is faster than a plain loop.
    fn blocks(self) -> Option<Self::Blocks>;
}

/// Work on floats of 16 bits by blocks.
pub(crate) trait Blocks: Copy {
    /// As many singles as a block has halves, in any order, but in one for both ways.
    type Singles: Lanes;

    /// Exact, except that NaN may be made quiet.
    fn widen_f16(self, halves: &[Packed<F16>; BLOCK]) -> Self::Singles;
    /// Rounds to nearest even. NaN must be the canonical one.
    fn narrow_f16(self, singles: Self::Singles, halves: &mut [Packed<F16>; BLOCK]);

    /// Exact.
    fn widen_bf16(self, halves: &[Packed<Bf16>; BLOCK]) -> Self::Singles;
    /// Rounds to nearest even. NaN must be the canonical one.
    fn narrow_bf16(self, singles: Self::Singles, halves: &mut [Packed<Bf16>; BLOCK]);
}

/// No particular instructions: what the compiler makes of plain loops.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Isa for Portable {
    type Blocks = Infallible;

    #[inline(always)]
    fn blocks(self) -> Option<Infallible> {
        None
    }
}

/// Nobody has one of these.
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
