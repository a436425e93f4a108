//! Checks of the buffers of all-reduces.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::address_range::AddressRange;
use crate::result::CallError;
use ringfold::{AllReduce, DType};

/// The arguments of an all-reduce whose buffers were checked.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceArgs {
    pub send: AddressRange,
    /// The output; equal to `send` for an all-reduce in place.
    pub recv: AddressRange,
    /// The tag, also in `options`.
    pub tag: u64,
    pub dtype: DType,
    pub options: AllReduce,
}

impl AllReduceArgs {
    /// Checks that the buffers are equal or disjoint.
    pub fn new(
        send: AddressRange,
        recv: AddressRange,
        dtype: DType,
        tag: u64,
        options: AllReduce,
    ) -> Result<Self, CallError> {
        if send != recv && send.overlaps(recv) {
            return Err(CallError::invalid_argument(
                "invalid buffers: the send and the receive buffer overlap in part",
            ));
        }
        Ok(Self { send, recv, tag, dtype, options: options.tag(tag) })
    }

    /// Whether the output is the input.
    pub fn is_in_place(&self) -> bool {
        self.send == self.recv
    }
}

/// Checks that no operation writes memory that another one uses.
pub fn require_disjoint(operands: &[AllReduceArgs]) -> Result<(), CallError> {
    // Sorted by start, so that only ranges that have not ended need to be compared.
    let ranges = |(i, o): (usize, &AllReduceArgs)| [(o.recv, true, i), (o.send, false, i)];
    let mut ranges: Vec<_> = operands.iter().enumerate().flat_map(ranges).filter(|s| s.0.bytes > 0).collect();
    ranges.sort_unstable();
    let mut open: Vec<(AddressRange, bool, usize)> = Vec::new();
    for next in ranges {
        open.retain(|o| o.0.overlaps(next.0));
        if let Some(other) = open.iter().find(|o| o.2 != next.2 && (o.1 || next.1)) {
            return Err(CallError::invalid_argument(format!(
                "invalid buffers: those of tag {} and tag {} overlap",
                operands[other.2].tag, operands[next.2].tag
            )));
        }
        open.push(next);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(send: usize, recv: usize) -> Result<AllReduceArgs, CallError> {
        let at = |start| AddressRange { start, bytes: 16 };
        AllReduceArgs::new(at(send), at(recv), DType::F32, 0, AllReduce::sum())
    }

    fn at(send: usize, recv: usize) -> AllReduceArgs {
        checked(send, recv).unwrap()
    }

    #[test]
    fn buffers_are_the_same_or_apart() {
        assert!(checked(4096, 4096).is_ok() && checked(4096, 4112).is_ok());
        assert!(checked(4096, 4111).is_err() && checked(4111, 4096).is_err());
    }

    #[test]
    fn several_may_read_the_same_memory_and_none_may_write_what_another_uses() {
        assert!(require_disjoint(&[at(4096, 8192), at(4096, 9000)]).is_ok());
        assert!(require_disjoint(&[at(4096, 4096), at(8192, 8192)]).is_ok());
        assert!(require_disjoint(&[at(4096, 8192), at(5000, 8200)]).is_err());
        assert!(require_disjoint(&[at(4096, 8192), at(8192, 9000)]).is_err());
    }
}
