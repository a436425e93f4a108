//! Quantization: floats travel as integers.

use crate::dtype::{DType, NumberKind};
use crate::reduce_op::ReduceOp;
use serde::{Deserialize, Serialize};

/// How the values of a chunk become integers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum QuantizationAlgorithm {
    /// The chunk's smallest and largest value become the ends of an unsigned range.
    MinMax = 1,
    /// A scale and the integer that stands for zero.
    ZeroPointScale = 2,
}

/// The quantization of an all-reduce.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub struct Quantization {
    pub algorithm: QuantizationAlgorithm,
    /// The integer type on the wire.
    pub dtype: DType,
}

impl Quantization {
    /// Bytes of parameters before the integers of each chunk: two f64.
    pub const PARAMETER_BYTES: usize = 16;

    /// Whether it supports elements of `source` and the reduction `op`.
    pub fn supports(self, source: DType, op: ReduceOp) -> bool {
        let target = match self.algorithm {
            QuantizationAlgorithm::MinMax => matches!(self.dtype, DType::U8 | DType::U16 | DType::U32),
            QuantizationAlgorithm::ZeroPointScale => self.dtype.is_integer() && self.dtype.bytes() <= 4,
        };
        let op = matches!(op, ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Min | ReduceOp::Max);
        target && op && source.kind() == NumberKind::Float
    }
}
