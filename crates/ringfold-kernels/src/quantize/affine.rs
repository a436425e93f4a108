//! The affine mapping between integers and values.

use crate::element::RealElement;
use crate::number::Integer;
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};

/// The parameters of a chunk: two f64, sent before the integers.
///
/// For [`QuantizationAlgorithm::MinMax`] the smallest and the largest value; for
/// [`QuantizationAlgorithm::ZeroPointScale`] the scale and the integer that represents zero. Both are NaN if the chunk
/// contains a non-finite number.
#[derive(Clone, Copy)]
pub(super) struct Parameters(f64, f64);

impl Parameters {
    /// The parameters for a range of values; none means that a value is not finite.
    pub(super) fn of<Q: Integer>(algorithm: QuantizationAlgorithm, range: Option<(f64, f64)>) -> Self {
        let Some((low, high)) = range else { return Self(f64::NAN, f64::NAN) };
        match algorithm {
            QuantizationAlgorithm::MinMax => Self(low, high),
            // A single value is the scale, one above the integer for zero, and so is exact.
            QuantizationAlgorithm::ZeroPointScale if low == high => Self(low, Q::MIN - 1.0),
            QuantizationAlgorithm::ZeroPointScale => {
                // The range includes zero.
                let (low, high) = (low.min(0.0), high.max(0.0));
                let scale = step(low, high, Q::MAX - Q::MIN);
                // The range is too small to be divided: all values become zero.
                if !(1.0 / scale).is_finite() {
                    return Self(0.0, 0.0);
                }
                Self(scale, (Q::MIN - low / scale).round_ties_even().clamp(Q::MIN, Q::MAX))
            }
        }
    }

    pub(super) fn to_bytes(self) -> [u8; Quantization::PARAMETER_BYTES] {
        let mut bytes = [0; Quantization::PARAMETER_BYTES];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.1.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; Quantization::PARAMETER_BYTES]) -> Self {
        let word = u128::from_le_bytes(bytes);
        Self(f64::from_bits(word as u64), f64::from_bits((word >> 64) as u64))
    }
}

/// `value = (integer − offset) × step + base`, clamped to two bounds.
///
/// Sender and receiver both derive it from the [`Parameters`], so that they agree bit for bit. Everything is computed in
/// f64, which is exact enough for 32 bits and never overflows for f32.
#[derive(Clone, Copy)]
pub(super) struct Affine {
    offset: f64,
    step: f64,
    base: f64,
    /// Integers per unit of value: 1 / step, or zero if that is not finite.
    density: f64,
    floor: f64,
    ceiling: f64,
}

impl Affine {
    /// The mapping for integers `Q` and elements `T`. Invalid parameters map everything to NaN.
    pub(super) fn new<Q: Integer, T: RealElement>(
        algorithm: QuantizationAlgorithm,
        Parameters(first, second): Parameters,
    ) -> Self {
        let is_valid = first.is_finite()
            && second.is_finite()
            && (algorithm != QuantizationAlgorithm::MinMax || first <= second);
        if !is_valid {
            return Self::ALL_NAN;
        }
        match algorithm {
            QuantizationAlgorithm::MinMax => Self::between::<Q, T>(first, second),
            QuantizationAlgorithm::ZeroPointScale => Self {
                offset: second,
                step: first,
                // The neutral element of addition, also for negative zeros.
                base: -0.0,
                density: density(first),
                floor: -T::MAX,
                ceiling: T::MAX,
            },
        }
    }

    /// Maps every integer to NaN.
    const ALL_NAN: Self = Self {
        offset: f64::NAN,
        step: f64::NAN,
        base: f64::NAN,
        density: f64::NAN,
        floor: f64::NEG_INFINITY,
        ceiling: f64::INFINITY,
    };

    fn between<Q: Integer, T: RealElement>(low: f64, high: f64) -> Self {
        let levels = Q::MAX - Q::MIN;
        let step = step(low, high, levels);
        // A range beyond f64::MAX is measured from its middle.
        let (offset, base) =
            if (high - low).is_finite() { (0.0, low) } else { (levels / 2.0, low / 2.0 + high / 2.0) };
        Self {
            offset,
            step,
            base,
            density: density(step),
            floor: low.clamp(-T::MAX, T::MAX),
            ceiling: high.clamp(-T::MAX, T::MAX),
        }
    }

    /// The integer nearest to a finite value.
    #[inline(always)]
    pub(super) fn integer<Q: Integer>(self, value: f64) -> Q {
        /// Adding this to a number below 2³² leaves the number rounded to nearest even in the low bits.
        const ROUNDER: f64 = (3_u64 << 51) as f64;
        let position = (value - self.base) * self.density + self.offset;
        let position = if position < Q::MIN { Q::MIN } else { position };
        let position = if position > Q::MAX { Q::MAX } else { position };
        Q::truncate((position + ROUNDER).to_bits())
    }

    /// The value of an integer.
    #[inline(always)]
    pub(super) fn value<Q: Integer>(self, integer: Q) -> f64 {
        let value = (integer.to_f64() - self.offset) * self.step + self.base;
        // The comparisons keep NaNs.
        let value = if value < self.floor { self.floor } else { value };
        if value > self.ceiling { self.ceiling } else { value }
    }
}

/// The distance between two levels; the range itself may overflow.
fn step(low: f64, high: f64, levels: f64) -> f64 {
    let range = high - low;
    if range.is_finite() { range / levels } else { high / levels - low / levels }
}

fn density(step: f64) -> f64 {
    let density = 1.0 / step;
    if density.is_finite() { density } else { 0.0 }
}
