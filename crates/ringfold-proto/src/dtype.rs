//! Element types. A new one needs a line in the table here and one in that of the kernels.
#![allow(missing_docs)] // Variants are named for what they are.

use core::fmt;
use serde::{Deserialize, Serialize};

/// The kind of number of an element. It decides which operations are supported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NumberKind {
    Unsigned,
    Signed,
    Float,
    /// Complex floating point: supports sums, has no order.
    Complex,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $value:literal, $name:literal, $bytes:literal, $kind:ident;)*) => {
        /// The type of an element. The numbers are those of the C API and of the wire.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum DType {
            $($(#[$doc])* $variant = $value,)*
        }

        impl DType {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)* }
            }

            pub const fn kind(self) -> NumberKind {
                match self { $(Self::$variant => NumberKind::$kind,)* }
            }

            /// The name in APIs and texts.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The type with this C number.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number { $($value => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    U8 = 0, "uint8", 1, Unsigned;
    I8 = 1, "int8", 1, Signed;
    I16 = 2, "int16", 2, Signed;
    U16 = 3, "uint16", 2, Unsigned;
    U32 = 4, "uint32", 4, Unsigned;
    I32 = 5, "int32", 4, Signed;
    U64 = 6, "uint64", 8, Unsigned;
    I64 = 7, "int64", 8, Signed;
    F16 = 8, "float16", 2, Float;
    BF16 = 9, "bfloat16", 2, Float;
    F32 = 10, "float32", 4, Float;
    F64 = 11, "float64", 8, Float;
    /// Two single-precision floats.
    C64 = 12, "complex64", 8, Complex;
    /// Two double-precision floats.
    C128 = 13, "complex128", 16, Complex;
}

impl DType {
    /// Whether the type is an integer.
    pub const fn is_integer(self) -> bool {
        matches!(self.kind(), NumberKind::Unsigned | NumberKind::Signed)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_numbers_are_those_of_the_specification() {
        let numbers: Vec<_> = DType::ALL.iter().map(|d| (*d as u8, d.name())).collect();
        assert_eq!(numbers[0], (0, "uint8"));
        assert_eq!(numbers[9], (9, "bfloat16"));
        assert_eq!(numbers[11], (11, "float64"));
        for &dtype in DType::ALL {
            assert_eq!(DType::from_number(dtype as u8), Some(dtype));
        }
        assert_eq!(DType::from_number(99), None);
    }
}
