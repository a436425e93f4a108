//! The documented properties of quantisation, at every level.

use crate::oracle::Random;
use half::{bf16, f16};
use proptest::prelude::*;
use ringfold_kernels::{
    Level, dequantize, dequantize_at, dequantize_reduce_at, quantize, quantize_at, reduce_into_at, wire_bytes,
};
use ringfold_proto::dtype::DType;
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
use ringfold_proto::reduce_op::ReduceOp;

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn quantizations() -> Vec<Quantization> {
    [QuantizationAlgorithm::MinMax, QuantizationAlgorithm::ZeroPointScale]
        .into_iter()
        .flat_map(|algorithm| DType::ALL.iter().map(move |&dtype| Quantization { algorithm, dtype }))
        .filter(|quantization| quantization.supports(DType::F32, ReduceOp::Sum))
        .collect()
}

fn pack(dtype: DType, values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&x| match dtype {
            DType::F16 => f16::from_f64(x).to_ne_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(x).to_ne_bytes().to_vec(),
            DType::F32 => (x as f32).to_ne_bytes().to_vec(),
            _ => x.to_ne_bytes().to_vec(),
        })
        .collect()
}

fn unpack(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks(dtype.bytes())
        .map(|b| match dtype {
            DType::F16 => f16::from_ne_bytes([b[0], b[1]]).to_f64(),
            DType::BF16 => bf16::from_ne_bytes([b[0], b[1]]).to_f64(),
            DType::F32 => f32::from_ne_bytes(b.try_into().unwrap()).into(),
            _ => f64::from_ne_bytes(b.try_into().unwrap()),
        })
        .collect()
}

fn round_trip(quantization: Quantization, dtype: DType, values: &[f64]) -> Vec<f64> {
    let data = pack(dtype, values);
    let mut wire = vec![0xee; wire_bytes(quantization, values.len())];
    quantize(quantization, dtype, &data, &mut wire);
    let mut out = vec![0xee; data.len()];
    dequantize(quantization, dtype, &wire, &mut out);
    unpack(dtype, &out)
}

/// The relative rounding error of the type.
fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-24),
        _ => 2f64.powi(-53),
    }
}

fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::MAX.to_f64(),
        DType::BF16 => bf16::MAX.to_f64(),
        DType::F32 => f32::MAX.into(),
        _ => f64::MAX,
    }
}

#[test]
fn equal_elements_are_exact() {
    for quantization in quantizations() {
        for dtype in FLOATS {
            for value in [42.0, 85.0, -42.0, 0.0, 1e-7, 0.1, largest(dtype), -largest(dtype)] {
                let value = unpack(dtype, &pack(dtype, &[value]))[0];
                for count in [1, 2, 100] {
                    let out = round_trip(quantization, dtype, &vec![value; count]);
                    assert_eq!(out, vec![value; count], "{quantization:?} {dtype}");
                }
            }
        }
        assert_eq!(round_trip(quantization, DType::F64, &[5e-324; 3]), [5e-324; 3]);
    }
}

#[test]
fn the_error_is_at_most_half_a_step() {
    let mut random = Random(11);
    for quantization in quantizations() {
        let levels = 2f64.powi(8 * quantization.dtype.bytes() as i32) - 1.0;
        for dtype in FLOATS {
            for (low, high) in
                [(-1.0, 1.0), (0.0, 1.0), (-9.0, -8.0), (100.0, 101.0), (-1e-3, 5.0), (-60000.0, 3.0)]
            {
                let values: Vec<f64> =
                    (0..1000).map(|_| low + (high - low) * (random.unit() + 1.0) / 2.0).collect();
                let values = unpack(dtype, &pack(dtype, &values));
                let out = round_trip(quantization, dtype, &values);
                let (mut min, mut max) =
                    values.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
                if quantization.algorithm == QuantizationAlgorithm::ZeroPointScale {
                    (min, max) = (min.min(0.0), max.max(0.0));
                }
                // Since zero is an integer, the ends of the range may be half a step beyond the last level.
                let half_step = (max - min) / levels / 2.0;
                let allowed = half_step * 1.000001 + unit_roundoff(dtype) * min.abs().max(max.abs()) * 1.01;
                for (value, out) in values.iter().zip(&out) {
                    assert!((value - out).abs() <= allowed, "{quantization:?} {dtype}: {value} became {out}");
                }
            }
        }
    }
}

