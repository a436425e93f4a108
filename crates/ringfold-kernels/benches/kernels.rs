//! Throughput of the kernels beside that of what they are measured against, so that ratios can be read off.
//!
//! Each group's `plain` entry is the yardstick: the simplest loop, compiled for the same instructions. Throughput
//! counts the bytes of one tensor (the accumulator, the floats, or what is hashed).
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringfold_kernels::{
    Level, Side, convert, dequantize, dequantize_reduce, divide, quantize, reduce_at, reduce_into_at,
    tree_hash, wire_bytes,
};
use ringfold_proto::dtype::DType;
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
use ringfold_proto::reduce_op::ReduceOp;
use std::hint::black_box;

const SIZES: [(&str, usize); 2] = [("64KiB", 64 << 10), ("64MiB", 64 << 20)];

/// Compiles a loop for the instructions of each level, as the crate does.
macro_rules! yardstick {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block) => {
        fn $name(level: Level, $($argument: $type),*) -> $result {
            #[inline(always)]
            fn plain($($argument: $type),*) -> $result $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($argument: $type),*) -> $result {
                plain($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
            fn avx512($($argument: $type),*) -> $result {
                plain($($argument),*)
            }
            match level {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: only levels of this machine are measured.
                Level::Avx2 => unsafe { avx2($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: only levels of this machine are measured.
                Level::Avx512 => unsafe { avx512($($argument),*) },
                _ => plain($($argument),*),
            }
        }
    };
}

yardstick! {
    plain_sum(accumulator: &mut [f32], other: &[f32]) -> () {
        for (accumulator, other) in accumulator.iter_mut().zip(other) {
            *accumulator += other;
        }
    }
}

yardstick! {
    plain_read(words: &[u64]) -> u64 {
        words.iter().fold(0, |all, word| all ^ word)
    }
}

/// Floats between −1 and 1, or bytes that are some.
fn floats(bytes: usize) -> Vec<f32> {
    (0..bytes / 4).map(|i| (i % 1000) as f32 / 500.0 - 1.0).collect()
}

fn tensor(dtype: DType, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    match dtype {
        DType::F16 | DType::BF16 => {
            let wide: Vec<u8> = floats(bytes * 2).iter().flat_map(|x| x.to_ne_bytes()).collect();
            convert(DType::F32, dtype, &wide, &mut data);
        }
        DType::F64 => {
            let narrow: Vec<u8> = floats(bytes / 2).iter().flat_map(|x| x.to_ne_bytes()).collect();
            convert(DType::F32, dtype, &narrow, &mut data);
        }
        _ => data
            .chunks_exact_mut(4)
            .zip(floats(bytes))
            .for_each(|(to, x)| to.copy_from_slice(&x.to_ne_bytes())),
    }
    data
}

fn reductions(c: &mut Criterion) {
    for (size, bytes) in SIZES {
        let mut group = c.benchmark_group(format!("reduce_{size}"));
        group.throughput(Throughput::Bytes(bytes as u64));
        for level in Level::available() {
            let (mut accumulator, other) = (floats(bytes), floats(bytes));
            group.bench_function(BenchmarkId::new("plain", level), |b| {
                b.iter(|| plain_sum(level, black_box(&mut accumulator), black_box(&other)));
            });
            for (dtype, op) in [
                (DType::F32, ReduceOp::Sum),
                (DType::F32, ReduceOp::Max),
                (DType::F16, ReduceOp::Sum),
                (DType::F16, ReduceOp::Max),
                (DType::BF16, ReduceOp::Sum),
                (DType::BF16, ReduceOp::Max),
                (DType::F64, ReduceOp::Sum),
                (DType::I32, ReduceOp::Sum),
                (DType::U8, ReduceOp::Max),
            ] {
                let (mut accumulator, other) = (tensor(dtype, bytes), tensor(dtype, bytes));
                group.bench_function(BenchmarkId::new(format!("{dtype}_{op}"), level), |b| {
                    b.iter(|| {
                        reduce_into_at(level, dtype, op, black_box(&mut accumulator), black_box(&other))
                    });
                });
            }
            let (left, right, mut out) =
                (tensor(DType::F32, bytes), tensor(DType::F32, bytes), vec![1; bytes]);
            group.bench_function(BenchmarkId::new("float32_sum_out_of_place", level), |b| {
                b.iter(|| {
                    reduce_at(
                        level,
                        DType::F32,
                        ReduceOp::Sum,
                        black_box(&left),
                        black_box(&right),
                        black_box(&mut out),
                    );
                });
            });
        }
        group.finish();
    }
}

fn hashes(c: &mut Criterion) {
    for (size, bytes) in SIZES {
        let mut group = c.benchmark_group(format!("hash_{size}"));
        group.throughput(Throughput::Bytes(bytes as u64));
        let words: Vec<u64> = (0..bytes as u64 / 8).collect();
        group.bench_function("plain", |b| b.iter(|| plain_read(Level::detect(), black_box(&words))));
        let data = tensor(DType::F32, bytes);
        group.bench_function("tree_hash", |b| b.iter(|| tree_hash(black_box(&data))));
        group.finish();
    }
}

fn quantizations(c: &mut Criterion) {
    for (size, bytes) in SIZES {
        let mut group = c.benchmark_group(format!("quantize_{size}"));
        group.throughput(Throughput::Bytes(bytes as u64));
        for (algorithm, integer) in [
            (QuantizationAlgorithm::MinMax, DType::U8),
            (QuantizationAlgorithm::MinMax, DType::U16),
            (QuantizationAlgorithm::ZeroPointScale, DType::I8),
        ] {
            let quantization = Quantization { algorithm, dtype: integer };
            let data = tensor(DType::F32, bytes);
            let mut wire = vec![0; wire_bytes(quantization, bytes / 4)];
            let mut out = vec![1; bytes];
            let name = format!("{algorithm:?}_{integer}");
            group.bench_function(format!("{name}_there"), |b| {
                b.iter(|| quantize(quantization, DType::F32, black_box(&data), black_box(&mut wire)));
            });
            group.bench_function(format!("{name}_back"), |b| {
                b.iter(|| dequantize(quantization, DType::F32, black_box(&wire), black_box(&mut out)));
            });
            group.bench_function(format!("{name}_there_and_back"), |b| {
                b.iter(|| {
                    quantize(quantization, DType::F32, black_box(&data), black_box(&mut wire));
                    dequantize(quantization, DType::F32, black_box(&wire), black_box(&mut out));
                });
            });
            group.bench_function(format!("{name}_back_and_sum"), |b| {
                b.iter(|| {
                    let (wire, out) = (black_box(&wire), black_box(&mut out));
                    dequantize_reduce(quantization, DType::F32, ReduceOp::Sum, wire, out, Side::Left);
                });
            });
        }
        group.finish();
    }
}

fn others(c: &mut Criterion) {
    let (size, bytes) = SIZES[0];
    let mut group = c.benchmark_group(format!("others_{size}"));
    group.throughput(Throughput::Bytes(bytes as u64));
    for dtype in [DType::F32, DType::BF16, DType::I32, DType::I64] {
        let mut data = tensor(dtype, bytes);
        group
            .bench_function(format!("divide_{dtype}"), |b| b.iter(|| divide(dtype, black_box(&mut data), 3)));
    }
    for (from, to) in [
        (DType::F32, DType::BF16),
        (DType::BF16, DType::F32),
        (DType::F32, DType::F16),
        (DType::F16, DType::F32),
    ] {
        let data = tensor(from, bytes);
        let mut out = vec![0; bytes / from.bytes() * to.bytes()];
        group.bench_function(format!("convert_{from}_to_{to}"), |b| {
            b.iter(|| convert(from, to, black_box(&data), black_box(&mut out)));
        });
    }
    group.finish();
}

criterion_group!(benches, reductions, hashes, quantizations, others);
criterion_main!(benches);
