//! Ranges of user memory, to find overlaps.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::result::CallError;
use ringfold::DType;

/// A range of addresses. An empty range overlaps nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AddressRange {
    pub start: usize,
    pub bytes: usize,
}

impl AddressRange {
    /// The range of `count` elements. `name` is for the error if they do not fit into memory, or `start` is null.
    pub fn of<T>(name: &str, start: *const T, count: usize, dtype: DType) -> Result<Self, CallError> {
        let bytes = count.checked_mul(dtype.bytes()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let Some(bytes) = bytes.filter(|bytes| start.addr().checked_add(*bytes).is_some()) else {
            return Err(CallError::invalid_argument(format!(
                "invalid count for {name}: {count} elements of {dtype} exceed the address space"
            )));
        };
        if start.is_null() && bytes > 0 {
            return Err(CallError::null(name));
        }
        Ok(Self { start: start.addr(), bytes })
    }

    fn end(self) -> usize {
        self.start + self.bytes
    }

    /// Whether the ranges have a byte in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.start < other.end() && other.start < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: usize, bytes: usize) -> AddressRange {
        AddressRange { start, bytes }
    }

    #[test]
    fn neighbours_do_not_overlap() {
        assert!(range(10, 5).overlaps(range(14, 1)) && range(14, 1).overlaps(range(10, 5)));
        assert!(!range(10, 5).overlaps(range(15, 5)) && !range(15, 5).overlaps(range(10, 5)));
        assert!(!range(10, 5).overlaps(range(12, 0)));
    }

    #[test]
    fn counts_beyond_the_address_space_are_rejected() {
        let somewhere: *const u8 = core::ptr::without_provenance(4096);
        assert!(AddressRange::of("x", somewhere, usize::MAX / 2, DType::F64).is_err());
        assert!(AddressRange::of("x", somewhere, isize::MAX as usize, DType::F16).is_err());
        assert!(AddressRange::of("x", core::ptr::null::<u8>(), 1, DType::U8).is_err());
        assert_eq!(AddressRange::of("x", core::ptr::null::<u8>(), 0, DType::U8), Ok(range(0, 0)));
    }
}
