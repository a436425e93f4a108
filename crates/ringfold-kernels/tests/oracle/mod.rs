//! The expected results: naive code, one element at a time, independent of the kernels.

use half::{bf16, f16};
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;

/// Applies `op` to every pair of elements.
pub fn reduce(dtype: DType, op: ReduceOp, left: &[u8], right: &[u8]) -> Vec<u8> {
    let size = dtype.bytes();
    left.chunks(size).zip(right.chunks(size)).flat_map(|(left, right)| pair(dtype, op, left, right)).collect()
}

fn pair(dtype: DType, op: ReduceOp, left: &[u8], right: &[u8]) -> Vec<u8> {
    macro_rules! integer {
        ($t:ty) => {{
            let (l, r) = (read!($t, left), read!($t, right));
            let result: $t = match op {
                ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum => l.wrapping_add(r),
                ReduceOp::Prod => l.wrapping_mul(r),
                ReduceOp::Max => std::cmp::max(l, r),
                ReduceOp::Min => std::cmp::min(l, r),
                ReduceOp::BitAnd => l & r,
                ReduceOp::BitOr => l | r,
                ReduceOp::BitXor => l ^ r,
            };
            result.to_ne_bytes().to_vec()
        }};
    }
    match dtype {
        DType::U8 => integer!(u8),
        DType::U16 => integer!(u16),
        DType::U32 => integer!(u32),
        DType::U64 => integer!(u64),
        DType::I8 => integer!(i8),
        DType::I16 => integer!(i16),
        DType::I32 => integer!(i32),
        DType::I64 => integer!(i64),
        // f64 represents all f32 results, and decides about order and NaN.
        DType::F16 => {
            let (l, r) = (f16::from_ne_bytes([left[0], left[1]]), f16::from_ne_bytes([right[0], right[1]]));
            f16_bytes(single(op, l.to_f32(), r.to_f32()))
        }
        DType::BF16 => {
            let (l, r) = (bf16::from_ne_bytes([left[0], left[1]]), bf16::from_ne_bytes([right[0], right[1]]));
            bf16_bytes(single(op, l.to_f32(), r.to_f32()))
        }
        DType::F32 => single(op, read!(f32, left), read!(f32, right)).to_ne_bytes().to_vec(),
        DType::F64 => double(op, read!(f64, left), read!(f64, right)).to_ne_bytes().to_vec(),
        DType::C64 => [&left[..4], &left[4..]]
            .iter()
            .zip([&right[..4], &right[4..]])
            .flat_map(|(left, right)| pair(DType::F32, op, left, right))
            .collect(),
        DType::C128 => [&left[..8], &left[8..]]
            .iter()
            .zip([&right[..8], &right[8..]])
            .flat_map(|(left, right)| pair(DType::F64, op, left, right))
            .collect(),
    }
}

macro_rules! read {
    ($t:ty, $bytes:expr) => {
        <$t>::from_ne_bytes($bytes.try_into().unwrap())
    };
}
use read;

macro_rules! float {
    ($name:ident, $t:ident) => {
        fn $name(op: ReduceOp, l: $t, r: $t) -> $t {
            if l.is_nan() || r.is_nan() {
                return $t::NAN;
            }
            let result = match op {
                ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum => l + r,
                ReduceOp::Prod => l * r,
                // The standard library's total order has −0 before +0.
                ReduceOp::Max => std::cmp::max_by(l, r, $t::total_cmp),
                ReduceOp::Min => std::cmp::min_by(l, r, $t::total_cmp),
                _ => panic!("no bits of floats"),
            };
            if result.is_nan() { $t::NAN } else { result }
        }
    };
}
float!(single, f32);
float!(double, f64);

pub fn f16_bytes(value: f32) -> Vec<u8> {
    let half = if value.is_nan() { f16::from_bits(0x7e00) } else { f16::from_f32(value) };
    half.to_ne_bytes().to_vec()
}

pub fn bf16_bytes(value: f32) -> Vec<u8> {
    let half = if value.is_nan() { bf16::from_bits(0x7fc0) } else { bf16::from_f32(value) };
    half.to_ne_bytes().to_vec()
}

