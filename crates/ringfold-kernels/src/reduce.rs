//! Reductions of two tensors.

use crate::element::{Element, elements, elements_mut, with_element};
use crate::isa::Isa;
use crate::level::{Kernel, Level};
use crate::operator::{Operator, with_operator};
use core::marker::PhantomData;
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;

/// `out[i] = left[i] op right[i]`.
///
/// [`ReduceOp::Avg`] and [`ReduceOp::PremulSum`] reduce as sums; see [`divide`](crate::divide) and
/// [`scale`](crate::scale).
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
/// If the slices differ in length or contain a partial element, or if the operation does not
/// [support](ReduceOp::supports) the type.
pub fn reduce(dtype: DType, op: ReduceOp, left: &[u8], right: &[u8], out: &mut [u8]) {
    reduce_at(Level::detect(), dtype, op, left, right, out);
}

/// [`reduce`] with the instructions of `level`; panics if this machine does not have them.
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

/// `accumulator[i] = accumulator[i] op other[i]`. All operations commute bit for bit, so the order does not matter.
///
/// # Panics
/// As [`reduce`].
pub fn reduce_into(dtype: DType, op: ReduceOp, accumulator: &mut [u8], other: &[u8]) {
    reduce_into_at(Level::detect(), dtype, op, accumulator, other);
}

/// [`reduce_into`] with the instructions of `level`; panics if this machine does not have them.
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
    assert!(op.supports(dtype), "unsupported reduction: {op} of {dtype}");
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