#[test]
fn minmax_keeps_both_ends_and_order() {
    for dtype in [DType::U8, DType::U16, DType::U32] {
        let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype };
        let values: Vec<f64> = (0..=1000).map(|i| f64::from((-3.7 + 0.01 * f64::from(i)) as f32)).collect();
        let out = round_trip(quantization, DType::F32, &values);
        assert_eq!((out[0], out[1000]), (values[0], values[1000]));
        assert!(out.is_sorted());
    }
}

#[test]
fn zero_is_exact_under_zero_point_quantisation() {
    for quantization in quantizations() {
        if quantization.algorithm == QuantizationAlgorithm::ZeroPointScale {
            for values in [[-3.0, 0.0, 5.0], [0.0, 7.0, 0.1], [-2.0, -0.3, 0.0]] {
                let out = round_trip(quantization, DType::F32, &values.map(|x| f64::from(x as f32)));
                for (value, out) in values.iter().zip(out) {
                    assert!(*value != 0.0 || out == 0.0);
                }
            }
        }
    }
}

#[test]
fn a_chunk_with_nan_or_infinity_is_nan_as_a_whole() {
    for quantization in quantizations() {
        for dtype in FLOATS {
            for poison in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                for position in [0, 33, 99] {
                    let mut values = vec![1.0; 100];
                    values[position] = poison;
                    let out = round_trip(quantization, dtype, &values);
                    assert!(out.iter().all(|x| x.is_nan()), "{quantization:?} {dtype} {poison}");
                }
            }
        }
    }
}

#[test]
fn ranges_beyond_the_largest_float_stay_finite_and_close() {
    for quantization in quantizations() {
        let levels = 2f64.powi(8 * quantization.dtype.bytes() as i32) - 1.0;
        for dtype in FLOATS {
            let max = largest(dtype);
            let values = [-max, max, 0.0, max / 2.0, -max / 3.0, max, 1.0];
            let values = unpack(dtype, &pack(dtype, &values));
            for (value, out) in values.iter().zip(round_trip(quantization, dtype, &values)) {
                assert!(out.is_finite());
                let error = value / 2.0 - out / 2.0;
                assert!(
                    error.abs() <= max / levels + unit_roundoff(dtype) * max,
                    "{quantization:?} {dtype} {value} {out}"
                );
            }
        }
    }
}

#[test]
fn an_empty_chunk_has_only_parameters() {
    for quantization in quantizations() {
        assert_eq!(wire_bytes(quantization, 0), 16);
        assert_eq!(round_trip(quantization, DType::F32, &[]), [0.0; 0]);
    }
}

#[test]
fn subnormal_ranges_never_leave_the_range() {
    for quantization in quantizations() {
        let values = [0.0, 5e-324, 1e-320, 2e-310];
        for out in round_trip(quantization, DType::F64, &values) {
            assert!((0.0..=2e-310).contains(&out), "{quantization:?} {out}");
        }
    }
}

#[test]
fn all_levels_write_and_read_the_same_bytes() {
    let mut random = Random(5);
    for quantization in quantizations() {
        for dtype in FLOATS {
            for count in [0, 1, 7, 31, 32, 33, 64, 1000, 4096] {
                let values: Vec<f64> = (0..count).map(|_| random.unit() * 1000.0).collect();
                let data = pack(dtype, &values);
                let mut expected = None;
                for level in Level::available() {
                    let mut wire = vec![0; wire_bytes(quantization, count) + 1];
                    // One byte off, so that integers and parameters are misaligned.
                    quantize_at(level, quantization, dtype, &data, &mut wire[1..]);
                    let mut out = vec![0; data.len()];
                    dequantize_at(level, quantization, dtype, &wire[1..], &mut out);
                    let result = (wire, out);
                    assert!(
                        expected.get_or_insert_with(|| result.clone()) == &result,
                        "{level} {quantization:?} {dtype}"
                    );
                }
            }
        }
    }
}

