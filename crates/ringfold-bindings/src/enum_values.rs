//! Conversion of the numbers of `pccl.h`'s enums.

use crate::result::CallError;
use ringfold::{DType, Quantization, QuantizationAlgorithm, ReduceOp, SyncStrategy};

/// Converts a `pcclDataType_t`.
pub fn parse_dtype(number: i32) -> Result<DType, CallError> {
    // pccl.h does not name the types after F64.
    let known = u8::try_from(number).ok().filter(|n| *n <= DType::F64 as u8).and_then(DType::from_number);
    known.ok_or_else(|| CallError::invalid_argument(format!("unknown data type {number}")))
}

/// Converts a `pcclRedOp_t`.
pub fn parse_reduce_op(number: i32) -> Result<ReduceOp, CallError> {
    let known =
        u8::try_from(number).ok().filter(|n| *n <= ReduceOp::Min as u8).and_then(ReduceOp::from_number);
    known.ok_or_else(|| CallError::invalid_argument(format!("unknown reduce operation {number}")))
}

/// Converts an algorithm and its target type; `None` for algorithm 0, whatever the type.
pub fn parse_quantization(algorithm: i32, quantized: i32) -> Result<Option<Quantization>, CallError> {
    let algorithm = match algorithm {
        0 => return Ok(None),
        1 => QuantizationAlgorithm::MinMax,
        2 => QuantizationAlgorithm::ZeroPointScale,
        other => return Err(CallError::invalid_argument(format!("unknown quantization algorithm {other}"))),
    };
    Ok(Some(Quantization { algorithm, dtype: parse_dtype(quantized)? }))
}

/// Checks a `pcclDistributionHint_t`. Hints are not used.
pub fn check_distribution_hint(number: i32) -> Result<(), CallError> {
    if (0..=2).contains(&number) {
        return Ok(());
    }
    Err(CallError::invalid_argument(format!("unknown distribution hint {number}")))
}

/// Converts a `pcclSharedStateSyncStrategy_t`.
pub fn parse_strategy(number: i32) -> Result<SyncStrategy, CallError> {
    match number {
        0 => Ok(SyncStrategy::EnforcePopular),
        1 => Ok(SyncStrategy::ReceiveOnly),
        2 => Ok(SyncStrategy::SendOnly),
        other => Err(CallError::invalid_argument(format!("unknown sync strategy {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_are_rejected() {
        for number in [-1, 12, 13, 256, i32::MAX] {
            assert!(parse_dtype(number).is_err() && parse_reduce_op(number).is_err());
            assert!(parse_strategy(number).is_err());
        }
        assert!(parse_reduce_op(5).is_err(), "pccl.h has no premultiplied sum");
        assert_eq!(parse_dtype(9), Ok(DType::BF16));
    }

    #[test]
    fn without_an_algorithm_the_quantised_type_may_be_anything() {
        assert_eq!(parse_quantization(0, 99), Ok(None));
        assert!(parse_quantization(1, 99).is_err() && parse_quantization(3, 0).is_err());
    }
}
