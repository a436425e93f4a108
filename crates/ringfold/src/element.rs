//! The Rust types that may be elements of tensors.

use ringfold_proto::dtype::DType;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type whose slices can be reduced and synchronized.
pub trait Element: Copy + Send + Sync + FromBytes + IntoBytes + Immutable + 'static {
    /// The corresponding data type of the protocol.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    half::f16 => F16, half::bf16 => BF16, f32 => F32, f64 => F64,
}
