//! The few things that need instructions which plain loops do not reach: floats of 16 bits.

use crate::element::Element;
use crate::half::{Bf16, F16};
use crate::lanes::Lanes;
use crate::packed::Packed;

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Floats of 16 bits that are worked on at once.
pub(crate) const BLOCK: usize = 32;

/// The instructions at hand. A value of an implementing type proves that the machine has them.
pub(crate) trait Isa: Copy {
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

/// No particular instructions: what the compiler makes of plain code.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Isa for Portable {
    type Singles = [f32; BLOCK];

    #[inline(always)]
    fn widen_f16(self, halves: &[Packed<F16>; BLOCK]) -> [f32; BLOCK] {
        widen(halves)
    }

    #[inline(always)]
    fn narrow_f16(self, singles: [f32; BLOCK], halves: &mut [Packed<F16>; BLOCK]) {
        narrow(singles, halves);
    }

    #[inline(always)]
    fn widen_bf16(self, halves: &[Packed<Bf16>; BLOCK]) -> [f32; BLOCK] {
        widen(halves)
    }

    #[inline(always)]
    fn narrow_bf16(self, singles: [f32; BLOCK], halves: &mut [Packed<Bf16>; BLOCK]) {
        narrow(singles, halves);
    }
}

#[inline(always)]
fn widen<T: Element<Wide = f32>>(halves: &[Packed<T>; BLOCK]) -> [f32; BLOCK] {
    let mut singles = [0.0; BLOCK];
    for (single, half) in singles.iter_mut().zip(halves) {
        *single = { half.0 }.widen();
    }
    singles
}

#[inline(always)]
fn narrow<T: Element<Wide = f32>>(singles: [f32; BLOCK], halves: &mut [Packed<T>; BLOCK]) {
    for (half, single) in halves.iter_mut().zip(singles) {
        *half = Packed(T::narrow(single));
    }
}
