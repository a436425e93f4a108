//! What a reduction does with two numbers. Adding an operation touches this file alone: a line in the table
//! and an implementation.

use crate::lanes::{Lanes, Nan};
use crate::number::Integer;

/// Evaluates `$body` with `$O` standing for the [`Operator`] of a `ReduceOp`: the table of operations.
macro_rules! with_operator {
    ($op:expr, $O:ident => $body:expr) => {
        with_operator! { @table $op, $O => $body;
            // An average is a sum that is divided once, at the end; a premultiplied sum is one whose
            // elements were multiplied before.
            Sum | Avg | PremulSum => Sum,
            Prod => Prod,
            Max => Max,
            Min => Min,
            BitAnd => BitAnd,
            BitOr => BitOr,
            BitXor => BitXor,
        }
    };
    (@table $op:expr, $O:ident => $body:expr; $($($variant:ident)|+ => $operator:ident,)*) => {
        match $op {
            $($(ringfold_proto::reduce_op::ReduceOp::$variant)|+ => {
                type $O = $crate::operator::$operator;
                $body
            })*
        }
    };
}
pub(crate) use with_operator;

/// An operation on two numbers, for every sort of number that it makes sense for.
///
/// Each must commute to the bit, NaN and signed zeros included: then no order of operands, chosen by a plan
/// or by a compiler, can make peers differ.
pub(crate) trait Operator {
    fn integers<T: Integer>(left: T, right: T) -> T;

    /// Floats, and where the result is NaN: whatever is returned there is replaced by the canonical NaN.
    ///
    /// Processors disagree about sign and payload of a NaN, and compilers may swap operands; without that,
    /// peers on different machines would end with different bits. Operations on bits have no meaning here.
    fn reals<T: Lanes>(_left: T, _right: T) -> (T, Nan<T>) {
        unreachable!("callers check that the operation supports the type")
    }
}

/// The sum; integers wrap.
pub(crate) struct Sum;

impl Operator for Sum {
    #[inline(always)]
    fn integers<T: Integer>(left: T, right: T) -> T {
        left.wrapping_add(right)
    }

    #[inline(always)]
    fn reals<T: Lanes>(left: T, right: T) -> (T, Nan<T>) {
        let sum = left.add(right);
        (sum, Nan::In(sum))
    }
}

/// The product; integers wrap.
pub(crate) struct Prod;

impl Operator for Prod {
    #[inline(always)]
    fn integers<T: Integer>(left: T, right: T) -> T {
        left.wrapping_mul(right)
    }

    #[inline(always)]
    fn reals<T: Lanes>(left: T, right: T) -> (T, Nan<T>) {
        let product = left.mul(right);
        (product, Nan::In(product))
    }
}

/// The largest. NaN if either is NaN; the positive zero is larger than the negative one.
pub(crate) struct Max;

impl Operator for Max {
    #[inline(always)]
    fn integers<T: Integer>(left: T, right: T) -> T {
        left.max(right)
    }

    #[inline(always)]
    fn reals<T: Lanes>(left: T, right: T) -> (T, Nan<T>) {
        // The two differ only for equal numbers, whose bits differ only if they are zeros: so the bits that
        // both have are those of the larger zero.
        (left.greater(right).bits_and(right.greater(left)), Nan::InEither(left, right))
    }
}

/// The smallest. NaN if either is NaN; the negative zero is smaller than the positive one.
pub(crate) struct Min;

impl Operator for Min {
    #[inline(always)]
    fn integers<T: Integer>(left: T, right: T) -> T {
        left.min(right)
    }

    #[inline(always)]
    fn reals<T: Lanes>(left: T, right: T) -> (T, Nan<T>) {
        // As in `Max`; the bits that either has are those of the smaller zero.
        (left.less(right).bits_or(right.less(left)), Nan::InEither(left, right))
    }
}

/// Bitwise and.
pub(crate) struct BitAnd;

impl Operator for BitAnd {
    #[inline(always)]
    fn integers<T: Integer>(left: T, right: T) -> T {
        left & right
    }
}

/// Bitwise or.
pub(crate) struct BitOr;

impl Operator for BitOr {
    #[inline(always)]
    fn integers<T: Integer>(left: T, right: T) -> T {
        left | right
    }
}

/// Bitwise exclusive or.
pub(crate) struct BitXor;

impl Operator for BitXor {
    #[inline(always)]
    fn integers<T: Integer>(left: T, right: T) -> T {
        left ^ right
    }
}
