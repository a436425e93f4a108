//! An element that remembers how it came to be.

/// What stands for the value of one element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Symbol {
    /// Its position in the whole.
    pub(super) element: u64,
    /// The ranks whose data is in it, one bit each.
    pub(super) ranks: u64,
    /// A hash of the expression: other operands, another order or another association give another one.
    /// It stands for the bits of the value.
    pub(super) bits: u64,
    /// Whether it was settled.
    pub(super) settled: bool,
    /// Whether it is a rank's own data, not yet read as such: what a workspace would weigh when it does.
    pub(super) raw: bool,
}

/// What may be wrong with an element.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Trouble {
    /// It was read before anything was written there.
    #[error("is read before it is written")]
    Unwritten,
    /// Data of other elements got there.
    #[error("gets data of elements {left} and {right} of the whole")]
    Misplaced {
        /// What the left operand is.
        left: u64,
        /// What the right operand is.
        right: u64,
    },
    /// Some rank's data is in both operands.
    #[error("gets the data of rank {0} twice")]
    Twice(u32),
    /// The operand with the lowest rank in it stood on the right.
    #[error("has the operand with rank {0}, the lowest, on the right")]
    WrongSide(u32),
    /// It was combined, or settled again, after it had been settled.
    #[error("is changed after it was settled")]
    Settled,
    /// It was settled without the data of some rank.
    #[error("is settled without the data of rank {0}")]
    Incomplete(u32),
    /// Something else than own data was read as the source.
    #[error("is read as own data after it was overwritten")]
    NotOwn,
    /// Own data was read elsewhere than from the source.
    #[error("is own data that is read as a partial result")]
    Own,
}

impl Symbol {
    /// An element of a rank's own data.
    pub(super) fn own(rank: usize, element: u64) -> Self {
        let bits = mix(mix(0x1357, rank as u64), element);
        Self { element, ranks: 1 << rank, bits, settled: false, raw: true }
    }

    /// The combination of two operands.
    pub(super) fn combine(left: Self, right: Self) -> Result<Self, Trouble> {
        if left.element != right.element {
            return Err(Trouble::Misplaced { left: left.element, right: right.element });
        }
        if left.settled || right.settled {
            return Err(Trouble::Settled);
        }
        if left.ranks & right.ranks != 0 {
            return Err(Trouble::Twice((left.ranks & right.ranks).trailing_zeros()));
        }
        if left.ranks.trailing_zeros() > right.ranks.trailing_zeros() {
            return Err(Trouble::WrongSide(right.ranks.trailing_zeros()));
        }
        let bits = mix(mix(0x2468, left.bits), right.bits);
        Ok(Self { ranks: left.ranks | right.ranks, bits, ..left })
    }

    /// The element, settled: all of `ranks` must be in it.
    pub(super) fn settle(self, ranks: u64) -> Result<Self, Trouble> {
        if self.settled {
            return Err(Trouble::Settled);
        }
        if self.ranks != ranks {
            return Err(Trouble::Incomplete((ranks & !self.ranks).trailing_zeros()));
        }
        Ok(Self { settled: true, bits: mix(0x369c, self.bits), ..self })
    }
}

/// A 64-bit mixer: order matters, and every input bit changes about half of the output's.
pub(super) fn mix(state: u64, value: u64) -> u64 {
    let mut x = state.rotate_left(29) ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
