//! How much goes from whom to whom, where a collective's parts are not all equal.

use crate::parts::{Parts, Span};
use ringfold_proto::descriptor::{Collective, Descriptor, mix};
use ringfold_proto::id::Rank;
use std::sync::Arc;

/// The sizes of parts, in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Layout {
    /// The whole is cut into one part per rank, as equal as can be.
    #[default]
    Even,
    /// Each rank's part has its own size, which all ranks know. They add up to the descriptor's count.
    Parts(Arc<[u64]>),
    /// Each pair of ranks has its own size, which only those two know: what this rank sends to each, and what it
    /// gets from each. The descriptor's count is 0, since it must be equal on all ranks. Parts lie behind each
    /// other in the order of ranks.
    Pairs {
        /// To each rank, oneself included.
        send: Arc<[u64]>,
        /// From each rank, oneself included.
        receive: Arc<[u64]>,
    },
}

impl Layout {
    /// Elements that this rank sends to another, if the sizes of pairs are its own affair.
    pub fn sends(&self, to: Rank) -> Option<u64> {
        match self {
            Self::Pairs { send, .. } => send.get(to.index()).copied(),
            _ => None,
        }
    }

    /// Elements that this rank gets from another, likewise.
    pub fn receives(&self, from: Rank) -> Option<u64> {
        match self {
            Self::Pairs { receive, .. } => receive.get(from.index()).copied(),
            _ => None,
        }
    }

    /// Whether only the two ranks of a pair know how much goes between them.
    pub fn is_pairwise(&self) -> bool {
        matches!(self, Self::Pairs { .. })
    }

    /// The whole of an operation, cut into one part per rank.
    pub fn parts(&self, descriptor: &Descriptor, world: usize) -> Parts {
        match self {
            Self::Parts(sizes) => Parts::sized(sizes),
            Self::Even | Self::Pairs { .. } => Parts::even(descriptor.count, world as u16),
        }
    }

    /// A fingerprint that covers the layout too, as far as all ranks know it.
    pub(crate) fn stamp(&self, fingerprint: u64) -> u64 {
        match self {
            Self::Even => fingerprint,
            Self::Parts(sizes) => sizes.iter().copied().fold(mix(fingerprint, 1), mix),
            Self::Pairs { .. } => mix(fingerprint, 2),
        }
    }

    /// What is wrong with it, for a rank's part in an operation; both the rank and the roots are in the world.
    pub(crate) fn flaw(&self, descriptor: &Descriptor, world: usize, me: Rank) -> Option<&'static str> {
        let total = |sizes: &[u64]| sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(*size));
        match (self, descriptor.collective) {
            (Self::Even, _) => None,
            (
                Self::Parts(_),
                Collective::Broadcast { .. } | Collective::Barrier | Collective::Transfer { .. },
            ) => Some("this collective has no parts"),
            (Self::Parts(sizes), _) if sizes.len() != world => Some("there is not one part per rank"),
            (Self::Parts(sizes), _) if total(sizes) != Some(descriptor.count) => {
                Some("the parts are not as long as the whole")
            }
            (Self::Parts(_), _) => None,
            (
                Self::Pairs { send, receive },
                collective @ (Collective::Gather { .. }
                | Collective::Scatter { .. }
                | Collective::AllToAll
                | Collective::Transfer { .. }),
            ) => {
                let is_idle = |from: Rank, to: Rank| !goes(collective, from, to);
                let ranks = || (0..world).map(Rank::from_index);
                if send.len() != world || receive.len() != world {
                    Some("there is not one size per rank")
                } else if total(send).is_none() || total(receive).is_none() {
                    Some("the sizes are beyond all memory")
                } else if send[me.index()] != receive[me.index()] {
                    Some("this rank does not send itself what it gets from itself")
                } else if ranks().any(|to| is_idle(me, to) && send[to.index()] != 0)
                    || ranks().any(|from| is_idle(from, me) && receive[from.index()] != 0)
                {
                    Some("it has sizes where this collective moves nothing")
                } else {
                    (descriptor.count != 0).then_some("sizes of pairs have no common count")
                }
            }
            (Self::Pairs { .. }, _) => Some("this collective has no sizes of pairs"),
        }
    }
}

/// Whether a collective moves something straight from one rank to another, or from a rank to itself.
fn goes(collective: Collective, from: Rank, to: Rank) -> bool {
    match collective {
        Collective::Gather { root } => to == root,
        Collective::Scatter { root } => from == root,
        Collective::AllToAll => true,
        Collective::Transfer { from: sender, to: receiver } => (from, to) == (sender, receiver),
        _ => false,
    }
}

/// What one rank exchanges in a gather, a scatter, an all-to-all or a transfer: to and from each rank, itself
/// included. `None` where the collective moves nothing that way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pieces {
    /// Where what goes to each rank lies in the source.
    pub send: Vec<Option<Span>>,
    /// Where what comes from each rank lies in the target.
    pub receive: Vec<Option<Span>>,
}

impl Pieces {
    /// Those of a rank. Other collectives have none.
    pub fn of(descriptor: &Descriptor, layout: &Layout, world: usize, me: Rank) -> Self {
        let (collective, parts) = (descriptor.collective, layout.parts(descriptor, world));
        let between = |from: Rank, to: Rank| {
            goes(collective, from, to).then(|| match collective {
                Collective::Gather { .. } => parts.of(from).count,
                Collective::Transfer { .. } => descriptor.count,
                _ => parts.of(to).count,
            })
        };
        let line_up = |size_of: &dyn Fn(Rank) -> Option<u64>| {
            let mut start = 0;
            let place = |count: u64| {
                start += count;
                Span { start: start - count, count }
            };
            let mut place = place;
            (0..world).map(|rank| size_of(Rank::from_index(rank)).map(&mut place)).collect()
        };
        Self {
            send: line_up(&|to| between(me, to).map(|even| layout.sends(to).unwrap_or(even))),
            receive: line_up(&|from| between(from, me).map(|even| layout.receives(from).unwrap_or(even))),
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
