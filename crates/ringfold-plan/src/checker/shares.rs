//! The sizes of the parts of all ranks in a case, and the layout that each rank knows.

use super::symbol::mix;
use crate::layout::Layout;
use crate::ownership::Resumption;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;
use std::sync::Arc;

/// The sizes of all ranks' parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shares {
    /// As equal as possible.
    Even,
    /// One size per rank, known to all.
    Parts(Vec<u64>),
    /// One size per pair, by sender and then by receiver, known only to the two.
    Pairs(Vec<Vec<u64>>),
    /// Those of an all-reduce that is resumed.
    Resumed(Arc<Resumption>),
}

impl Shares {
    /// Random sizes, many of them 0.
    pub fn parts(world: usize, seed: u64) -> Self {
        Self::Parts((0..world as u64).map(|rank| random_size(mix(seed, rank))).collect())
    }

    /// Random sizes of the pairs between which a collective transfers data.
    pub fn pairs(collective: Collective, world: usize, seed: u64) -> Self {
        let ranks = || (0..world).map(Rank::from_index);
        let size = |from: Rank, to: Rank| match collective {
            Collective::Gather { root } if to != root => 0,
            Collective::Scatter { root } if from != root => 0,
            Collective::Transfer { from: sender, to: receiver } if (from, to) != (sender, receiver) => 0,
            _ => random_size(mix(mix(seed, u64::from(from.0)), u64::from(to.0))),
        };
        Self::Pairs(ranks().map(|from| ranks().map(|to| size(from, to)).collect()).collect())
    }

    /// The number of elements, if all ranks know it.
    pub fn count(&self) -> u64 {
        match self {
            Self::Even | Self::Pairs(_) | Self::Resumed(_) => 0,
            Self::Parts(sizes) => sizes.iter().sum(),
        }
    }

    /// The layout that a rank knows.
    pub fn layout(&self, rank: Rank) -> Layout {
        match self {
            Self::Even => Layout::Even,
            Self::Resumed(resumption) => Layout::Resumed(resumption.clone()),
            Self::Parts(sizes) => Layout::Parts(sizes.as_slice().into()),
            Self::Pairs(sizes) => Layout::Pairs {
                send: sizes[rank.index()].as_slice().into(),
                receive: sizes.iter().map(|from| from[rank.index()]).collect(),
            },
        }
    }

    /// The size of each rank's part.
    pub(super) fn sizes(&self, count: u64, world: usize) -> Vec<u64> {
        match self {
            Self::Parts(sizes) => sizes.clone(),
            Self::Even | Self::Pairs(_) | Self::Resumed(_) => {
                let world = world as u64;
                (0..world).map(|rank| count / world + u64::from(rank < count % world)).collect()
            }
        }
    }

    /// The size of the piece from one rank to another in an exchange.
    fn between(&self, descriptor: &Descriptor, world: usize, from: usize, to: usize) -> u64 {
        if let Self::Pairs(sizes) = self {
            return sizes[from][to];
        }
        let parts = self.sizes(descriptor.count, world);
        match descriptor.collective {
            Collective::Gather { root } if to == root.index() => parts[from],
            Collective::Scatter { root } if from == root.index() => parts[to],
            Collective::AllToAll => parts[to],
            Collective::Transfer { from: sender, to: receiver }
                if (from, to) == (sender.index(), receiver.index()) =>
            {
                descriptor.count
            }
            _ => 0,
        }
    }

    /// The origin of an element of a rank's target in an exchange: the rank and the index in its source. `None` beyond
    /// the end of the target.
    pub(super) fn origin(
        &self,
        descriptor: &Descriptor,
        world: usize,
        rank: Rank,
        mut index: u64,
    ) -> Option<(usize, u64)> {
        for from in 0..world {
            let piece = self.between(descriptor, world, from, rank.index());
            if index < piece {
                let before = (0..rank.index()).map(|to| self.between(descriptor, world, from, to));
                return Some((from, before.sum::<u64>() + index));
            }
            index -= piece;
        }
        None
    }
}

/// A small size, often 0.
fn random_size(bits: u64) -> u64 {
    (bits % 9).saturating_sub(3)
}
