//! The points of a measurement: the collective, the element type and the size.

use super::bench_op::{BenchOp, Placement};
use crate::size::ByteSize;
use ringfold::{DType, ReduceOp};
use std::fmt;
use std::str::FromStr;

/// One measured call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Point {
    pub(crate) kind: BenchOp,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    /// The elements of the whole tensor.
    pub(crate) count: usize,
    pub(crate) place: Placement,
}

impl Point {
    /// A point of about `size` bytes: whole elements, and equal parts where the tensor is divided among the ranks.
    /// None if the reduction does not support the element type.
    pub(crate) fn new(
        kind: BenchOp,
        place: Placement,
        (dtype, op): (DType, ReduceOp),
        size: ByteSize,
        world: usize,
    ) -> Option<Self> {
        if kind.reduces() && !op.supports(dtype) {
            return None;
        }
        let count = usize::try_from(size.0).ok()? / dtype.bytes();
        let count = match kind {
            BenchOp::Barrier => 0,
            _ if kind.has_parts() => (count / world).max(1) * world,
            _ => count.max(1),
        };
        Some(Self { kind, dtype, op, count, place })
    }

    /// The bytes of the whole tensor.
    pub(crate) fn bytes(&self) -> usize {
        self.count * self.dtype.bytes()
    }

    /// The bytes of the buffers of all ranks.
    pub(crate) fn buffer_bytes(&self, world: usize) -> usize {
        let counts = (0..world).map(|rank| self.kind.element_counts(self.place, self.count, rank, world));
        counts.map(|counts| counts.sent + counts.received).sum::<usize>() * self.dtype.bytes()
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if self.kind == BenchOp::Barrier {
            return Ok(());
        }
        write!(f, " of {} {}", ByteSize(self.bytes() as u64), short_name(self.dtype))?;
        if self.kind.reduces() {
            write!(f, " {}", self.op)?;
        }
        if self.kind.placements().len() > 1 && self.place != self.kind.placements()[0] {
            write!(f, ", {} of place", self.place.name())?;
        }
        Ok(())
    }
}

/// A list of sizes and ranges, for example `4B..1MiB,64MiB`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sizes(Vec<SizeRange>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SizeRange {
    first: ByteSize,
    last: ByteSize,
}

impl Sizes {
    pub(crate) fn between(first: ByteSize, last: ByteSize) -> Result<Self, String> {
        if first > last {
            return Err(format!("invalid range of sizes: {first} is greater than {last}"));
        }
        Ok(Self(vec![SizeRange { first, last }]))
    }

    /// All sizes in ascending order. Within a range each is `factor` times the previous one.
    pub(crate) fn all(&self, factor: u64) -> Vec<ByteSize> {
        let mut all = Vec::new();
        for range in &self.0 {
            let next = |size: &u64| size.checked_mul(factor.max(2)).filter(|next| *next <= range.last.0);
            all.extend(std::iter::successors(Some(range.first.0.max(1)), next).map(ByteSize));
        }
        all.sort();
        all.dedup();
        all
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut ranges = Vec::new();
        for part in text.split(',') {
            ranges.extend(match part.split_once("..") {
                Some((first, last)) => {
                    Self::between(first.parse()?, last.trim_start_matches('=').parse()?)?.0
                }
                None => Self::between(part.parse()?, part.parse()?)?.0,
            });
        }
        Ok(Self(ranges))
    }
}

/// Rust's name of an element type, as in the commands to the ranks.
pub(crate) fn short_name(dtype: DType) -> &'static str {
    match dtype {
        DType::U8 => "u8",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::I32 => "i32",
        DType::U64 => "u64",
        DType::I64 => "i64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::C64 => "c64",
        DType::C128 => "c128",
    }
}

/// Finds an element type by its short or long name.
pub(crate) fn parse_dtype(text: &str) -> Result<DType, String> {
    let found = DType::ALL.iter().find(|dtype| short_name(**dtype) == text || dtype.name() == text);
    found.copied().filter(|dtype| !matches!(dtype, DType::C64 | DType::C128)).ok_or_else(|| {
        format!("unsupported element type {text:?}: must be f32, f64, f16, bf16, i8 to i64 or u8 to u64")
    })
}

/// Finds a reduction by its name.
pub(crate) fn parse_op(text: &str) -> Result<ReduceOp, String> {
    let found = ReduceOp::ALL.iter().copied().find(|op| op.name() == text && *op != ReduceOp::PremulSum);
    found.ok_or_else(|| {
        format!("unsupported reduction {text:?}: must be sum, avg, prod, max, min, band, bor or bxor")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str, factor: u64) -> Vec<u64> {
        text.parse::<Sizes>().unwrap().all(factor).iter().map(|size| size.0).collect()
    }

    #[test]
    fn sizes_are_lists_and_ranges() {
        assert_eq!(sizes("4B,64KiB,1MiB", 8), [4, 65536, 1 << 20]);
        assert_eq!(sizes("4B..2KiB", 8), [4, 32, 256, 2048]);
        assert_eq!(sizes("1MiB,4B..=10B,4", 2), [4, 8, 1 << 20]);
        assert_eq!(sizes("0", 2), [1]);
        for wrong in ["", "4B..", "1MiB..4B", "x", "4B,,5B"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn points_have_whole_elements_and_equal_parts() {
        let point = |kind, bytes, dtype| {
            Point::new(kind, Placement::In, (dtype, ReduceOp::Sum), ByteSize(bytes), 4).unwrap().count
        };
        assert_eq!(point(BenchOp::AllReduce, 4, DType::F32), 1);
        assert_eq!(point(BenchOp::AllReduce, 3, DType::F32), 1);
        assert_eq!(point(BenchOp::AllGather, 4, DType::F32), 4);
        assert_eq!(point(BenchOp::AllGather, 100, DType::F64), 12);
        assert_eq!(point(BenchOp::Barrier, 100, DType::F64), 0);
        let or_of_floats = (DType::F32, ReduceOp::BitOr);
        assert_eq!(Point::new(BenchOp::Reduce, Placement::In, or_of_floats, ByteSize(8), 2), None);
        assert!(Point::new(BenchOp::Broadcast, Placement::In, or_of_floats, ByteSize(8), 2).is_some());
    }

    #[test]
    fn types_have_short_and_long_names() {
        for &dtype in DType::ALL.iter().filter(|d| !d.name().starts_with("complex")) {
            assert_eq!(parse_dtype(dtype.name()), Ok(dtype));
            assert_eq!(parse_dtype(short_name(dtype)), Ok(dtype));
        }
        assert!(parse_dtype("complex64").is_err() && parse_dtype("float").is_err());
        assert!(parse_op("premul_sum").is_err() && parse_op("band") == Ok(ReduceOp::BitAnd));
    }
}
