//! The two 16-bit float types, in plain code.
//!
//! The conversions are branch-free, so that loops over them are vectorised at every level. They never compute with
//! subnormal f32 values, which some processors handle very slowly.

/// IEEE half precision: 5 bits of exponent, 10 of fraction.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct F16(u16);

impl F16 {
    /// The largest finite value.
    pub(crate) const MAX: f64 = 65504.0;

    /// Exact, except that NaNs may lose their payload.
    #[inline(always)]
    pub(crate) fn to_f32(self) -> f32 {
        /// The difference of the exponent biases, shifted.
        const REBIAS: u32 = (127 - 15) << 23;
        /// The smallest normal half.
        const NORMAL_MIN: u32 = 113 << 23;
        let sign = u32::from(self.0 & 0x8000) << 16;
        let magnitude = u32::from(self.0 & 0x7fff) << 13;
        let normal = magnitude + REBIAS;
        // Infinity and NaN: the exponent becomes 255.
        let special = normal + REBIAS;
        // The fraction is added to the smallest normal, which is then subtracted.
        let subnormal = (f32::from_bits(magnitude + NORMAL_MIN) - f32::from_bits(NORMAL_MIN)).to_bits();
        let finite = if magnitude < 1 << 23 { subnormal } else { normal };
        let bits = if magnitude >= 31 << 23 { special } else { finite };
        f32::from_bits(bits | sign)
    }

    /// Rounds to nearest even; overflows become infinity, NaNs canonical.
    #[inline(always)]
    pub(crate) fn from_f32(value: f32) -> Self {
        /// An f32 that overflows.
        const OVERFLOW: u32 = (127 + 16) << 23;
        /// The smallest normal half.
        const NORMAL_MIN: u32 = 113 << 23;
        /// An f32 with the last place of a subnormal half: adding it rounds.
        const ROUNDER: u32 = (127 - 15 + 23 - 10 + 1) << 23;
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        let odd = (magnitude >> 13) & 1;
        let normal = (magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd)) >> 13;
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(ROUNDER)).to_bits().wrapping_sub(ROUNDER);
        let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 | sign };
        let finite = if magnitude < NORMAL_MIN { subnormal } else { normal } | sign;
        Self(if magnitude >= OVERFLOW { special } else { finite } as u16)
    }
}

/// bfloat16: the upper half of an f32.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);

impl Bf16 {
    /// The largest finite value.
    pub(crate) const MAX: f64 = 255.0 * (1u128 << 120) as f64;

    /// Exact.
    #[inline(always)]
    pub(crate) fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounds to nearest even; overflows become infinity. NaNs must be canonical, which rounding preserves.
    #[inline(always)]
    pub(crate) fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let odd = (bits >> 16) & 1;
        Self((bits.wrapping_add(0x7fff + odd) >> 16) as u16)
    }
}
