//! Element types of tensors.
//!
//! To add a type, add a line to the table, and an implementation of [`Element`] if processors do not compute with it.

use crate::half::{Bf16, F16};
use crate::isa::{Blocks, Isa};
use crate::lanes::Lanes;
use crate::number::{Number, Real};
use crate::operator::Operator;
use crate::packed::Packed;

/// The table of element types. Complex numbers are treated as their parts: sums and multiples work by parts.
macro_rules! element_table {
    ($callback:ident! $($arguments:tt)*) => {
        $callback! { $($arguments)*
            integers { U8: u8, U16: u16, U32: u32, U64: u64, I8: i8, I16: i16, I32: i32, I64: i64 }
            reals { F16: F16, BF16: Bf16, F32: f32, F64: f64 }
            complexes { C64: f32, C128: f64 }
        }
    };
}
pub(crate) use element_table;

/// Evaluates `$body` with `$T` as the [`Element`] of any `DType`.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::element::element_table! { with_element! @match ($dtype) ($T) ($body) }
    };
    (@match ($dtype:expr) ($T:ident) ($body:expr)
        $($sort:ident { $($variant:ident: $element:ident),* })*) => {{
        #[allow(unused_imports, reason = "the table may use neither")]
        use $crate::half::{Bf16, F16};
        match $dtype {
            $($(ringfold_proto::dtype::DType::$variant => { type $T = $element; $body })*)*
        }
    }};
}
pub(crate) use with_element;

/// Evaluates `$body` with `$T` as the [`RealElement`] of a float `DType`.
///
/// Panics on other types, which callers have checked.
macro_rules! with_real {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::element::element_table! { with_real! @match ($dtype) ($T) ($body) }
    };
    (@match ($dtype:expr) ($T:ident) ($body:expr) integers $_:tt
        reals { $($variant:ident: $element:ident),* } complexes $__:tt) => {{
        use $crate::half::{Bf16, F16};
        match $dtype {
            $(ringfold_proto::dtype::DType::$variant => { type $T = $element; $body })*
            other => unreachable!("{other} is not a float"),
        }
    }};
}
pub(crate) use with_real;

/// Evaluates `$body` with `$T` as the type of an integer `DType`.
///
/// Panics on other types, which callers have checked.
macro_rules! with_integer {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::element::element_table! { with_integer! @match ($dtype) ($T) ($body) }
    };
    (@match ($dtype:expr) ($T:ident) ($body:expr)
        integers { $($variant:ident: $element:ident),* } reals $_:tt complexes $__:tt) => {
        match $dtype {
            $(ringfold_proto::dtype::DType::$variant => { type $T = $element; $body })*
            other => unreachable!("{other} is not an integer"),
        }
    };
}
pub(crate) use with_integer;

/// An element type, and its conversion to the type of arithmetic.
///
/// # Safety
/// Every bit pattern is a valid value, and there is no padding.
pub(crate) unsafe trait Element: Copy + Default + 'static {
    /// The type of arithmetic.
    type Wide: Number;

    fn widen(self) -> Self::Wide;

    /// Rounds to nearest even. NaNs must be canonical.
    fn narrow(wide: Self::Wide) -> Self;

    /// `accumulator[i] = accumulator[i] op other[i]`, for slices of equal length.
    #[inline(always)]
    fn fold<O: Operator, I: Isa>(_isa: I, accumulator: &mut [Packed<Self>], other: &[Packed<Self>]) {
        fold::<Self, O>(accumulator, other);
    }

    /// `out[i] = left[i] op right[i]`, for slices of equal length.
    #[inline(always)]
    fn combine<O: Operator, I: Isa>(
        _isa: I,
        left: &[Packed<Self>],
        right: &[Packed<Self>],
        out: &mut [Packed<Self>],
    ) {
        combine::<Self, O>(left, right, out);
    }
}

/// Views bytes as elements.
///
/// # Panics
/// If `bytes` contains a partial element.
#[inline(always)]
pub(crate) fn elements<T: Element>(bytes: &[u8]) -> &[Packed<T>] {
    let count = count::<T>(bytes.len());
    // SAFETY: `Packed<T>` has alignment 1, `count` elements cover exactly `bytes`, and all bits of an `Element` are
    // valid.
    unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), count) }
}

/// Views bytes as mutable elements.
///
/// # Panics
/// If `bytes` contains a partial element.
#[inline(always)]
pub(crate) fn elements_mut<T: Element>(bytes: &mut [u8]) -> &mut [Packed<T>] {
    let count = count::<T>(bytes.len());
    // SAFETY: as in `elements`; the exclusive borrow of the bytes passes on to the elements, and an
    // `Element` has no padding, so that every byte stays initialised.
    unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) }
}

