//! x86-64 with AVX2, and with AVX-512.

use super::{BLOCK, BLOCK_F64, Blocks, Isa};
use crate::half::{Bf16, F16};
use crate::lanes::Lanes;
use crate::packed::Packed;
use core::arch::x86_64::*;

/// The mask of the second (upper) of two bfloat16 in a 32-bit word.
const SECOND: i32 = 0xffff_0000_u32 as i32;

/// Defines an instruction set, whose values prove that the machine has it.
macro_rules! instruction_set {
    ($(#[$doc:meta])* $name:ident, $features:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name(());

        impl $name {
            /// Safe to call only if the machine has the instruction set.
            #[target_feature(enable = $features)]
            #[inline]
            pub(crate) fn new() -> Self {
                Self(())
            }
        }

        impl Isa for $name {
            type Blocks = Self;

            #[inline(always)]
            fn blocks(self) -> Option<Self> {
                Some(self)
            }
        }
    };
}

instruction_set! {
    /// AVX2 and F16C.
    Avx2, "avx2,f16c"
}

instruction_set! {
    /// AVX-512 F, BW, DQ and VL, besides AVX2 and F16C.
    Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c"
}

/// Defines loads and stores of blocks of f32 and f64.
macro_rules! plain_blocks {
    ($($load:ident, $store:ident: $real:ident, $block:ident, $vector:ident, $loadu:ident, $storeu:ident, $zero:ident;)*) => {$(
        #[inline(always)]
        fn $load(self, block: &[Packed<$real>; $block]) -> [$vector; $block / $vector::LANES] {
            let from = block.as_ptr().cast::<$real>();
            // SAFETY: `self` proves the instruction set; each index is that of a vector in the block.
            unsafe {
                let mut vectors = [$vector($zero()); $block / $vector::LANES];
                for (i, vector) in vectors.iter_mut().enumerate() {
                    vector.0 = $loadu(from.add(i * $vector::LANES));
                }
                vectors
            }
        }

        #[inline(always)]
        fn $store(self, vectors: [$vector; $block / $vector::LANES], block: &mut [Packed<$real>; $block]) {
            let to = block.as_mut_ptr().cast::<$real>();
            for (i, vector) in vectors.iter().enumerate() {
                // SAFETY: as in the load.
                unsafe { $storeu(to.add(i * $vector::LANES), vector.0) };
            }
        }
    )*};
}

/// Defines a vector: its operations of [`Lanes`] by intrinsics, and its masks by expressions.
macro_rules! vector {
    ($(#[$doc:meta])* $name:ident([$real:ident; $lanes:literal] as $vector:ty, masks $mask:ty);
        $($operation:ident = $intrinsic:ident),*;
        unordered($left:ident, $right:ident) = $unordered:expr;
        any($set:ident) = $any:expr;
        with_nan($value:ident, $where:ident) = $with_nan:expr;
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name($vector);

        impl $name {
            const LANES: usize = $lanes;
        }

        impl Lanes for $name {
            type Mask = $mask;

            $(
                #[inline(always)]
                fn $operation(self, other: Self) -> Self {
                    // SAFETY: having `self` proves the instruction set.
                    unsafe { Self($intrinsic(self.0, other.0)) }
                }
            )*

            #[inline(always)]
            fn unordered(self, other: Self) -> $mask {
                let ($left, $right) = (self.0, other.0);
                // SAFETY: having `self` proves the instruction set.
                unsafe { $unordered }
            }

            #[inline(always)]
            #[allow(unused_unsafe, reason = "masks of AVX-512 are plain integers")]
            fn any($set: $mask) -> bool {
                // SAFETY: a mask comes from `unordered`, which had a value that proves the instruction set.
                unsafe { $any }
            }

            #[inline(always)]
            fn with_nan(self, $where: $mask) -> Self {
                let $value = self.0;
                // SAFETY: having `self` proves the instruction set.
                unsafe { Self($with_nan) }
            }
        }
    };
}

vector! {
    /// Eight f32. Created only by [`Avx2`], so a value proves the instruction set.
    F32x8([f32; 8] as __m256, masks __m256);
    add = _mm256_add_ps, mul = _mm256_mul_ps, greater = _mm256_max_ps, less = _mm256_min_ps, bits_and = _mm256_and_ps,
    bits_or = _mm256_or_ps;
    unordered(a, b) = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b);
    any(mask) = _mm256_movemask_ps(mask) != 0;
    with_nan(value, mask) = _mm256_blendv_ps(value, _mm256_set1_ps(f32::NAN), mask);
}

vector! {
    /// Four f64. Created only by [`Avx2`], so a value proves the instruction set.
    F64x4([f64; 4] as __m256d, masks __m256d);
    add = _mm256_add_pd, mul = _mm256_mul_pd, greater = _mm256_max_pd, less = _mm256_min_pd, bits_and = _mm256_and_pd,
    bits_or = _mm256_or_pd;
    unordered(a, b) = _mm256_cmp_pd::<_CMP_UNORD_Q>(a, b);
    any(mask) = _mm256_movemask_pd(mask) != 0;
    with_nan(value, mask) = _mm256_blendv_pd(value, _mm256_set1_pd(f64::NAN), mask);
}

impl Blocks for Avx2 {
    type Singles = [F32x8; BLOCK / 8];
    type Doubles = [F64x4; BLOCK_F64 / 4];

    plain_blocks! {
        load_f32, store_f32: f32, BLOCK, F32x8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_setzero_ps;
        load_f64, store_f64: f64, BLOCK_F64, F64x4, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_setzero_pd;
    }

    #[inline(always)]
    fn widen_f16(self, halves: &[Packed<F16>; BLOCK]) -> Self::Singles {
        let from = halves.as_ptr().cast::<__m128i>();
        // SAFETY: `self` proves F16C; each index is that of a vector in the block, which is plain data.
        unsafe {
            let mut singles = [F32x8(_mm256_setzero_ps()); BLOCK / 8];
            for (i, eight) in singles.iter_mut().enumerate() {
                eight.0 = _mm256_cvtph_ps(_mm_loadu_si128(from.add(i)));
            }
            singles
        }
    }

    #[inline(always)]
    fn narrow_f16(self, singles: Self::Singles, halves: &mut [Packed<F16>; BLOCK]) {
        let to = halves.as_mut_ptr().cast::<__m128i>();
        for (i, eight) in singles.iter().enumerate() {
            // SAFETY: as in `widen_f16`.
            unsafe { _mm_storeu_si128(to.add(i), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight.0)) };
        }
    }

    #[inline(always)]
    fn widen_bf16(self, halves: &[Packed<Bf16>; BLOCK]) -> Self::Singles {
        let from = halves.as_ptr().cast::<__m256i>();
        // SAFETY: `self` proves AVX2; each index is that of a vector in the block, which is plain data.
        unsafe {
            let mut singles = [F32x8(_mm256_setzero_ps()); BLOCK / 8];
            let (pairs, _) = singles.as_chunks_mut::<2>();
            for (i, [first, second]) in pairs.iter_mut().enumerate() {
                let words = _mm256_loadu_si256(from.add(i));
                first.0 = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words));
                second.0 = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(SECOND)));
            }
            singles
        }
    }

    #[inline(always)]
    fn narrow_bf16(self, singles: Self::Singles, halves: &mut [Packed<Bf16>; BLOCK]) {
        let to = halves.as_mut_ptr().cast::<__m256i>();
        let (pairs, _) = singles.as_chunks::<2>();
        for (i, [first, second]) in pairs.iter().enumerate() {
            // SAFETY: as in `widen_bf16`.
            unsafe { _mm256_storeu_si256(to.add(i), pack_bf16_avx2(*first, *second)) };
        }
    }
}

