//! Divisions, multiplications and conversions at every level, against naive code.

use crate::oracle;
use crate::oracle::{Misaligned, Random};
use half::{bf16, f16};
use ringfold_kernels::{Level, convert_at, divide_at, scale_at, scale_in_place_at};
use ringfold_proto::dtype::DType;

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Maps each element: integers by `integer`, floats and parts of complex numbers by `float`; f16 and bf16 as f32.
fn map(
    dtype: DType,
    data: &[u8],
    integer: impl Fn(i128, i128, i128) -> i128,
    single: impl Fn(f32) -> f32,
    double: impl Fn(f64) -> f64,
) -> Vec<u8> {
    macro_rules! integers {
        ($t:ident) => {
            data.chunks(dtype.bytes())
                .flat_map(|bytes| {
                    let value = $t::from_ne_bytes(bytes.try_into().unwrap()).into();
                    (integer(value, $t::MIN.into(), $t::MAX.into()) as $t).to_ne_bytes()
                })
                .collect()
        };
    }
    match dtype {
        DType::U8 => integers!(u8),
        DType::U16 => integers!(u16),
        DType::U32 => integers!(u32),
        DType::U64 => integers!(u64),
        DType::I8 => integers!(i8),
        DType::I16 => integers!(i16),
        DType::I32 => integers!(i32),
        DType::I64 => integers!(i64),
        DType::F16 => data
            .chunks(2)
            .flat_map(|b| oracle::f16_bytes(single(f16::from_ne_bytes([b[0], b[1]]).to_f32())))
            .collect(),
        DType::BF16 => data
            .chunks(2)
            .flat_map(|b| oracle::bf16_bytes(single(bf16::from_ne_bytes([b[0], b[1]]).to_f32())))
            .collect(),
        DType::F32 | DType::C64 => data
            .chunks(4)
            .flat_map(|b| {
                let value = single(f32::from_ne_bytes(b.try_into().unwrap()));
                (if value.is_nan() { f32::NAN } else { value }).to_ne_bytes()
            })
            .collect(),
        DType::F64 | DType::C128 => data
            .chunks(8)
            .flat_map(|b| {
                let value = double(f64::from_ne_bytes(b.try_into().unwrap()));
                (if value.is_nan() { f64::NAN } else { value }).to_ne_bytes()
            })
            .collect(),
    }
}

#[test]
fn division_truncates_integers_toward_zero_and_rounds_floats() {
    for &dtype in DType::ALL {
        let (data, _) = oracle::operands(dtype, 1500);
        for by in [1, 2, 3, 7, 8, 100, 127, 128, 255, 256, 65_537, 1 << 31, 1 << 33, 1 << 63, u64::MAX] {
            let expected = map(dtype, &data, |x, _, _| x / by as i128, |x| x / by as f32, |x| x / by as f64);
            for level in Level::available() {
                for offset in [0, 1] {
                    let mut out = Misaligned::new(&data, offset);
                    divide_at(level, dtype, out.bytes_mut(), by);
                    assert!(out.bytes() == expected, "{level} {dtype} by {by}");
                }
            }
        }
    }
}

#[test]
fn every_u32_near_a_multiple_is_divided_exactly() {
    for by in [3_u64, 10, 641, 65_535, 65_537, 4_294_967_295] {
        let data: Vec<u32> =
            (0..2000).flat_map(|i| [i * by, i * by + by - 1]).filter_map(|x| u32::try_from(x).ok()).collect();
        let mut bytes: Vec<u8> = data.iter().flat_map(|x| x.to_ne_bytes()).collect();
        divide_at(Level::detect(), DType::U32, &mut bytes, by);
        let expected: Vec<u8> =
            data.iter().flat_map(|x| ((u64::from(*x) / by) as u32).to_ne_bytes()).collect();
        assert!(bytes == expected, "by {by}");
    }
}

#[test]
fn integers_are_exact_for_integral_factors_and_saturate_for_others() {
    for &dtype in DType::ALL {
        let (data, _) = oracle::operands(dtype, 1500);
        for factor in [0.0, 1.0, -1.0, 3.0, 1e15, 0.5, -0.25, 1.5, 1e300, f64::INFINITY, f64::NAN] {
            let integer = |x: i128, min: i128, max: i128| {
                if factor.fract() == 0.0 && factor.abs() <= 9_007_199_254_740_992.0 {
                    x.wrapping_mul(factor as i128)
                } else {
                    ((x as f64 * factor) as i128).clamp(min, max)
                }
            };
            let expected = map(dtype, &data, integer, |x| x * factor as f32, |x| x * factor);
            for level in Level::available() {
                let mut out = vec![0; data.len()];
                scale_at(level, dtype, &data, &mut out, factor);
                assert!(out == expected, "{level} {dtype} times {factor}");
                let mut out = Misaligned::new(&data, 1);
                scale_in_place_at(level, dtype, out.bytes_mut(), factor);
                assert!(out.bytes() == expected, "{level} {dtype} times {factor} in place");
            }
        }
    }
}

