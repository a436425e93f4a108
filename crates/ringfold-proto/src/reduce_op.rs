//! What a reduction does with two elements.

use crate::dtype::{DType, NumberKind};
use core::fmt;
use serde::{Deserialize, Serialize};

/// How elements of different peers become one. The numbers of the first five are those of the C API.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum = 0,
    /// The sum divided by the number of peers, in the element type; integers truncate toward zero.
    Avg = 1,
    /// The product; integers wrap.
    Prod = 2,
    /// The largest; NaN if any is NaN.
    Max = 3,
    /// The smallest; NaN if any is NaN.
    Min = 4,
    /// Each peer's elements times that peer's factor, then the sum.
    PremulSum = 5,
    /// Bitwise and, integers only.
    BitAnd = 6,
    /// Bitwise or, integers only.
    BitOr = 7,
    /// Bitwise exclusive or, integers only.
    BitXor = 8,
}

impl ReduceOp {
    /// All operations.
    pub const ALL: &'static [Self] = &[
        Self::Sum,
        Self::Avg,
        Self::Prod,
        Self::Max,
        Self::Min,
        Self::PremulSum,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
    ];

    /// The operation with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|op| *op as u8 == number)
    }

    /// Whether the operation makes sense for elements of this type.
    pub fn supports(self, dtype: DType) -> bool {
        match self {
            Self::BitAnd | Self::BitOr | Self::BitXor => dtype.is_integer(),
            Self::Prod | Self::Max | Self::Min | Self::Avg | Self::PremulSum => {
                dtype.kind() != NumberKind::Complex
            }
            Self::Sum => true,
        }
    }

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::PremulSum => "premul_sum",
            Self::BitAnd => "band",
            Self::BitOr => "bor",
            Self::BitXor => "bxor",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
