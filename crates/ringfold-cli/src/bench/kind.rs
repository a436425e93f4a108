//! What can be measured.

use std::fmt;
use std::str::FromStr;

/// A collective, or a message there and back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Gather,
    Scatter,
    AllToAll,
    /// From the first rank to the last and back; figures are of one way.
    Transfer,
    Barrier,
}

/// Whether the result replaces the input.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Place {
    In,
    Out,
}

/// How many elements a rank sends and receives; none that it receives means that the result replaces the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Share {
    pub(crate) sent: usize,
    pub(crate) received: usize,
}

impl Kind {
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

    /// What the bytes per second are multiplied with to get the traffic of the busiest rank, and so a figure that can be
    /// held against the speed of the hardware. These are the factors of nccl-tests.
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

    /// Whether elements are combined, so that the operation matters.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether every rank has a part of the whole, so that the whole must be a multiple of the world.
    pub(crate) fn has_parts(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::Gather | Self::Scatter | Self::AllToAll)
    }

    /// The forms that there are, the usual one first.
    pub(crate) fn places(self) -> &'static [Place] {
        match self {
            Self::AllReduce => &[Place::In, Place::Out],
            Self::Reduce | Self::Broadcast => &[Place::In],
            _ => &[Place::Out],
        }
    }

    /// One call makes so many of what is timed.
    pub(crate) fn trips(self) -> u64 {
        if self == Self::Transfer { 2 } else { 1 }
    }

    /// A rank's part in a call that is of `count` elements in all.
    pub(crate) fn share(self, place: Place, count: usize, rank: usize, world: usize) -> Share {
        let (part, root) = (count / world, rank == 0);
        let (sent, received) = match self {
            Self::AllReduce => (count, if place == Place::Out { count } else { 0 }),
            Self::Reduce | Self::Broadcast => (count, 0),
            Self::AllGather => (part, count),
            Self::ReduceScatter => (count, part),
            Self::Gather => (part, if root { count } else { 0 }),
            Self::Scatter => (if root { count } else { 0 }, part),
            Self::AllToAll => (count, count),
            Self::Transfer if root || rank == world - 1 => (count, count),
            Self::Transfer | Self::Barrier => (0, 0),
        };
        Share { sent, received }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().replace('-', "_").to_ascii_lowercase();
        Self::ALL.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("{text:?} is no collective; there are {}", names.join(", "))
        })
    }
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "in" => Ok(Self::In),
            "out" => Ok(Self::Out),
            _ => Err(format!("{text:?} is neither in nor out")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for &kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!("All-To-All".parse(), Ok(Kind::AllToAll));
        assert!("all".parse::<Kind>().unwrap_err().contains("reduce_scatter"));
    }

    #[test]
    fn the_factors_are_those_of_nccl_tests() {
        let factors = |kind: Kind| [2, 4].map(|world| kind.bus_factor(world));
        assert_eq!(factors(Kind::AllReduce), [1.0, 1.5]);
        for kind in [Kind::AllGather, Kind::ReduceScatter, Kind::Gather, Kind::Scatter, Kind::AllToAll] {
            assert_eq!(factors(kind), [0.5, 0.75], "{kind}");
        }
        for kind in [Kind::Reduce, Kind::Broadcast, Kind::Transfer] {
            assert_eq!(factors(kind), [1.0, 1.0], "{kind}");
        }
    }

    #[test]
    fn shares_are_parts_of_the_whole() {
        let share = |kind: Kind, rank| {
            let Share { sent, received } = kind.share(kind.places()[0], 12, rank, 4);
            (sent, received)
        };
        assert_eq!(share(Kind::AllReduce, 3), (12, 0));
        assert_eq!(share(Kind::AllGather, 3), (3, 12));
        assert_eq!(share(Kind::ReduceScatter, 3), (12, 3));
        assert_eq!((share(Kind::Gather, 0), share(Kind::Gather, 1)), ((3, 12), (3, 0)));
        assert_eq!((share(Kind::Scatter, 0), share(Kind::Scatter, 1)), ((12, 3), (0, 3)));
        assert_eq!((share(Kind::Transfer, 3), share(Kind::Transfer, 1)), ((12, 12), (0, 0)));
    }
}