/// All finite magnitudes of a 16-bit type, in order; the index is the bit pattern.
fn magnitudes(dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F16 => (0..0x7c00).map(|bits| f16::from_bits(bits).to_f64()).collect(),
        _ => (0..0x7f80).map(|bits| bf16::from_bits(bits).to_f64()).collect(),
    }
}

/// Rounds by comparing both neighbours.
fn nearest(magnitudes: &[f64], nan: u16, value: f64) -> u16 {
    if value.is_nan() {
        return nan;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let above = magnitudes.partition_point(|x| *x < value.abs());
    if above == 0 {
        return sign;
    }
    // Infinity is where the next number would be.
    let beyond = 2.0 * magnitudes[magnitudes.len() - 1] - magnitudes[magnitudes.len() - 2];
    let next = magnitudes.get(above).copied().unwrap_or(beyond);
    let (down, up) = (value.abs() - magnitudes[above - 1], next - value.abs());
    let is_up = up < down || (up == down && above.is_multiple_of(2));
    sign | (above - usize::from(!is_up)) as u16
}

#[test]
fn conversions_to_halves_round_once_to_nearest_even() {
    let mut random = Random(3);
    for dtype in [DType::F16, DType::BF16] {
        let magnitudes = magnitudes(dtype);
        let nan = if dtype == DType::F16 { 0x7e00 } else { 0x7fc0 };
        let mut values =
            vec![0.0, -0.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 1e-320];
        for _ in 0..3000 {
            let i = random.word() as usize % (magnitudes.len() - 1);
            // Ties, and numbers that differ from ties only in f64.
            let tie = (magnitudes[i] + magnitudes[i + 1]) / 2.0;
            let sign = if random.word() & 1 == 0 { 1.0 } else { -1.0 };
            values
                .extend([tie, tie.next_up(), tie.next_down(), magnitudes[i], tie * 1.0001].map(|x| x * sign));
            values.push(f64::from(f32::from_bits(random.word() as u32)));
        }
        for from in [DType::F32, DType::F64] {
            let data: Vec<u8> = match from {
                DType::F32 => values.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect(),
                _ => values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            };
            let expected: Vec<u8> = values
                .iter()
                .map(|x| if from == DType::F32 { f64::from(*x as f32) } else { *x })
                .flat_map(|x| nearest(&magnitudes, nan, x).to_ne_bytes())
                .collect();
            for level in Level::available() {
                let mut out = vec![0; 2 * values.len()];
                convert_at(level, from, dtype, &data, &mut out);
                assert!(out == expected, "{level} {from} to {dtype}");
            }
        }
    }
}

#[test]
fn every_16_bit_float_round_trips_through_wider_floats() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for dtype in [DType::F16, DType::BF16] {
        let expected = map(dtype, &all, |x, _, _| x, |x| x, |x| x);
        for wide in [DType::F32, DType::F64] {
            for level in Level::available() {
                let mut out = vec![0; wide.bytes() << 16];
                convert_at(level, dtype, wide, &all, &mut out);
                if wide == DType::F32 {
                    let values = all.chunks(2).map(|b| match dtype {
                        DType::F16 => f16::from_ne_bytes([b[0], b[1]]).to_f32(),
                        _ => bf16::from_ne_bytes([b[0], b[1]]).to_f32(),
                    });
                    let singles: Vec<u8> =
                        values.flat_map(|x| if x.is_nan() { f32::NAN } else { x }.to_ne_bytes()).collect();
                    assert!(out == singles, "{level} {dtype}");
                }
                let mut back = vec![0; all.len()];
                convert_at(level, wide, dtype, &out, &mut back);
                assert!(back == expected, "{level} {dtype} through {wide}");
            }
        }
    }
}

#[test]
fn converting_to_the_same_type_changes_only_non_canonical_nans() {
    for dtype in FLOATS {
        let (data, _) = oracle::operands(dtype, 1000);
        let expected = map(dtype, &data, |x, _, _| x, |x| x, |x| x);
        for level in Level::available() {
            let mut out = vec![0; data.len()];
            convert_at(level, dtype, dtype, &data, &mut out);
            assert!(out == expected, "{level} {dtype}");
        }
    }
}
