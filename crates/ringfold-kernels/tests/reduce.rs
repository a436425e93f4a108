//! Reductions at every level, against the oracle.

use crate::oracle;
use crate::oracle::{Misaligned, Random};
use ringfold_kernels::{Level, reduce, reduce_at, reduce_into, reduce_into_at};
use ringfold_proto::dtype::{DType, NumberKind};
use ringfold_proto::reduce_op::ReduceOp;

const COUNT_MAX: usize = 4096;

fn supported() -> impl Iterator<Item = (DType, ReduceOp)> {
    DType::ALL
        .iter()
        .flat_map(|&dtype| ReduceOp::ALL.iter().map(move |&op| (dtype, op)))
        .filter(|(dtype, op)| op.supports(*dtype))
}

#[test]
fn every_type_and_operation_agrees_with_the_oracle_at_every_level() {
    for (dtype, op) in supported() {
        let (left, right) = oracle::operands(dtype, COUNT_MAX);
        let expected = oracle::reduce(dtype, op, &left, &right);
        for level in Level::available() {
            for count in (0..=130).chain((131..COUNT_MAX).step_by(167)).chain([COUNT_MAX - 1, COUNT_MAX]) {
                // The end of the operands, so that corner cases are in vectors and in remainders.
                for begin in [0, COUNT_MAX - count] {
                    let range = begin * dtype.bytes()..(begin + count) * dtype.bytes();
                    let (left, right) = (&left[range.clone()], &right[range.clone()]);
                    let mut out = vec![0; left.len()];
                    reduce_at(level, dtype, op, left, right, &mut out);
                    assert!(out == expected[range.clone()], "{level} {dtype} {op} of {count} from {begin}");
                    let mut accumulator = left.to_vec();
                    reduce_into_at(level, dtype, op, &mut accumulator, right);
                    assert!(
                        accumulator == expected[range],
                        "{level} {dtype} {op} in place of {count} from {begin}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_length_up_to_4096_is_reduced_within_bounds() {
    for &dtype in DType::ALL {
        let (left, right) = oracle::operands(dtype, COUNT_MAX);
        let expected = oracle::reduce(dtype, ReduceOp::Sum, &left, &right);
        for level in Level::available() {
            let mut accumulator = left.clone();
            for count in 0..=COUNT_MAX {
                let len = count * dtype.bytes();
                reduce_into_at(level, dtype, ReduceOp::Sum, &mut accumulator[..len], &right[..len]);
                assert!(accumulator[..len] == expected[..len], "{level} {dtype} of {count}");
                let beyond = len..(len + 64).min(left.len());
                assert!(accumulator[beyond.clone()] == left[beyond], "{level} {dtype} beyond {count}");
                accumulator[..len].copy_from_slice(&left[..len]);
            }
        }
    }
}

#[test]
fn alignment_of_operands_and_result_does_not_matter() {
    for (dtype, op) in supported() {
        let (left, right) = oracle::operands(dtype, 600);
        let expected = oracle::reduce(dtype, op, &left, &right);
        for level in Level::available() {
            for (a, b, c) in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 5, 7), (31, 33, 63), (2, 4, 8)]
            {
                let (left, right) = (Misaligned::new(&left, a), Misaligned::new(&right, b));
                let mut out = Misaligned::new(&expected, c);
                out.bytes_mut().fill(0);
                reduce_at(level, dtype, op, left.bytes(), right.bytes(), out.bytes_mut());
                assert!(out.bytes() == expected, "{level} {dtype} {op} at {a}, {b}, {c}");
            }
        }
    }
}

#[test]
fn every_operation_commutes_bit_for_bit() {
    for (dtype, op) in supported() {
        let (left, right) = oracle::operands(dtype, 1000);
        let (mut forth, mut back) = (vec![0; left.len()], vec![0; left.len()]);
        reduce(dtype, op, &left, &right, &mut forth);
        reduce(dtype, op, &right, &left, &mut back);
        assert_eq!(forth, back, "{dtype} {op}");
        let mut accumulator = left.clone();
        reduce_into(dtype, op, &mut accumulator, &right);
        assert_eq!(accumulator, forth, "{dtype} {op}");
        let mut accumulator = right.clone();
        reduce_into(dtype, op, &mut accumulator, &left);
        assert_eq!(accumulator, forth, "{dtype} {op}");
    }
}

/// All pairs would take too long; every 16-bit float is combined with itself and a few hundred others.
#[test]
fn sums_and_products_of_halves_round_to_nearest_even() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    let mut random = Random(7);
    for dtype in [DType::F16, DType::BF16] {
        for round in 0..6 {
            let other: Vec<u8> = match round {
                0 => all.clone(),
                _ => (0..=u16::MAX).flat_map(|_| (random.word() as u16).to_ne_bytes()).collect(),
            };
            for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
                let expected = oracle::reduce(dtype, op, &all, &other);
                for level in Level::available() {
                    let mut accumulator = all.clone();
                    reduce_into_at(level, dtype, op, &mut accumulator, &other);
                    assert!(accumulator == expected, "{level} {dtype} {op}");
                }
            }
        }
    }
}

#[test]
fn nan_results_are_canonical() {
    let strange = 0xffa1_2345_u32.to_ne_bytes();
    let one = 1.0_f32.to_ne_bytes();
    let canonical = 0x7fc0_0000_u32.to_ne_bytes();
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
        for (left, right) in [(strange, one), (one, strange), (strange, strange)] {
            let mut out = [0; 4];
            reduce(DType::F32, op, &left, &right, &mut out);
            assert_eq!(out, canonical, "{op}");
        }
    }
    let mut out = [0; 4];
    let (infinity, minus) = (f32::INFINITY.to_ne_bytes(), f32::NEG_INFINITY.to_ne_bytes());
    reduce(DType::F32, ReduceOp::Sum, &infinity, &minus, &mut out);
    assert_eq!(out, canonical);
}

