//! The values of `pccl.h`'s enums, and what they stand for.

use crate::result::Failure;
use ringfold::{DType, Quantization, QuantizationAlgorithm, ReduceOp, SyncStrategy};

/// The element type with this number.
pub fn dtype(number: i32) -> Result<DType, Failure> {
    // The types after these have no name in pccl.h.
    let known = u8::try_from(number).ok().filter(|n| *n <= DType::F64 as u8).and_then(DType::from_number);
    known.ok_or_else(|| Failure::argument(format!("{number} is no data type")))
}

/// The operation with this number.
pub fn operation(number: i32) -> Result<ReduceOp, Failure> {
    let known =
        u8::try_from(number).ok().filter(|n| *n <= ReduceOp::Min as u8).and_then(ReduceOp::from_number);
    known.ok_or_else(|| Failure::argument(format!("{number} is no reduce operation")))
}

/// The quantisation by the algorithm with this number, if it is one, to the type with that number.
pub fn quantization(algorithm: i32, quantized: i32) -> Result<Option<Quantization>, Failure> {
    let algorithm = match algorithm {
        0 => return Ok(None),
        1 => QuantizationAlgorithm::MinMax,
        2 => QuantizationAlgorithm::ZeroPointScale,
        other => return Err(Failure::argument(format!("{other} is no quantisation algorithm"))),
    };
    Ok(Some(Quantization { algorithm, dtype: dtype(quantized)? }))
}

/// Hints are looked at, and not used yet.
pub fn distribution_hint(number: i32) -> Result<(), Failure> {
    if (0..=2).contains(&number) {
        return Ok(());
    }
    Err(Failure::argument(format!("{number} is no distribution hint")))
}

/// The strategy with this number.
pub fn strategy(number: i32) -> Result<SyncStrategy, Failure> {
    match number {
        0 => Ok(SyncStrategy::EnforcePopular),
        1 => Ok(SyncStrategy::ReceiveOnly),
        2 => Ok(SyncStrategy::SendOnly),
        other => Err(Failure::argument(format!("{other} is no strategy"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_enum_values_are_refused() {
        for number in [-1, 12, 13, 256, i32::MAX] {
            assert!(dtype(number).is_err() && operation(number).is_err() && strategy(number).is_err());
        }
        assert!(operation(5).is_err(), "pccl.h has no premultiplied sum");
        assert_eq!(dtype(9), Ok(DType::BF16));
    }

    #[test]
    fn without_an_algorithm_the_quantised_type_may_be_anything() {
        assert_eq!(quantization(0, 99), Ok(None));
        assert!(quantization(1, 99).is_err() && quantization(3, 0).is_err());
    }
}
