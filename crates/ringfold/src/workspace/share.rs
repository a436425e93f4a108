//! A peer's share in a weighted average.

use super::intervals::Intervals;
use core::ops::Range;
use ringfold_kernels::{convert, scale, scale_in_place};
use ringfold_proto::descriptor::Weight;
use ringfold_proto::dtype::DType;
use zerocopy::IntoBytes;

/// The weight, and how much of the input was multiplied by it. What was, lies in the target, and from there it
/// is read as own data.
pub(super) struct Share {
    dtype: DType,
    /// The weight as elements can hold it: values are multiplied by the very number that is added up.
    weight: f64,
    multiplied: Intervals,
}

impl Share {
    pub(super) fn new(weight: Weight, dtype: DType) -> Self {
        let weight = wide(dtype, &narrow(dtype, weight.value()));
        Self { dtype, weight, multiplied: Intervals::default() }
    }

    /// The weight as an element: this peer's part of the sum of weights.
    pub(super) fn element(&self) -> Vec<u8> {
        narrow(self.dtype, self.weight)
    }

    /// Multiplies a range, from `source` or else in place, unless that was done.
    pub(super) fn multiply(&mut self, source: Option<&[u8]>, target: &mut [u8], range: Range<usize>) {
        let (dtype, weight) = (self.dtype, self.weight);
        self.multiplied.insert(range, |new| match source {
            Some(source) => scale(dtype, &source[new.clone()], &mut target[new], weight),
            None => scale_in_place(dtype, &mut target[new], weight),
        });
    }

    /// Divides by the sum of weights, each value rounded once. Nothing over nothing is not a number.
    pub(super) fn divide(&self, target: &mut [u8], sum_of_weights: &[u8]) {
        /// Elements that are divided at a time: few enough to stay in the nearest cache.
        const TILE: usize = 512;
        let by = wide(self.dtype, sum_of_weights);
        let mut tile = [0.0; TILE];
        for part in target.chunks_mut(TILE * self.dtype.bytes()) {
            // Quotients of f64 rounded to a shorter float are what dividing those floats gives.
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
    fn quotients_are_rounded_once_and_nothing_over_nothing_is_nan() {
        let share = Share::new(Weight::ONE, DType::F32);
        let values: Vec<f32> = (0..2000).map(|i| i as f32 * 1.7 - 900.0).collect();
        let mut divided = values.clone();
        share.divide(divided.as_mut_bytes(), 49.0_f32.as_bytes());
        assert_eq!(divided, values.iter().map(|v| v / 49.0).collect::<Vec<_>>());
        let mut zero = [0.0_f32];
        share.divide(zero.as_mut_bytes(), 0.0_f32.as_bytes());
        assert!(zero[0].is_nan());
    }

    #[test]
    fn values_are_multiplied_by_the_weight_that_is_added_up() {
        let share = Share::new(Weight::new(1.001).unwrap(), DType::BF16);
        assert_eq!(share.element(), half::bf16::from_f64(1.001).to_ne_bytes());
        assert_eq!(share.weight, half::bf16::from_f64(1.001).to_f64());
    }
}
