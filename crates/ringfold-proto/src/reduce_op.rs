//! Reductions. A new one needs a line in the table here and one in that of the kernels.

use crate::dtype::{DType, NumberKind};
use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! reduce_ops {
    ($($(#[$doc:meta])* $variant:ident = $value:literal, $name:literal;)*) => {
        /// A reduction. The numbers are those of the wire, the first five also those of the C API.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum ReduceOp {
            $($(#[$doc])* $variant = $value,)*
        }

        impl ReduceOp {
            /// All reductions.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The reduction with this number.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($value => Some(Self::$variant),)* _ => None }
            }

            /// The name in APIs and texts.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

reduce_ops! {
    /// The sum; integers wrap.
    Sum = 0, "sum";
    /// The sum divided by the number of peers, in the element type; integers truncate toward zero.
    Avg = 1, "avg";
    /// The product; integers wrap.
    Prod = 2, "prod";
    /// The largest; NaN if any is NaN.
    Max = 3, "max";
    /// The smallest; NaN if any is NaN.
    Min = 4, "min";
    /// Each peer's elements times that peer's factor, then the sum.
    PremulSum = 5, "premul_sum";
    /// Bitwise and, integers only.
    BitAnd = 6, "band";
    /// Bitwise or, integers only.
    BitOr = 7, "bor";
    /// Bitwise exclusive or, integers only.
    BitXor = 8, "bxor";
}

impl ReduceOp {
    /// Whether elements of this type can be reduced.
    pub fn supports(self, dtype: DType) -> bool {
        match self {
            Self::BitAnd | Self::BitOr | Self::BitXor => dtype.is_integer(),
            Self::Prod | Self::Max | Self::Min | Self::Avg | Self::PremulSum => {
                dtype.kind() != NumberKind::Complex
            }
            Self::Sum => true,
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
