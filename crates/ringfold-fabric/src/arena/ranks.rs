//! A set of the ranks of an arena.

use core::fmt;
use ringfold_proto::id::Rank;

/// A set of ranks of an arena, of which there are 64 at most.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Ranks(pub(super) u64);

impl Ranks {
    /// The most ranks of an arena.
    pub const MAX: usize = 64;

    /// No rank.
    pub const NONE: Self = Self(0);

    /// The ranks 0 to `world` − 1.
    pub fn all(world: usize) -> Self {
        Self(if world >= Self::MAX { u64::MAX } else { (1 << world) - 1 })
    }

    /// This rank alone.
    pub fn one(rank: Rank) -> Self {
        debug_assert!(rank.index() < Self::MAX);
        Self(1 << (rank.index() % Self::MAX))
    }

    /// The set without a rank.
    #[must_use]
    pub fn without(self, rank: Rank) -> Self {
        Self(self.0 & !Self::one(rank).0)
    }

    /// Whether the set has this rank.
    pub fn contains(self, rank: Rank) -> bool {
        self.0 & Self::one(rank).0 != 0
    }

    /// Whether it is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for Ranks {
    type Item = Rank;

    #[inline]
    fn next(&mut self) -> Option<Rank> {
        if self.0 == 0 {
            return None;
        }
        let rank = Rank(self.0.trailing_zeros() as u16);
        self.0 &= self.0 - 1;
        Some(rank)
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.map(|rank| rank.0)).finish()
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for rank in *self {
            write!(f, "{between}{}", rank.0)?;
            between = ", ";
        }
        Ok(())
    }
}
