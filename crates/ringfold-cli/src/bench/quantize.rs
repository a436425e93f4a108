//! The quantisation of measured all-reduces, such as minmax:u8.

use super::point::parse_dtype;
use ringfold::{DType, Quantization, QuantizationAlgorithm, ReduceOp};

/// Parses KIND:TYPE.
pub(crate) fn parse_quantization(text: &str) -> Result<Quantization, String> {
    let wrong = |why: &str| format!("invalid quantization {text:?}: {why}");
    let form = "must be KIND:TYPE, such as minmax:u8 or zeropoint:i8";
    let (kind, dtype) = text.split_once(':').ok_or_else(|| wrong(form))?;
    let algorithm = match kind {
        "minmax" => QuantizationAlgorithm::MinMax,
        "zeropoint" => QuantizationAlgorithm::ZeroPointScale,
        _ => return Err(wrong(form)),
    };
    let quantization = Quantization { algorithm, dtype: parse_dtype(dtype)? };
    if !quantization.supports(DType::F32, ReduceOp::Sum) {
        return Err(wrong("minmax needs u8, u16 or u32; zeropoint needs an integer of 32 bits at most"));
    }
    Ok(quantization)
}

/// The text that [`parse_quantization`] takes.
pub(crate) fn quantization_text(quantization: Quantization) -> String {
    let kind = match quantization.algorithm {
        QuantizationAlgorithm::MinMax => "minmax",
        QuantizationAlgorithm::ZeroPointScale => "zeropoint",
    };
    format!("{kind}:{}", quantization.dtype.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantizations_are_parsed_and_formatted() {
        for text in ["minmax:u8", "minmax:u16", "zeropoint:i8", "zeropoint:u16"] {
            let found = parse_quantization(text).unwrap();
            assert_eq!(parse_quantization(&quantization_text(found)), Ok(found));
        }
        for text in ["", "minmax", "minmax:i8", "minmax:f32", "zeropoint:u64", "other:u8"] {
            assert!(parse_quantization(text).is_err(), "{text}");
        }
    }
}
