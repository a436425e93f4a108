//! Fewer bits on the wire than in memory.

use crate::dtype::{DType, NumberKind};
use crate::reduce_op::ReduceOp;
use serde::{Deserialize, Serialize};

/// How a chunk's range is mapped to integers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum QuantizationAlgorithm {
    /// The chunk's smallest and largest value become the ends of an unsigned range.
    MinMax = 1,
    /// A scale and the integer that stands for zero.
    ZeroPointScale = 2,
}

/// Quantisation of an all-reduce: which integers travel, and how they are made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Quantization {
    /// How values become integers.
    pub algorithm: QuantizationAlgorithm,
    /// The integers that travel.
    pub dtype: DType,
}

impl Quantization {
    /// Bytes of parameters that travel before the integers of each chunk: two f64.
    pub const PARAMETER_BYTES: usize = 16;

    /// Whether elements of `source` can be reduced by `op` under this quantisation.
    pub fn supports(self, source: DType, op: ReduceOp) -> bool {
        let target = match self.algorithm {
            QuantizationAlgorithm::MinMax => matches!(self.dtype, DType::U8 | DType::U16 | DType::U32),
            QuantizationAlgorithm::ZeroPointScale => {
                matches!(
                    self.dtype,
                    DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::U32
                )
            }
        };
        let op = matches!(op, ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Min | ReduceOp::Max);
        target && op && source.kind() == NumberKind::Float
    }
}
