//! The abstraction over scalars and vectors that operators are written for.

/// One or more floats that are computed with at once.
///
/// Operators written for these work in plain loops, which the compiler vectorises, and on the hand-written vectors of
/// [`Isa`](crate::isa::Isa).
pub(crate) trait Lanes: Copy {
    /// One boolean per lane.
    type Mask: Copy;

    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;

    /// `self` where it is greater, else `other`, also if either is NaN.
    fn greater(self, other: Self) -> Self;
    /// `self` where it is less, else `other`, also if either is NaN.
    fn less(self, other: Self) -> Self;

    /// The bits that both have; of two zeros, the positive one if there is one.
    fn bits_and(self, other: Self) -> Self;
    /// The bits that either has; of two zeros, the negative one if there is one.
    fn bits_or(self, other: Self) -> Self;

    /// Where either is NaN.
    fn unordered(self, other: Self) -> Self::Mask;
    /// Whether any lane of the mask is set.
    fn any(mask: Self::Mask) -> bool;
    /// Whether any lane is NaN.
    #[inline(always)]
    fn any_nan(self) -> bool {
        Self::any(self.unordered(self))
    }
    /// The canonical NaN where the mask is set, else `self`.
    fn with_nan(self, mask: Self::Mask) -> Self;
}

/// Where a result is NaN, given by its operands, so that testing for any NaN is cheap.
pub(crate) enum Nan<L> {
    /// Where this is NaN.
    In(L),
    /// Where one of these is NaN.
    InEither(L, L),
}

impl<L: Lanes> Nan<L> {
    #[inline(always)]
    pub(crate) fn mask(&self) -> L::Mask {
        match *self {
            Self::In(lanes) => lanes.unordered(lanes),
            Self::InEither(a, b) => a.unordered(b),
        }
    }

    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        match *self {
            Self::In(lanes) => lanes.any_nan(),
            Self::InEither(a, b) => L::any(a.unordered(b)),
        }
    }
}

macro_rules! lanes {
    ($($real:ident)*) => {$(
        impl Lanes for $real {
            type Mask = bool;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                if self > other { self } else { other }
            }

            #[inline(always)]
            fn less(self, other: Self) -> Self {
                if self < other { self } else { other }
            }

            #[inline(always)]
            fn bits_and(self, other: Self) -> Self {
                $real::from_bits(self.to_bits() & other.to_bits())
            }

            #[inline(always)]
            fn bits_or(self, other: Self) -> Self {
                $real::from_bits(self.to_bits() | other.to_bits())
            }

            #[inline(always)]
            fn unordered(self, other: Self) -> bool {
                self.is_nan() | other.is_nan()
            }

            #[inline(always)]
            fn any(mask: bool) -> bool {
                mask
            }

            #[inline(always)]
            fn with_nan(self, mask: bool) -> Self {
                if mask { $real::NAN } else { self }
            }
        }
    )*};
}

lanes! { f32 f64 }

macro_rules! elementwise {
    ($($name:ident)*) => {$(
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            zip(self, other, L::$name)
        }
    )*};
}

/// An array of lanes. Plain loops, since closures would not inherit the caller's instruction set.
impl<L: Lanes, const N: usize> Lanes for [L; N] {
    type Mask = [L::Mask; N];

    elementwise! { add mul greater less bits_and bits_or }

    #[inline(always)]
    fn unordered(self, other: Self) -> [L::Mask; N] {
        let mut mask = [self[0].unordered(other[0]); N];
        for i in 1..N {
            mask[i] = self[i].unordered(other[i]);
        }
        mask
    }

    #[inline(always)]
    fn any(mask: [L::Mask; N]) -> bool {
        let mut any = false;
        for lane in mask {
            any |= L::any(lane);
        }
        any
    }

    #[inline(always)]
    fn any_nan(self) -> bool {
        // One comparison tests two.
        let (pairs, rest) = self.as_chunks::<2>();
        let mut any = false;
        for [a, b] in pairs {
            any |= L::any(a.unordered(*b));
        }
        for lane in rest {
            any |= lane.any_nan();
        }
        any
    }

    #[inline(always)]
    fn with_nan(mut self, mask: [L::Mask; N]) -> Self {
        for i in 0..N {
            self[i] = self[i].with_nan(mask[i]);
        }
        self
    }
}

#[inline(always)]
fn zip<L: Lanes, const N: usize>(mut left: [L; N], right: [L; N], f: impl Fn(L, L) -> L) -> [L; N] {
    for i in 0..N {
        left[i] = f(left[i], right[i]);
    }
    left
}
