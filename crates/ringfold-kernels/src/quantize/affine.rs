//! The straight line between integers and the values that they stand for.

use crate::element::RealElement;
use crate::number::Integer;
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};

/// What travels before a chunk's integers: two f64.
///
/// They are the smallest and the largest value for [`QuantizationAlgorithm::MinMax`]; the scale and the integer
/// that stands for zero for [`QuantizationAlgorithm::ZeroPointScale`]. Both are NaN if the chunk held a number
/// that is not finite.
#[derive(Clone, Copy)]
pub(super) struct Parameters(f64, f64);

impl Parameters {
    /// Of a chunk with this range of values; none if a value was not finite.
    pub(super) fn of<Q: Integer>(algorithm: QuantizationAlgorithm, range: Option<(f64, f64)>) -> Self {
        let Some((low, high)) = range else { return Self(f64::NAN, f64::NAN) };
        match algorithm {
            QuantizationAlgorithm::MinMax => Self(low, high),
            // One value alone is its own scale, one above the integer for zero, and so is exact.
            QuantizationAlgorithm::ZeroPointScale if low == high => Self(low, Q::MIN - 1.0),
            QuantizationAlgorithm::ZeroPointScale => {
                // Zero is a value like any other.
                let (low, high) = (low.min(0.0), high.max(0.0));
                let scale = step(low, high, Q::MAX - Q::MIN);
                // Where the range is too small to be divided, every value is as good as zero.
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

/// `value = (integer − offset) × step + base`, held between two bounds.
///
/// Sender and receiver both derive it from the [`Parameters`], so that they agree to the bit. All is computed
/// as f64, whatever the elements are: which is exact enough for 32 bits and never overflows for f32.
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
    /// For integers `Q` and elements `T`. Parameters that no sender makes are taken for NaN.
    pub(super) fn new<Q: Integer, T: RealElement>(
        algorithm: QuantizationAlgorithm,
        Parameters(first, second): Parameters,
    ) -> Self {
        let is_valid = first.is_finite()
            && second.is_finite()
            && (algorithm != QuantizationAlgorithm::MinMax || first <= second);
        if !is_valid {
            return Self::POISON;
        }
        match algorithm {
            QuantizationAlgorithm::MinMax => Self::between::<Q, T>(first, second),
            QuantizationAlgorithm::ZeroPointScale => Self {
                offset: second,
                step: first,
                // The zero that changes nothing when added, not even a negative zero.
                base: -0.0,
                density: density(first),
                floor: -T::MAX,
                ceiling: T::MAX,
            },
        }
    }

    /// Every integer stands for NaN.
    const POISON: Self = Self {
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
        // If the whole range is more than a float can hold, it is measured from its middle.
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
        /// Added to a number below 2³², it leaves the number rounded to nearest even in its low bits.
        const ROUNDER: f64 = (3_u64 << 51) as f64;
        let position = (value - self.base) * self.density + self.offset;
        let position = if position < Q::MIN { Q::MIN } else { position };
        let position = if position > Q::MAX { Q::MAX } else { position };
        Q::truncate((position + ROUNDER).to_bits())
    }

    /// The value that an integer stands for.
    #[inline(always)]
    pub(super) fn value<Q: Integer>(self, integer: Q) -> f64 {
        let value = (integer.to_f64() - self.offset) * self.step + self.base;
        // Written so that NaN stays.
        let value = if value < self.floor { self.floor } else { value };
        if value > self.ceiling { self.ceiling } else { value }
    }
}

/// The distance of two levels; the range itself may be more than a float can hold.
fn step(low: f64, high: f64, levels: f64) -> f64 {
    let range = high - low;
    if range.is_finite() { range / levels } else { high / levels - low / levels }
}

fn density(step: f64) -> f64 {
    let density = 1.0 / step;
    if density.is_finite() { density } else { 0.0 }
}
