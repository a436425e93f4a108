//! Symbolic elements, which record how they were computed.

/// The symbolic value of an element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Symbol {
    /// Its position in the whole tensor.
    pub(super) element: u64,
    /// The ranks whose data is in it, one bit each.
    pub(super) ranks: u64,
    /// A hash of the expression, including order and association. It represents the bits of the value.
    pub(super) bits: u64,
    /// Whether it was settled.
    pub(super) settled: bool,
    /// Whether it is a rank's own data in the source, which a workspace weights when it reads it.
    pub(super) raw: bool,
}

/// An error in an element.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ElementFault {
    /// It was read before it was written.
    #[error("is read before it is written")]
    Unwritten,
    /// It was reduced from different elements.
    #[error("is reduced from elements {left} and {right}")]
    Misplaced { left: u64, right: u64 },
    /// A rank's data is in both operands.
    #[error("contains the data of rank {0} twice")]
    Twice(u32),
    /// The operand with the lowest rank was on the right.
    #[error("has the operand with the lowest rank {0} on the right")]
    WrongSide(u32),
    /// It was reduced or settled after it was settled.
    #[error("is changed after it was settled")]
    Settled,
    /// It was settled without the data of some rank.
    #[error("is settled without the data of rank {0}")]
    Incomplete(u32),
    /// The source was read after it was overwritten.
    #[error("is read as own data after it was overwritten")]
    NotOwn,
    /// Own data was read from another buffer than the source.
    #[error("is own data, but read as a partial result")]
    Own,
}

impl Symbol {
    /// An element of a rank's own data.
    pub(super) fn own(rank: usize, element: u64) -> Self {
        let bits = mix(mix(0x1357, rank as u64), element);
        Self { element, ranks: 1 << rank, bits, settled: false, raw: true }
    }

    /// The reduction of two operands.
    pub(super) fn combine(left: Self, right: Self) -> Result<Self, ElementFault> {
        if left.element != right.element {
            return Err(ElementFault::Misplaced { left: left.element, right: right.element });
        }
        if left.settled || right.settled {
            return Err(ElementFault::Settled);
        }
        if left.ranks & right.ranks != 0 {
            return Err(ElementFault::Twice((left.ranks & right.ranks).trailing_zeros()));
        }
        if left.ranks.trailing_zeros() > right.ranks.trailing_zeros() {
            return Err(ElementFault::WrongSide(right.ranks.trailing_zeros()));
        }
        let bits = mix(mix(0x2468, left.bits), right.bits);
        Ok(Self { ranks: left.ranks | right.ranks, bits, ..left })
    }

    /// Settles the element, which must contain all of `ranks`.
    pub(super) fn settle(self, ranks: u64) -> Result<Self, ElementFault> {
        if self.settled {
            return Err(ElementFault::Settled);
        }
        if self.ranks != ranks {
            return Err(ElementFault::Incomplete((ranks & !self.ranks).trailing_zeros()));
        }
        Ok(Self { settled: true, bits: mix(0x369c, self.bits), ..self })
    }
}

/// A 64-bit hash step; order matters.
pub(super) fn mix(state: u64, value: u64) -> u64 {
    let mut x = state.rotate_left(29) ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
