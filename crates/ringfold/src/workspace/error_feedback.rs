//! The quantisation error of a peer's contributions, carried over to its next operation.
//!
//! Whatever this peer loses by quantising is kept, in units of the sum: of its own values, of partial sums that it
//! forwards, and of final values that it settles. It is added to the input of the next operation with the same tag, so
//! that it is sent late instead of never.

use super::intervals::Intervals;
use core::ops::Range;
use ringfold_fabric::memory::View;
use ringfold_kernels::{convert, dequantize};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::quantization::Quantization;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Elements that are processed at a time; they stay in the L1 cache.
const TILE: usize = 512;

/// The error that a committed operation has left: one f32 per element.
#[derive(Clone, Debug)]
pub(crate) struct Residual {
    dtype: DType,
    errors: Arc<Vec<f32>>,
}

impl Residual {
    /// Whether it belongs to operations like this one.
    pub(crate) fn fits(&self, descriptor: &Descriptor) -> bool {
        self.dtype == descriptor.dtype && self.errors.len() as u64 == descriptor.count
    }
}

/// The error of one operation while it runs, and what the operation before it has left.
pub(crate) struct ErrorFeedback {
    dtype: DType,
    before: Option<Residual>,
    errors: Vec<f32>,
    /// Bytes of the input to which the error before was added; these are in the target.
    added: Intervals,
}

impl ErrorFeedback {
    /// For an operation after one that has left `before`.
    pub(crate) fn new(descriptor: &Descriptor, before: Option<Residual>) -> Self {
        let errors = vec![0.0; descriptor.count as usize];
        let before = before.filter(|before| before.fits(descriptor));
        Self { dtype: descriptor.dtype, before, errors, added: Intervals::default() }
    }

    /// What the operation leaves, if it is committed.
    pub(super) fn into_residual(self) -> Residual {
        Residual { dtype: self.dtype, errors: Arc::new(self.errors) }
    }

    /// Adds the error before to a range of the input, from `source` or in place; parts that have it are skipped. What is
    /// lost by rounding to the element type is kept for the next operation.
    pub(super) fn add(&mut self, source: Option<&View>, target: &mut [u8], range: Range<usize>) {
        let (dtype, bytes) = (self.dtype, self.dtype.bytes());
        let (before, errors) = (&self.before, &mut self.errors);
        self.added.insert(range, |new| {
            if let Some(source) = source {
                target[new.clone()].copy_from_slice(source.part(new.clone()));
            }
            let Some(before) = before else { return };
            for start in new.clone().step_by(TILE * bytes) {
                let part = start..new.end.min(start + TILE * bytes);
                let elements = part.start / bytes..part.end / bytes;
                let (mut wanted, mut reached) = ([0.0_f64; TILE], [0.0_f64; TILE]);
                let count = elements.len();
                let (wanted, reached) = (&mut wanted[..count], &mut reached[..count]);
                convert(dtype, DType::F64, &target[part.clone()], wanted.as_mut_bytes());
                for (value, error) in wanted.iter_mut().zip(&before.errors[elements.clone()]) {
                    *value += f64::from(*error);
                }
                convert(DType::F64, dtype, wanted.as_bytes(), &mut target[part.clone()]);
                convert(dtype, DType::F64, &target[part], reached.as_mut_bytes());
                record(wanted, reached, 1.0, &mut errors[elements]);
            }
        });
    }

    /// Records what is lost between elements and their quantised form, times `factor`.
    pub(super) fn note(
        &mut self,
        quantization: Quantization,
        first: u64,
        data: &[u8],
        wire: &[u8],
        factor: f64,
    ) {
        let (dtype, bytes) = (self.dtype, self.dtype.bytes());
        let count = data.len() / bytes;
        let mut decoded = vec![0; data.len()];
        dequantize(quantization, dtype, wire, &mut decoded);
        let errors = &mut self.errors[first as usize..][..count];
        let tiles = data.chunks(TILE * bytes).zip(decoded.chunks(TILE * bytes));
        for ((data, decoded), errors) in tiles.zip(errors.chunks_mut(TILE)) {
            let (mut wanted, mut reached) = ([0.0_f64; TILE], [0.0_f64; TILE]);
            let (wanted, reached) = (&mut wanted[..errors.len()], &mut reached[..errors.len()]);
            convert(dtype, DType::F64, data, wanted.as_mut_bytes());
            convert(dtype, DType::F64, decoded, reached.as_mut_bytes());
            record(wanted, reached, factor, errors);
        }
    }
}

/// Adds differences to errors. What is not finite is not carried over: it would never end.
fn record(wanted: &[f64], reached: &[f64], factor: f64, errors: &mut [f32]) {
    for ((wanted, reached), error) in wanted.iter().zip(reached).zip(errors) {
        let sum = (f64::from(*error) + (wanted - reached) * factor) as f32;
        *error = if sum.is_finite() { sum } else { 0.0 };
    }
}