#[inline(always)]
fn count<T>(bytes: usize) -> usize {
    let size = size_of::<T>();
    assert!(bytes.is_multiple_of(size), "{bytes} bytes are not a whole number of {size}-byte elements");
    bytes / size
}

/// A float element.
pub(crate) trait RealElement: Element<Wide: Real> {
    /// The largest finite value.
    const MAX: f64;
}

#[inline(always)]
fn fold<T: Element, O: Operator>(accumulator: &mut [Packed<T>], other: &[Packed<T>]) {
    for (accumulator, other) in accumulator.iter_mut().zip(other) {
        *accumulator = operate::<T, O>(*accumulator, *other);
    }
}

#[inline(always)]
fn combine<T: Element, O: Operator>(left: &[Packed<T>], right: &[Packed<T>], out: &mut [Packed<T>]) {
    for ((left, right), out) in left.iter().zip(right).zip(out) {
        *out = operate::<T, O>(*left, *right);
    }
}

#[inline(always)]
fn operate<T: Element, O: Operator>(left: Packed<T>, right: Packed<T>) -> Packed<T> {
    Packed(T::narrow(T::Wide::operate::<O>({ left.0 }.widen(), { right.0 }.widen())))
}

/// An element that is its own type of arithmetic.
macro_rules! own_arithmetic {
    () => {
        type Wide = Self;

        #[inline(always)]
        fn widen(self) -> Self {
            self
        }

        #[inline(always)]
        fn narrow(wide: Self) -> Self {
            wide
        }
    };
}

/// `fold` and `combine` by the blocks of [`Blocks`], and by plain loops where there are none.
macro_rules! by_blocks {
    ($load:ident, $store:ident) => {
        #[inline(always)]
        fn fold<O: Operator, I: Isa>(isa: I, accumulator: &mut [Packed<Self>], other: &[Packed<Self>]) {
            let Some(isa) = isa.blocks() else { return fold::<Self, O>(accumulator, other) };
            let (blocks, rest) = accumulator.as_chunks_mut();
            let (other_blocks, other_rest) = other.as_chunks();
            for (block, other) in blocks.iter_mut().zip(other_blocks) {
                let result = operate_block::<_, O>(isa.$load(block), isa.$load(other));
                isa.$store(result, block);
            }
            fold::<Self, O>(rest, other_rest);
        }

        #[inline(always)]
        fn combine<O: Operator, I: Isa>(
            isa: I,
            left: &[Packed<Self>],
            right: &[Packed<Self>],
            out: &mut [Packed<Self>],
        ) {
            let Some(isa) = isa.blocks() else { return combine::<Self, O>(left, right, out) };
            let (left_blocks, left_rest) = left.as_chunks();
            let (right_blocks, right_rest) = right.as_chunks();
            let (blocks, rest) = out.as_chunks_mut();
            for ((left, right), block) in left_blocks.iter().zip(right_blocks).zip(blocks) {
                let result = operate_block::<_, O>(isa.$load(left), isa.$load(right));
                isa.$store(result, block);
            }
            combine::<Self, O>(left_rest, right_rest, rest);
        }
    };
}

macro_rules! integer_elements {
    ($($integer:ident)*) => {$(
        // SAFETY: a primitive number has no padding, and all its bit patterns are valid.
        unsafe impl Element for $integer {
            own_arithmetic! {}
        }
    )*};
}

integer_elements! { u8 u16 u32 u64 i8 i16 i32 i64 }

macro_rules! real_elements {
    ($($real:ident, $load:ident, $store:ident;)*) => {$(
        // SAFETY: a primitive number has no padding, and all its bit patterns are valid.
        unsafe impl Element for $real {
            own_arithmetic! {}
            by_blocks! { $load, $store }
        }

        impl RealElement for $real {
            const MAX: f64 = $real::MAX as f64;
        }
    )*};
}

real_elements! {
    f32, load_f32, store_f32;
    f64, load_f64, store_f64;
}

macro_rules! half_elements {
    ($($half:ident, $widen:ident, $narrow:ident;)*) => {$(
        // SAFETY: it is a transparent u16.
        unsafe impl Element for $half {
            type Wide = f32;

            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn narrow(wide: f32) -> Self {
                Self::from_f32(wide)
            }

            by_blocks! { $widen, $narrow }
        }

        impl RealElement for $half {
            const MAX: f64 = $half::MAX;
        }
    )*};
}

half_elements! {
    F16, widen_f16, narrow_f16;
    Bf16, widen_bf16, narrow_bf16;
}

#[inline(always)]
fn operate_block<L: Lanes, O: Operator>(left: L, right: L) -> L {
    let (result, nan) = O::reals(left, right);
    // One branch per block is cheaper than a blend per vector. The result is in registers, so nothing is computed again.
    if nan.any() { result.with_nan(nan.mask()) } else { result }
}
