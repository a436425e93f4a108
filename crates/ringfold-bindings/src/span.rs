//! Where memory that C names lies, for the question whether two pieces of it overlap.

use crate::result::Failure;
use ringfold::DType;

/// Some bytes, by address. None at all if it is empty: then it overlaps nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span {
    /// The first one.
    pub start: usize,
    /// How many.
    pub bytes: usize,
}

impl Span {
    /// So many elements from here on; they must fit into the address space, and be somewhere.
    pub fn of<T>(name: &str, start: *const T, count: usize, dtype: DType) -> Result<Self, Failure> {
        let bytes = count.checked_mul(dtype.bytes()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let Some(bytes) = bytes.filter(|bytes| start.addr().checked_add(*bytes).is_some()) else {
            return Err(Failure::argument(format!("{name}: no memory holds {count} elements of {dtype}")));
        };
        if start.is_null() && bytes > 0 {
            return Err(Failure::null(name));
        }
        Ok(Self { start: start.addr(), bytes })
    }

    fn end(self) -> usize {
        self.start + self.bytes
    }

    /// Whether there is a byte in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.start < other.end() && other.start < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: usize, bytes: usize) -> Span {
        Span { start, bytes }
    }

    #[test]
    fn neighbours_do_not_overlap() {
        assert!(span(10, 5).overlaps(span(14, 1)) && span(14, 1).overlaps(span(10, 5)));
        assert!(!span(10, 5).overlaps(span(15, 5)) && !span(15, 5).overlaps(span(10, 5)));
        assert!(!span(10, 5).overlaps(span(12, 0)));
    }

    #[test]
    fn counts_beyond_the_address_space_are_refused() {
        let somewhere: *const u8 = core::ptr::without_provenance(4096);
        assert!(Span::of("x", somewhere, usize::MAX / 2, DType::F64).is_err());
        assert!(Span::of("x", somewhere, isize::MAX as usize, DType::F16).is_err());
        assert!(Span::of("x", core::ptr::null::<u8>(), 1, DType::U8).is_err());
        assert_eq!(Span::of("x", core::ptr::null::<u8>(), 0, DType::U8), Ok(span(0, 0)));
    }
}
