//! The types of arithmetic: integers, f32 and f64.

use crate::lanes::Lanes;
use crate::operator::Operator;
use core::ops::{Add, BitAnd, BitOr, BitXor, Sub};

/// A number that operators work on.
pub(crate) trait Number: Copy + Default + 'static {
    fn operate<O: Operator>(left: Self, right: Self) -> Self;
    fn divide(self, by: Divisor) -> Self;
    fn scale(self, by: Factor) -> Self;
}

/// An integer of 8 to 64 bits; arithmetic wraps.
pub(crate) trait Integer:
    Number + Ord + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    /// The bounds of the range.
    const MIN: f64;
    const MAX: f64;

    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_mul(self, other: Self) -> Self;

    /// Exact for up to 32 bits.
    fn to_f64(self) -> f64;
    /// The low bits of `word`.
    fn truncate(word: u64) -> Self;
    /// Converts between the host's byte order and little-endian.
    fn swap_to_le(self) -> Self;
}

/// f32 or f64.
pub(crate) trait Real: Number + PartialOrd + Add<Output = Self> + Sub<Output = Self> {
    /// The canonical NaN: quiet, positive, without payload.
    const NAN: Self;
    const ZERO: Self;
    const INFINITY: Self;
    const NEG_INFINITY: Self;

    fn is_nan(self) -> bool;
    fn to_f64(self) -> f64;
    fn from_f64(value: f64) -> Self;

    /// Replaces any NaN by the canonical one; see [`Operator::reals`].
    #[inline(always)]
    fn canonical(self) -> Self {
        if self.is_nan() { Self::NAN } else { self }
    }
}

/// A number of peers to divide by.
#[derive(Clone, Copy)]
pub(crate) struct Divisor {
    whole: u64,
    real: f64,
}

impl Divisor {
    /// # Panics
    /// If `by` is zero.
    pub(crate) fn new(by: u64) -> Self {
        assert!(by > 0, "invalid divisor 0");
        Self { whole: by, real: by as f64 }
    }
}

/// A factor to multiply by.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    /// The factor as an integer, if it is one: then products of integers are exact, apart from wrapping.
    whole: Option<i64>,
    real: f64,
}

impl Factor {
    pub(crate) fn new(factor: f64) -> Self {
        // Beyond 2⁵³ floats do not represent all integers.
        let is_whole = factor.fract() == 0.0 && factor.abs() <= (1u64 << 53) as f64;
        Self { whole: is_whole.then_some(factor as i64), real: factor }
    }
}

macro_rules! integers {
    ($($integer:ident)*) => {$(
        impl Number for $integer {
            #[inline(always)]
            fn operate<O: Operator>(left: Self, right: Self) -> Self {
                O::integers(left, right)
            }

            #[inline(always)]
            fn divide(self, by: Divisor) -> Self {
                if size_of::<Self>() <= 4 {
                    // There is vector division of f64, but not of integers. It is exact: a quotient that is not an
                    // integer differs from one by at least 1 / divisor, far more than the rounding error; and a
                    // divisor too large for that gives zero in any case.
                    let quotient = self as f64 / by.real;
                    // SAFETY: the divisor is at least one, so the quotient is within the range of the type.
                    unsafe { quotient.to_int_unchecked() }
                } else {
                    // The divisor may exceed i64::MAX, so magnitudes are divided.
                    #[allow(unused_comparisons, reason = "also expanded for unsigned integers")]
                    let is_negative = self < 0;
                    let word = self as u64;
                    let magnitude = if is_negative { word.wrapping_neg() } else { word };
                    let quotient = magnitude / by.whole;
                    (if is_negative { quotient.wrapping_neg() } else { quotient }) as $integer
                }
            }

            #[inline(always)]
            fn scale(self, by: Factor) -> Self {
                match by.whole {
                    Some(factor) => $integer::wrapping_mul(self, factor as $integer),
                    None => (self as f64 * by.real) as $integer,
                }
            }
        }

        impl Integer for $integer {
            const MIN: f64 = $integer::MIN as f64;
            const MAX: f64 = $integer::MAX as f64;

            #[inline(always)]
            fn wrapping_add(self, other: Self) -> Self {
                $integer::wrapping_add(self, other)
            }

            #[inline(always)]
            fn wrapping_mul(self, other: Self) -> Self {
                $integer::wrapping_mul(self, other)
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn truncate(word: u64) -> Self {
                word as $integer
            }

            #[inline(always)]
            fn swap_to_le(self) -> Self {
                self.to_le()
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

macro_rules! reals {
    ($($real:ident)*) => {$(
        impl Number for $real {
            #[inline(always)]
            fn operate<O: Operator>(left: Self, right: Self) -> Self {
                let (value, nan) = O::reals(left, right);
                value.with_nan(nan.mask())
            }

            #[inline(always)]
            fn divide(self, by: Divisor) -> Self {
                (self / by.real as $real).canonical()
            }

            #[inline(always)]
            fn scale(self, by: Factor) -> Self {
                (self * by.real as $real).canonical()
            }
        }

        impl Real for $real {
            const NAN: Self = $real::NAN;
            const ZERO: Self = 0.0;
            const INFINITY: Self = $real::INFINITY;
            const NEG_INFINITY: Self = $real::NEG_INFINITY;

            #[inline(always)]
            fn is_nan(self) -> bool {
                $real::is_nan(self)
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $real
            }
        }
    )*};
}

reals! { f32 f64 }
