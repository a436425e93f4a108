//! The operations of reductions. To add one, add a line to the table and an implementation.

use crate::lanes::{Lanes, Nan};
use crate::number::Integer;

/// Evaluates `$body` with `$O` as the [`Operator`] of a `ReduceOp`: the table of operations.
macro_rules! with_operator {
    ($op:expr, $O:ident => $body:expr) => {
        with_operator! { @table $op, $O => $body;
            // An average is divided once, after the sum; the elements of a premultiplied sum are multiplied before.
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

/// An operation on two numbers.
///
/// It must commute bit for bit, including NaNs and signed zeros, so that results do not depend on the order of operands
/// that a plan or compiler chooses.
pub(crate) trait Operator {
    fn integers<T: Integer>(left: T, right: T) -> T;

    /// Returns the result for floats, and the lanes where it is NaN, which callers replace by the canonical NaN.
    ///
    /// Processors disagree about sign and payload of NaNs, and compilers may swap operands. Bitwise operations do not
    /// support floats.
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

/// The maximum. NaN if either operand is; +0 is greater than -0.
pub(crate) struct Max;

impl Operator for Max {
    #[inline(always)]
    fn integers<T: Integer>(left: T, right: T) -> T {
        left.max(right)
    }

    #[inline(always)]
    fn reals<T: Lanes>(left: T, right: T) -> (T, Nan<T>) {
        // The two differ only for equal numbers, whose bits differ only if they are zeros: the common bits are those of
        // the greater zero.
        (left.greater(right).bits_and(right.greater(left)), Nan::InEither(left, right))
    }
}

/// The minimum. NaN if either operand is; -0 is less than +0.
pub(crate) struct Min;

impl Operator for Min {
    #[inline(always)]
    fn integers<T: Integer>(left: T, right: T) -> T {
        left.min(right)
    }

    #[inline(always)]
    fn reals<T: Lanes>(left: T, right: T) -> (T, Nan<T>) {
        // As in `Max`; the union of the bits is the smaller zero.
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