/// Floats of two blocks and a remainder, which are combined in different ways.
#[test]
fn a_nan_is_canonical_at_every_position() {
    const COUNT: usize = 2 * 64 + 37;
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let size = dtype.bytes();
        let plain: Vec<u8> = (0..COUNT).flat_map(|i| number(dtype, i as f64 - 80.0)).collect();
        let nan = number(dtype, -f64::NAN);
        let infinities = [number(dtype, f64::INFINITY), number(dtype, f64::NEG_INFINITY)];
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
            for at in 0..COUNT {
                let with = |value: &[u8]| {
                    let mut operand = plain.clone();
                    operand[at * size..][..size].copy_from_slice(value);
                    operand
                };
                // A NaN on the left, on the right, and one that the sum makes.
                let operands = [
                    (with(&nan), plain.clone()),
                    (plain.clone(), with(&nan)),
                    (with(&infinities[0]), with(&infinities[1])),
                ];
                for (left, right) in &operands {
                    let expected = oracle::reduce(dtype, op, left, right);
                    for level in Level::available() {
                        let mut out = vec![0xa5; left.len()];
                        reduce_at(level, dtype, op, left, right, &mut out);
                        assert!(out == expected, "{level} {dtype} {op} at {at}");
                        let mut accumulator = left.clone();
                        reduce_into_at(level, dtype, op, &mut accumulator, right);
                        assert!(accumulator == expected, "{level} {dtype} {op} in place at {at}");
                    }
                }
            }
        }
    }
}

/// The bytes of a float; of a NaN with its sign, and not canonical.
fn number(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F16 => half::f16::from_f64(value).to_ne_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(value).to_ne_bytes().to_vec(),
        DType::F32 => (value as f32).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

/// So that the tests of all levels test NEON, also in an emulated processor.
#[cfg(target_arch = "aarch64")]
#[test]
fn neon_is_detected() {
    assert_eq!(Level::detect(), Level::Neon);
}

#[test]
fn negative_zero_is_less_than_positive_zero() {
    for (dtype, negative) in
        [(DType::F32, (-0.0_f32).to_ne_bytes().to_vec()), (DType::F64, (-0.0_f64).to_ne_bytes().to_vec())]
    {
        let positive = vec![0; negative.len()];
        for (op, expected) in [(ReduceOp::Max, &positive), (ReduceOp::Min, &negative)] {
            for (left, right) in [(&positive, &negative), (&negative, &positive)] {
                let mut out = vec![1; negative.len()];
                reduce(dtype, op, left, right, &mut out);
                assert_eq!(&out, expected, "{dtype} {op}");
            }
        }
    }
}

#[test]
fn a_complex_sum_is_the_sum_of_its_parts() {
    assert_eq!(DType::C64.kind(), NumberKind::Complex);
    let left = [1.5_f32.to_ne_bytes(), (-2.0_f32).to_ne_bytes()].concat();
    let right = [0.25_f32.to_ne_bytes(), 5.0_f32.to_ne_bytes()].concat();
    let mut out = vec![0; 8];
    reduce(DType::C64, ReduceOp::Sum, &left, &right, &mut out);
    assert_eq!(out, [1.75_f32.to_ne_bytes(), 3.0_f32.to_ne_bytes()].concat());
}

#[test]
#[should_panic(expected = "operands differ in length")]
fn operands_of_different_length_panic() {
    reduce(DType::U8, ReduceOp::Sum, &[1], &[1, 2], &mut [0]);
}

#[test]
#[should_panic(expected = "not a whole number")]
fn a_partial_element_panics() {
    reduce(DType::F32, ReduceOp::Sum, &[1; 6], &[1; 6], &mut [0; 6]);
}

#[test]
#[should_panic(expected = "unsupported reduction: bxor of float32")]
fn an_unsupported_operation_panics() {
    reduce(DType::F32, ReduceOp::BitXor, &[], &[], &mut []);
}
