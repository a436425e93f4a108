//! The input of a weighted average.

use super::intervals::Intervals;
use core::ops::Range;
use ringfold_fabric::memory::View;
use ringfold_kernels::{convert, scale, scale_in_place};
use ringfold_proto::descriptor::Weight;
use ringfold_proto::dtype::DType;
use zerocopy::{FromBytes, IntoBytes};

/// The weight, and which input is already multiplied by it: this is in the target.
pub(super) struct WeightedInput {
    dtype: DType,
    /// The weight, rounded to the element type: values are multiplied by the same number that is summed up.
    weight: f64,
    multiplied: Intervals,
}

impl WeightedInput {
    pub(super) fn new(weight: Weight, dtype: DType) -> Self {
        let weight = wide(dtype, &narrow(dtype, weight.value()));
        Self { dtype, weight, multiplied: Intervals::default() }
    }

    pub(super) fn element(&self) -> Vec<u8> {
        narrow(self.dtype, self.weight)
    }

    /// Multiplies a range, from `source` or in place; parts that are multiplied already are skipped.
    pub(super) fn multiply(&mut self, source: Option<&View>, target: &mut [u8], range: Range<usize>) {
        let (dtype, weight) = (self.dtype, self.weight);
        self.multiplied.insert(range, |new| match source {
            Some(source) => scale(dtype, source.part(new.clone()), &mut target[new], weight),
            None => scale_in_place(dtype, &mut target[new], weight),
        });
    }

    /// Divides by the sum of weights, with one rounding per value. 0 / 0 is NaN.
    pub(super) fn divide(&self, target: &mut [u8], sum_of_weights: &[u8]) {
        /// Elements divided at a time; they stay in the L1 cache.
        const TILE: usize = 512;
        let by = wide(self.dtype, sum_of_weights);
        if self.dtype == DType::F32
            && let Ok(values) = <[f32]>::mut_from_bytes(target)
        {
            // The sum of weights is an f32, so this is exact.
            values.iter_mut().for_each(|value| *value /= by as f32);
            return;
        }
        let mut tile = [0.0; TILE];
        for part in target.chunks_mut(TILE * self.dtype.bytes()) {
            // An f64 quotient rounded to a shorter float equals the quotient of those floats.
            let tile = &mut tile[..part.len() / self.dtype.bytes()];
            convert(self.dtype, DType::F64, part, tile.as_mut_bytes());
            tile.iter_mut().for_each(|value| *value /= by);
            convert(DType::F64, self.dtype, tile.as_bytes(), part);
        }
    }
}

fn narrow(dtype: DType, value: f64) -> Vec<u8> {
    let mut element = vec![0; dtype.bytes()];
    convert(DType::F64, dtype, value.as_bytes(), &mut element);
    element
}

fn wide(dtype: DType, element: &[u8]) -> f64 {
    let mut value = 0.0_f64;
    convert(dtype, DType::F64, element, value.as_mut_bytes());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_rounded_once_and_zero_over_zero_is_nan() {
        let share = WeightedInput::new(Weight::ONE, DType::F32);
        let values: Vec<f32> = (0..2000).map(|i| i as f32 * 1.7 - 900.0).collect();
        let mut divided = values.clone();
        share.divide(divided.as_mut_bytes(), 49.0_f32.as_bytes());
        assert_eq!(divided, values.iter().map(|v| v / 49.0).collect::<Vec<_>>());
        let mut zero = [0.0_f32];
        share.divide(zero.as_mut_bytes(), 0.0_f32.as_bytes());
        assert!(zero[0].is_nan());
    }

    #[test]
    fn values_are_multiplied_by_the_weight_that_is_summed_up() {
        let share = WeightedInput::new(Weight::new(1.001).unwrap(), DType::BF16);
        assert_eq!(share.element(), half::bf16::from_f64(1.001).to_ne_bytes());
        assert_eq!(share.weight, half::bf16::from_f64(1.001).to_f64());
    }
}
