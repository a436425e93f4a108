//! The operations that can be measured.

use clap::ValueEnum;
use std::fmt;
use std::str::FromStr;

/// A collective, a transfer or a barrier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum BenchOp {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Gather,
    Scatter,
    AllToAll,
    /// From the first rank to the last and back; the time is half of the round trip.
    Transfer,
    Barrier,
}

/// Whether the result replaces the input.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Placement {
    In,
    Out,
}

/// The sizes of a rank's buffers in elements. Without a receive buffer the result replaces the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ElementCounts {
    pub(crate) sent: usize,
    pub(crate) received: usize,
}

impl BenchOp {
    pub(crate) const ALL: &'static [Self] = &[
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Transfer,
        Self::Barrier,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Transfer => "transfer",
            Self::Barrier => "barrier",
        }
    }

    /// The factor of nccl-tests between algorithm bandwidth and bus bandwidth.
    pub(crate) fn bus_factor(self, world: usize) -> f64 {
        let n = world as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter | Self::Gather | Self::Scatter | Self::AllToAll => {
                (n - 1.0) / n
            }
            Self::Reduce | Self::Broadcast | Self::Transfer => 1.0,
            Self::Barrier => 0.0,
        }
    }

    /// Whether the operation reduces.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether the tensor is divided among the ranks, so that its length must be a multiple of the world.
    pub(crate) fn has_parts(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::Gather | Self::Scatter | Self::AllToAll)
    }

    /// The supported forms, the usual one first.
    pub(crate) fn placements(self) -> &'static [Placement] {
        match self {
            Self::AllReduce => &[Placement::In, Placement::Out],
            Self::Reduce | Self::Broadcast => &[Placement::In],
            _ => &[Placement::Out],
        }
    }

    /// The number of timed operations per call.
    pub(crate) fn trips(self) -> u64 {
        if self == Self::Transfer { 2 } else { 1 }
    }

    /// The buffer sizes of a rank in a call on a tensor of `count` elements.
    pub(crate) fn element_counts(
        self,
        place: Placement,
        count: usize,
        rank: usize,
        world: usize,
    ) -> ElementCounts {
        let (part, root) = (count / world, rank == 0);
        let (sent, received) = match self {
            Self::AllReduce => (count, if place == Placement::Out { count } else { 0 }),
            Self::Reduce | Self::Broadcast => (count, 0),
            Self::AllGather => (part, count),
            Self::ReduceScatter => (count, part),
            Self::Gather => (part, if root { count } else { 0 }),
            Self::Scatter => (if root { count } else { 0 }, part),
            Self::AllToAll => (count, count),
            Self::Transfer if root || rank == world - 1 => (count, count),
            Self::Transfer | Self::Barrier => (0, 0),
        };
        ElementCounts { sent, received }
    }
}

impl fmt::Display for BenchOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BenchOp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().replace('-', "_").to_ascii_lowercase();
        Self::ALL.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("unknown collective {text:?}: must be one of {}", names.join(", "))
        })
    }
}

impl Placement {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for &kind in BenchOp::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!("All-To-All".parse(), Ok(BenchOp::AllToAll));
        assert!("all".parse::<BenchOp>().unwrap_err().contains("reduce_scatter"));
    }

    #[test]
    fn the_factors_are_those_of_nccl_tests() {
        let factors = |kind: BenchOp| [2, 4].map(|world| kind.bus_factor(world));
        assert_eq!(factors(BenchOp::AllReduce), [1.0, 1.5]);
        for kind in
            [BenchOp::AllGather, BenchOp::ReduceScatter, BenchOp::Gather, BenchOp::Scatter, BenchOp::AllToAll]
        {
            assert_eq!(factors(kind), [0.5, 0.75], "{kind}");
        }
        for kind in [BenchOp::Reduce, BenchOp::Broadcast, BenchOp::Transfer] {
            assert_eq!(factors(kind), [1.0, 1.0], "{kind}");
        }
    }

    #[test]
    fn buffers_have_the_sizes_of_their_collective() {
        let counts = |kind: BenchOp, rank| {
            let ElementCounts { sent, received } = kind.element_counts(kind.placements()[0], 12, rank, 4);
            (sent, received)
        };
        assert_eq!(counts(BenchOp::AllReduce, 3), (12, 0));
        assert_eq!(counts(BenchOp::AllGather, 3), (3, 12));
        assert_eq!(counts(BenchOp::ReduceScatter, 3), (12, 3));
        assert_eq!((counts(BenchOp::Gather, 0), counts(BenchOp::Gather, 1)), ((3, 12), (3, 0)));
        assert_eq!((counts(BenchOp::Scatter, 0), counts(BenchOp::Scatter, 1)), ((12, 3), (0, 3)));
        assert_eq!((counts(BenchOp::Transfer, 3), counts(BenchOp::Transfer, 1)), ((12, 12), (0, 0)));
    }
}
