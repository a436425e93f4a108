//! Two tensors become one.

use crate::element::{Element, with_element};
use crate::isa::Isa;
use crate::level::{Kernel, Level};
use crate::operator::{Operator, with_operator};
use crate::packed::{elements, elements_mut};
use core::marker::PhantomData;
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;

/// `out[i] = left[i] op right[i]`.
///
/// [`ReduceOp::Avg`] and [`ReduceOp::PremulSum`] reduce as sums; [`divide`](crate::divide) and
/// [`scale`](crate::scale) do the rest.
///
/// ```
/// use ringfold_kernels::reduce;
/// use ringfold_proto::{dtype::DType, reduce_op::ReduceOp};
///
/// let mut out = [0; 2];
/// reduce(DType::U8, ReduceOp::Sum, &[1, 250], &[2, 10], &mut out);
/// assert_eq!(out, [3, 4]);
/// ```
///
/// # Panics
/// If the slices differ in length or hold no whole number of elements, or if the operation does not
/// [support](ReduceOp::supports) the type.
pub fn reduce(dtype: DType, op: ReduceOp, left: &[u8], right: &[u8], out: &mut [u8]) {
    reduce_at(Level::detect(), dtype, op, left, right, out);
}

/// [`reduce`] with the instructions of `level`.
///
/// # Panics
/// As [`reduce`]; also if this machine does not have the level.
pub fn reduce_at(level: Level, dtype: DType, op: ReduceOp, left: &[u8], right: &[u8], out: &mut [u8]) {
    check(dtype, op);
    assert_eq!(left.len(), right.len(), "operands differ in length");
    assert_eq!(left.len(), out.len(), "operands and result differ in length");
    with_element!(dtype, T => with_operator!(op, O => level.run(Combine::<T, O> {
        left,
        right,
        out,
        types: PhantomData,
    })));
}

/// `accumulator[i] = accumulator[i] op right[i]`.
///
/// # Panics
/// As [`reduce`].
pub fn reduce_into_left(dtype: DType, op: ReduceOp, accumulator: &mut [u8], right: &[u8]) {
    reduce_into_at(Level::detect(), dtype, op, accumulator, right);
}

/// `accumulator[i] = left[i] op accumulator[i]`.
///
/// Since every operation here commutes to the bit, this gives what [`reduce_into_left`] gives; callers still
/// choose by rank, so that plans keep a canonical order of operands.
///
/// # Panics
/// As [`reduce`].
pub fn reduce_into_right(dtype: DType, op: ReduceOp, left: &[u8], accumulator: &mut [u8]) {
    reduce_into_at(Level::detect(), dtype, op, accumulator, left);
}

/// [`reduce_into_left`], and by commutation [`reduce_into_right`], with the instructions of `level`.
///
/// # Panics
/// As [`reduce`]; also if this machine does not have the level.
pub fn reduce_into_at(level: Level, dtype: DType, op: ReduceOp, accumulator: &mut [u8], other: &[u8]) {
    check(dtype, op);
    assert_eq!(accumulator.len(), other.len(), "accumulator and operand differ in length");
    with_element!(dtype, T => with_operator!(op, O => level.run(Fold::<T, O> {
        accumulator,
        other,
        types: PhantomData,
    })));
}

fn check(dtype: DType, op: ReduceOp) {
    assert!(op.supports(dtype), "{op} has no meaning for {dtype}");
}

struct Combine<'a, T, O> {
    left: &'a [u8],
    right: &'a [u8],
    out: &'a mut [u8],
    types: PhantomData<(T, O)>,
}

impl<T: Element, O: Operator> Kernel for Combine<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        T::combine::<O, I>(isa, elements(self.left), elements(self.right), elements_mut(self.out));
    }
}

struct Fold<'a, T, O> {
    accumulator: &'a mut [u8],
    other: &'a [u8],
    types: PhantomData<(T, O)>,
}

impl<T: Element, O: Operator> Kernel for Fold<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        T::fold::<O, I>(isa, elements_mut(self.accumulator), elements(self.other));
    }
}