#[test]
fn fused_reduction_equals_dequantising_and_reducing() {
    let mut random = Random(9);
    for quantization in quantizations() {
        for dtype in FLOATS {
            for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max] {
                let count = 1333;
                let values: Vec<f64> = (0..count).map(|_| random.unit()).collect();
                let mut wire = vec![0; wire_bytes(quantization, count)];
                quantize(quantization, dtype, &pack(dtype, &values), &mut wire);
                let accumulator = pack(dtype, &(0..count).map(|_| random.unit()).collect::<Vec<_>>());
                let mut dequantized = vec![0; accumulator.len()];
                dequantize(quantization, dtype, &wire, &mut dequantized);
                for level in Level::available() {
                    let mut expected = accumulator.clone();
                    reduce_into_at(level, dtype, op, &mut expected, &dequantized);
                    let mut fused = accumulator.clone();
                    dequantize_reduce_at(level, quantization, dtype, op, &wire, &mut fused);
                    assert!(fused == expected, "{level} {quantization:?} {dtype} {op}");
                }
            }
        }
    }
}

#[test]
fn the_wire_is_little_endian_with_the_range_in_front() {
    let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U16 };
    let mut wire = vec![0; wire_bytes(quantization, 3)];
    quantize(quantization, DType::F32, &pack(DType::F32, &[-1.0, 3.0, 1.0]), &mut wire);
    let expected = [(-1.0_f64).to_le_bytes(), 3.0_f64.to_le_bytes()].concat();
    assert_eq!(wire[..16], expected);
    assert_eq!(wire[16..], [0, 0, 0xff, 0xff, 0x00, 0x80]);
}

#[test]
fn parameters_out_of_order_or_not_finite_give_nan() {
    for quantization in quantizations() {
        let is_minmax = quantization.algorithm == QuantizationAlgorithm::MinMax;
        for (first, second) in [(f64::NAN, 1.0), (0.0, f64::INFINITY), (f64::NEG_INFINITY, 0.0), (2.0, 1.0)] {
            if !is_minmax && first == 2.0 {
                continue;
            }
            let mut wire = vec![7; wire_bytes(quantization, 5)];
            wire[..8].copy_from_slice(&first.to_le_bytes());
            wire[8..16].copy_from_slice(&second.to_le_bytes());
            let mut out = vec![0; 20];
            dequantize(quantization, DType::F32, &wire, &mut out);
            assert_eq!(out, [f32::NAN.to_ne_bytes(); 5].concat());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes are read without a panic, identically at every level, and never as a non-canonical NaN or infinity.
    #[test]
    fn any_wire_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 16 + 4 * 40), ends in any::<[f64; 2]>(), plausible: bool) {
        let mut bytes = bytes;
        if plausible {
            bytes[..8].copy_from_slice(&ends[0].to_le_bytes());
            bytes[8..16].copy_from_slice(&ends[1].to_le_bytes());
        }
        for quantization in quantizations() {
            let wire = &bytes[..wire_bytes(quantization, 40)];
            for dtype in FLOATS {
                let mut expected = None;
                for level in Level::available() {
                    let mut out = vec![0; 40 * dtype.bytes()];
                    dequantize_at(level, quantization, dtype, wire, &mut out);
                    prop_assert!(unpack(dtype, &out).iter().all(|x| !x.is_infinite()));
                    prop_assert_eq!(expected.get_or_insert_with(|| out.clone()), &out);
                }
            }
        }
    }

    /// All data round-trips, identically at every level.
    #[test]
    fn any_elements_can_be_sent(data in proptest::collection::vec(any::<u8>(), 8 * 37)) {
        for quantization in quantizations() {
            for dtype in FLOATS {
                let mut expected = None;
                for level in Level::available() {
                    let count = data.len() / dtype.bytes();
                    let mut wire = vec![0; wire_bytes(quantization, count)];
                    quantize_at(level, quantization, dtype, &data, &mut wire);
                    prop_assert_eq!(expected.get_or_insert_with(|| wire.clone()), &wire);
                }
            }
        }
    }
}