/// Corner cases: zeros, ones, ends of ranges, NaNs, infinities, subnormals, rounding ties.
pub fn corners(dtype: DType) -> Vec<Vec<u8>> {
    fn bytes<T: Copy, const N: usize>(values: &[T], to: fn(T) -> [u8; N]) -> Vec<Vec<u8>> {
        values.iter().map(|&value| to(value).to_vec()).collect()
    }
    macro_rules! integer {
        ($t:ident) => {
            bytes(
                &[0, 1, 2, 3, 7, $t::MAX, $t::MAX - 1, $t::MIN, $t::MIN + 1, $t::MAX / 2, $t::MAX / 2 + 1],
                $t::to_ne_bytes,
            )
        };
    }
    match dtype {
        DType::U8 => integer!(u8),
        DType::U16 => integer!(u16),
        DType::U32 => integer!(u32),
        DType::U64 => integer!(u64),
        DType::I8 => integer!(i8),
        DType::I16 => integer!(i16),
        DType::I32 => integer!(i32),
        DType::I64 => integer!(i64),
        DType::F16 => bytes(
            &[
                0u16, 0x8000, 0x3c00, 0xbc00, 0x3c01, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe00, 0x7c01,
                0xfdff, 0x7fff, 0x0001, 0x8001, 0x03ff, 0x0400, 0x1400, 0x1000, 0x5555,
            ],
            u16::to_ne_bytes,
        ),
        DType::BF16 => bytes(
            &[
                0u16, 0x8000, 0x3f80, 0xbf80, 0x3f81, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81,
                0xffbf, 0x7fff, 0xffff, 0x0001, 0x8001, 0x007f, 0x0080, 0x3b80, 0x3b00, 0x4049,
            ],
            u16::to_ne_bytes,
        ),
        DType::F32 => bytes(
            &[
                0u32,
                0x8000_0000,
                0x3f80_0000,
                0xbf80_0000,
                0x3f80_0001,
                0x7f7f_ffff,
                0xff7f_ffff,
                0x7f80_0000,
                0xff80_0000,
                0x7fc0_0000,
                0xffc0_0000,
                0x7f80_0001,
                0xffbf_ffff,
                0x7fff_ffff,
                1,
                0x8000_0001,
                0x007f_ffff,
                0x0080_0000,
                0x3380_0000,
                0x4049_0fdb,
            ],
            u32::to_ne_bytes,
        ),
        DType::F64 => bytes(
            &[
                0.0,
                -0.0,
                1.0,
                -1.0,
                f64::MAX,
                f64::MIN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
                -f64::NAN,
                f64::from_bits(0x7ff0_0000_0000_0001),
                f64::from_bits(0xffff_ffff_ffff_ffff),
                f64::MIN_POSITIVE,
                f64::from_bits(1),
                f64::from_bits(0x800f_ffff_ffff_ffff),
                f64::EPSILON,
                3.5,
            ],
            f64::to_ne_bytes,
        ),
        DType::C64 => twice(corners(DType::F32)),
        DType::C128 => twice(corners(DType::F64)),
    }
}

fn twice(parts: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    parts.iter().zip(parts.iter().rev()).map(|(re, im)| [re.clone(), im.clone()].concat()).collect()
}

/// Two tensors with every pair of corner cases, followed by random bits.
pub fn operands(dtype: DType, count: usize) -> (Vec<u8>, Vec<u8>) {
    let corners = corners(dtype);
    let n = corners.len();
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut random = Random(dtype as u64 + 1);
    for i in 0..count {
        if i < n * n {
            left.extend_from_slice(&corners[i % n]);
            right.extend_from_slice(&corners[i / n]);
        } else {
            left.extend(random.bytes(dtype.bytes()));
            right.extend(random.bytes(dtype.bytes()));
        }
    }
    (left, right)
}

/// A deterministic random generator (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let words = [self.word().to_ne_bytes(), self.word().to_ne_bytes()].concat();
        words[..count].to_vec()
    }

    /// Between −1 and 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// A copy of `bytes` at `offset` bytes after an address aligned to 64.
pub struct Misaligned {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Misaligned {
    pub fn new(bytes: &[u8], offset: usize) -> Self {
        let mut memory = vec![0xa5; bytes.len() + 128 + offset];
        let begin = memory.as_ptr().align_offset(64) + offset;
        memory[begin..begin + bytes.len()].copy_from_slice(bytes);
        Self { memory, begin, len: bytes.len() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..][..self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..][..self.len]
    }
}
