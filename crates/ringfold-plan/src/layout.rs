//! The sizes of the parts of a collective.

use crate::ownership::Resumption;
use crate::parts::{Parts, Span};
use ringfold_proto::descriptor::{Collective, Descriptor, mix};
use ringfold_proto::id::Rank;
use std::sync::Arc;

/// The sizes of parts, in elements.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Layout {
    /// One part per rank, as equal as possible.
    #[default]
    Even,
    /// One size per rank, known to all ranks. The sum is the descriptor's count.
    Parts(Arc<[u64]>),
    /// One size per pair of ranks, known only to the two. `send` and `receive` have an entry for each rank, including
    /// this one. The descriptor's count is 0, because it must be equal on all ranks. Parts are contiguous in rank order.
    Pairs { send: Arc<[u64]>, receive: Arc<[u64]> },
    /// Those of an all-reduce that lost ranks, and what owners hold, known to all ranks.
    Resumed(Arc<Resumption>),
}

impl Layout {
    /// Elements that this rank sends to another; none unless sizes are per pair.
    pub fn sends(&self, to: Rank) -> Option<u64> {
        match self {
            Self::Pairs { send, .. } => send.get(to.index()).copied(),
            _ => None,
        }
    }

    /// Elements that this rank receives from another; none unless sizes are per pair.
    pub fn receives(&self, from: Rank) -> Option<u64> {
        match self {
            Self::Pairs { receive, .. } => receive.get(from.index()).copied(),
            _ => None,
        }
    }

    /// Whether sizes are per pair.
    pub fn is_pairwise(&self) -> bool {
        matches!(self, Self::Pairs { .. })
    }

    /// The parts of an operation, one per rank.
    pub fn parts(&self, descriptor: &Descriptor, world: usize) -> Parts {
        match self {
            Self::Parts(sizes) => Parts::sized(sizes),
            Self::Even | Self::Pairs { .. } | Self::Resumed(_) => Parts::even(descriptor.count, world as u16),
        }
    }

    /// A fingerprint that covers the layout, as far as all ranks know it.
    pub fn add_to_fingerprint(&self, fingerprint: u64) -> u64 {
        match self {
            Self::Even => fingerprint,
            Self::Parts(sizes) => sizes.iter().copied().fold(mix(fingerprint, 1), mix),
            Self::Pairs { .. } => mix(fingerprint, 2),
            Self::Resumed(resumption) => resumption.digest(mix(fingerprint, 3)),
        }
    }

    /// Why the layout is invalid for a rank in an operation. The rank and the roots are in the world.
    pub(crate) fn flaw(&self, descriptor: &Descriptor, world: usize, me: Rank) -> Option<&'static str> {
        let total = |sizes: &[u64]| sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(*size));
        match (self, descriptor.collective) {
            (Self::Even, _) => None,
            (Self::Resumed(resumption), _) => resumption.flaw(descriptor, world),
            (
                Self::Parts(_),
                Collective::Broadcast { .. } | Collective::Barrier | Collective::Transfer { .. },
            ) => Some("this collective does not support parts"),
            (Self::Parts(sizes), _) if sizes.len() != world => Some("must have one part per rank"),
            (Self::Parts(sizes), _) if total(sizes) != Some(descriptor.count) => {
                Some("the sum of the parts must be the count")
            }
            (Self::Parts(_), _) => None,
            (
                Self::Pairs { send, receive },
                collective @ (Collective::Gather { .. }
                | Collective::Scatter { .. }
                | Collective::AllToAll
                | Collective::Transfer { .. }),
            ) => {
                let is_idle = |from: Rank, to: Rank| !transfers(collective, from, to);
                let ranks = || (0..world).map(Rank::from_index);
                if send.len() != world || receive.len() != world {
                    Some("must have one size per rank")
                } else if total(send).is_none() || total(receive).is_none() {
                    Some("the sum of the sizes overflows")
                } else if send[me.index()] != receive[me.index()] {
                    Some("the sizes that this rank sends to and receives from itself differ")
                } else if ranks().any(|to| is_idle(me, to) && send[to.index()] != 0)
                    || ranks().any(|from| is_idle(from, me) && receive[from.index()] != 0)
                {
                    Some("it has sizes for pairs between which this collective transfers nothing")
                } else {
                    (descriptor.count != 0).then_some("the count must be 0 if sizes are per pair")
                }
            }
            (Self::Pairs { .. }, _) => Some("this collective does not support sizes per pair"),
        }
    }
}

/// Whether a collective transfers a piece from one rank to another, or to itself.
fn transfers(collective: Collective, from: Rank, to: Rank) -> bool {
    match collective {
        Collective::Gather { root } => to == root,
        Collective::Scatter { root } => from == root,
        Collective::AllToAll => true,
        Collective::Transfer { from: sender, to: receiver } => (from, to) == (sender, receiver),
        _ => false,
    }
}

/// The pieces of one rank in a gather, scatter, all-to-all or transfer: to and from each rank, including itself. `None`
/// where the collective transfers nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pieces {
    /// The elements of the source for each rank.
    pub send: Vec<Option<Span>>,
    /// The elements of the target from each rank.
    pub receive: Vec<Option<Span>>,
}

impl Pieces {
    /// The pieces of a rank; none in other collectives.
    pub fn of(descriptor: &Descriptor, layout: &Layout, world: usize, me: Rank) -> Self {
        let (collective, parts) = (descriptor.collective, layout.parts(descriptor, world));
        let between = |from: Rank, to: Rank| {
            transfers(collective, from, to).then(|| match collective {
                Collective::Gather { .. } => parts.of(from).count,
                Collective::Transfer { .. } => descriptor.count,
                _ => parts.of(to).count,
            })
        };
        let contiguous = |size_of: &dyn Fn(Rank) -> Option<u64>| {
            let mut start = 0;
            let mut append = |count: u64| {
                start += count;
                Span { start: start - count, count }
            };
            (0..world).map(|rank| size_of(Rank::from_index(rank)).map(&mut append)).collect()
        };
        Self {
            send: contiguous(&|to| between(me, to).map(|even| layout.sends(to).unwrap_or(even))),
            receive: contiguous(&|from| between(from, me).map(|even| layout.receives(from).unwrap_or(even))),
        }
    }

    /// Elements of the source.
    pub fn sent(&self) -> u64 {
        self.send.iter().flatten().map(|piece| piece.count).sum()
    }

    /// Elements of the target.
    pub fn received(&self) -> u64 {
        self.receive.iter().flatten().map(|piece| piece.count).sum()
    }
}