/// Rounds two vectors of f32 to the first and second bfloat16 of each word.
#[target_feature(enable = "avx2")]
#[inline]
fn pack_bf16_avx2(first: F32x8, second: F32x8) -> __m256i {
    /// Takes the second 16 bits of each word from the second operand.
    const SECOND_HALVES: i32 = 0b1010_1010;
    let (first, second) = (_mm256_castps_si256(first.0), _mm256_castps_si256(second.0));
    // Kept and discarded bits are gathered in lanes of 16 bits, so that both vectors are rounded at once.
    let kept = _mm256_blend_epi16::<SECOND_HALVES>(_mm256_srli_epi32::<16>(first), second);
    let gone = _mm256_blend_epi16::<SECOND_HALVES>(first, _mm256_slli_epi32::<16>(second));
    // Rounding is up if the discarded bits are at least half of the last place; if that place is even, one bit more than
    // that. The subtraction saturates, so that zero stays zero.
    let even = _mm256_andnot_si256(kept, _mm256_set1_epi16(1));
    let up = _mm256_srli_epi16::<15>(_mm256_subs_epu16(gone, even));
    _mm256_add_epi16(kept, up)
}

vector! {
    /// Sixteen f32. Created only by [`Avx512`], so a value proves the instruction set.
    F32x16([f32; 16] as __m512, masks __mmask16);
    add = _mm512_add_ps, mul = _mm512_mul_ps, greater = _mm512_max_ps, less = _mm512_min_ps, bits_and = _mm512_and_ps,
    bits_or = _mm512_or_ps;
    unordered(a, b) = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b);
    any(mask) = mask != 0;
    with_nan(value, mask) = _mm512_mask_mov_ps(value, mask, _mm512_set1_ps(f32::NAN));
}

