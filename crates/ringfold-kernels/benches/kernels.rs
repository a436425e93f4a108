//! Throughput of the kernels, compared with baselines.
//!
//! Each group's `plain` entry is the baseline: the simplest loop, compiled for the same instruction set. Throughput
//! counts the bytes of one tensor (the accumulator, the floats, or the hashed bytes).

mod stopwatch;

use ringfold_kernels::{
    Level, convert, dequantize, dequantize_reduce, divide, quantize, reduce_at, reduce_into_at, tree_hash,
    wire_bytes,
};
use ringfold_proto::dtype::DType;
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
use ringfold_proto::reduce_op::ReduceOp;
use std::hint::black_box;
use stopwatch::{compare, measure};

const SIZES: [(&str, usize); 2] = [("64KiB", 64 << 10), ("64MiB", 64 << 20)];

/// Compiles a loop for the instruction set of each level, as the crate does.
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
                // SAFETY: only supported levels are measured.
                Level::Avx2 => unsafe { avx2($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: only supported levels are measured.
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

/// Floats between −1 and 1.
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

/// A tensor at `skew` bytes after the begin of a page, so that operands neither cross cache lines nor alias.
struct Placed {
    memory: Vec<u8>,
    begin: usize,
}

impl Placed {
    fn new(tensor: &[u8], skew: usize) -> Self {
        let mut memory = vec![0; tensor.len() + 4096 + skew];
        let begin = memory.as_ptr().align_offset(4096) + skew;
        memory[begin..][..tensor.len()].copy_from_slice(tensor);
        Self { memory, begin }
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.begin..][..len]
    }

    fn floats(&mut self, len: usize) -> &mut [f32] {
        // SAFETY: all bits are valid as f32.
        let (before, floats, after) = unsafe { self.bytes(len).align_to_mut() };
        assert!(before.is_empty() && after.is_empty());
        floats
    }
}

/// Sums in place beside the plain loop of f32, in turns.
fn sums_against_plain() {
    for (size, bytes) in [("12KiB", 12 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20), ("64MiB", 64 << 20)] {
        for level in Level::available() {
            for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
                let place = |dtype, skew| Placed::new(&tensor(dtype, bytes), skew);
                let (mut a, mut b) = (place(DType::F32, 0), place(DType::F32, 512));
                let (a, b) = (a.floats(bytes), b.floats(bytes));
                let (mut c, mut d) = (place(dtype, 0), place(dtype, 512));
                let (c, d) = (c.bytes(bytes), d.bytes(bytes));
                compare(
                    &format!("against_plain_{size}/{dtype}_sum/{level}"),
                    bytes,
                    || plain_sum(level, black_box(a), black_box(b)),
                    || reduce_into_at(level, dtype, ReduceOp::Sum, black_box(c), black_box(d)),
                );
            }
        }
    }
}

fn reductions() {
    for (size, bytes) in SIZES {
        let row = |name: &str| format!("reduce_{size}/{name}");
        for level in Level::available() {
            let (mut accumulator, other) = (floats(bytes), floats(bytes));
            measure(&row(&format!("plain/{level}")), Some(bytes), || {
                plain_sum(level, black_box(&mut accumulator), black_box(&other))
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
                measure(&row(&format!("{dtype}_{op}/{level}")), Some(bytes), || {
                    reduce_into_at(level, dtype, op, black_box(&mut accumulator), black_box(&other))
                });
            }
            let (left, right, mut out) =
                (tensor(DType::F32, bytes), tensor(DType::F32, bytes), vec![1; bytes]);
            measure(&row(&format!("float32_sum_out_of_place/{level}")), Some(bytes), || {
                reduce_at(
                    level,
                    DType::F32,
                    ReduceOp::Sum,
                    black_box(&left),
                    black_box(&right),
                    black_box(&mut out),
                );
            });
        }
    }
}

fn hashes() {
    for (size, bytes) in SIZES {
        let row = |name: &str| format!("hash_{size}/{name}");
        let words: Vec<u64> = (0..bytes as u64 / 8).collect();
        measure(&row("plain"), Some(bytes), || plain_read(Level::detect(), black_box(&words)));
        let data = tensor(DType::F32, bytes);
        measure(&row("tree_hash"), Some(bytes), || tree_hash(black_box(&data)));
    }
}

fn quantizations() {
    for (size, bytes) in SIZES {
        let row = |name: &str| format!("quantize_{size}/{name}");
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
            measure(&row(&format!("{name}_there")), Some(bytes), || {
                quantize(quantization, DType::F32, black_box(&data), black_box(&mut wire))
            });
            measure(&row(&format!("{name}_back")), Some(bytes), || {
                dequantize(quantization, DType::F32, black_box(&wire), black_box(&mut out))
            });
            measure(&row(&format!("{name}_there_and_back")), Some(bytes), || {
                quantize(quantization, DType::F32, black_box(&data), black_box(&mut wire));
                dequantize(quantization, DType::F32, black_box(&wire), black_box(&mut out));
            });
            measure(&row(&format!("{name}_back_and_sum")), Some(bytes), || {
                let (wire, out) = (black_box(&wire), black_box(&mut out));
                dequantize_reduce(quantization, DType::F32, ReduceOp::Sum, wire, out);
            });
        }
    }
}

fn others() {
    let (size, bytes) = SIZES[0];
    let row = |name: &str| format!("others_{size}/{name}");
    for dtype in [DType::F32, DType::BF16, DType::I32, DType::I64] {
        let mut data = tensor(dtype, bytes);
        measure(&row(&format!("divide_{dtype}")), Some(bytes), || divide(dtype, black_box(&mut data), 3));
    }
    for (from, to) in [
        (DType::F32, DType::BF16),
        (DType::BF16, DType::F32),
        (DType::F32, DType::F16),
        (DType::F16, DType::F32),
    ] {
        let data = tensor(from, bytes);
        let mut out = vec![0; bytes / from.bytes() * to.bytes()];
        measure(&row(&format!("convert_{from}_to_{to}")), Some(bytes), || {
            convert(from, to, black_box(&data), black_box(&mut out))
        });
    }
}

fn main() {
    sums_against_plain();
    reductions();
    hashes();
    quantizations();
    others();
}