vector! {
    /// Eight f64. Created only by [`Avx512`], so a value proves the instruction set.
    F64x8([f64; 8] as __m512d, masks __mmask8);
    add = _mm512_add_pd, mul = _mm512_mul_pd, greater = _mm512_max_pd, less = _mm512_min_pd, bits_and = _mm512_and_pd,
    bits_or = _mm512_or_pd;
    unordered(a, b) = _mm512_cmp_pd_mask::<_CMP_UNORD_Q>(a, b);
    any(mask) = mask != 0;
    with_nan(value, mask) = _mm512_mask_mov_pd(value, mask, _mm512_set1_pd(f64::NAN));
}

impl Blocks for Avx512 {
    type Singles = [F32x16; BLOCK / 16];
    type Doubles = [F64x8; BLOCK_F64 / 8];

    plain_blocks! {
        load_f32, store_f32: f32, BLOCK, F32x16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_setzero_ps;
        load_f64, store_f64: f64, BLOCK_F64, F64x8, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_setzero_pd;
    }

    #[inline(always)]
    fn widen_f16(self, halves: &[Packed<F16>; BLOCK]) -> Self::Singles {
        let from = halves.as_ptr().cast::<__m256i>();
        // SAFETY: `self` proves AVX-512; each index is that of a vector in the block, which is plain data.
        unsafe {
            let mut singles = [F32x16(_mm512_setzero_ps()); BLOCK / 16];
            for (i, sixteen) in singles.iter_mut().enumerate() {
                // The plain intrinsic suppresses exceptions, which prevents a memory operand.
                sixteen.0 =
                    _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(_mm256_loadu_si256(from.add(i)));
            }
            singles
        }
    }

    #[inline(always)]
    fn narrow_f16(self, singles: Self::Singles, halves: &mut [Packed<F16>; BLOCK]) {
        let to = halves.as_mut_ptr().cast::<__m256i>();
        for (i, sixteen) in singles.iter().enumerate() {
            // SAFETY: as in `widen_f16`.
            unsafe {
                _mm256_storeu_si256(to.add(i), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(sixteen.0))
            };
        }
    }

    #[inline(always)]
    fn widen_bf16(self, halves: &[Packed<Bf16>; BLOCK]) -> Self::Singles {
        let from = halves.as_ptr().cast::<__m512i>();
        // SAFETY: `self` proves AVX-512; each index is that of a vector in the block, which is plain data.
        unsafe {
            let mut singles = [F32x16(_mm512_setzero_ps()); BLOCK / 16];
            let (pairs, _) = singles.as_chunks_mut::<2>();
            for (i, [first, second]) in pairs.iter_mut().enumerate() {
                let words = _mm512_loadu_si512(from.add(i));
                first.0 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words));
                second.0 = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(SECOND)));
            }
            singles
        }
    }

    #[inline(always)]
    fn narrow_bf16(self, singles: Self::Singles, halves: &mut [Packed<Bf16>; BLOCK]) {
        let to = halves.as_mut_ptr().cast::<__m512i>();
        let (pairs, _) = singles.as_chunks::<2>();
        for (i, [first, second]) in pairs.iter().enumerate() {
            // SAFETY: as in `widen_bf16`.
            unsafe { _mm512_storeu_si512(to.add(i), pack_bf16_avx512(*first, *second)) };
        }
    }
}

/// Rounds two vectors of f32 to the first and second bfloat16 of each word.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn pack_bf16_avx512(first: F32x16, second: F32x16) -> __m512i {
    /// Selects bits of the second operand where the first is set, else of the third.
    const SELECT: i32 = 0xca;
    /// The first, or both the second and the third.
    const OR_AND: i32 = 0xf8;
    let (first, second) = (_mm512_castps_si512(first.0), _mm512_castps_si512(second.0));
    let mask = _mm512_set1_epi32(SECOND);
    let one = _mm512_set1_epi16(1);
    // Kept and discarded bits are gathered in lanes of 16 bits, so that both vectors are rounded at once. Rounding is up
    // if the discarded bits are more than half of the last place, or exactly half and that place is odd.
    let kept = _mm512_ternarylogic_epi32::<SELECT>(mask, second, _mm512_srli_epi32::<16>(first));
    let gone = _mm512_ternarylogic_epi32::<SELECT>(mask, _mm512_slli_epi32::<16>(second), first);
    let gone = _mm512_ternarylogic_epi32::<OR_AND>(gone, kept, one);
    let up = _mm512_cmpgt_epu16_mask(gone, _mm512_set1_epi16(i16::MIN));
    // Never saturates; a plain addition would compile to two instructions.
    _mm512_mask_adds_epu16(kept, up, kept, one)
}
