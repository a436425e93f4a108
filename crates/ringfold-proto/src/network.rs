//! What is known of the network between the members of an epoch. Plans are chosen by it, so it is the same on all ranks.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::descriptor::mix;
use crate::id::{PeerId, Rank};
use serde::{Deserialize, Serialize};

/// The path from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Path {
    /// 0 if it is not known.
    pub round_trip_us: u32,
    /// 0 if it was not measured.
    pub kib_per_s: u32,
}

/// The most that a rank was seen to send and receive, to all others together. 0 if it was not measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Throughput {
    pub up_kib_per_s: u32,
    pub down_kib_per_s: u32,
}

/// The network between the members of an epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Network {
    /// One for each ordered pair: those of rank 0 to all ranks, those of rank 1, and so on.
    pub paths: Vec<Path>,
    /// One for each rank.
    pub throughput: Vec<Throughput>,
}

impl Network {
    /// Nothing is known.
    pub fn unknown(world: usize) -> Self {
        Self { paths: vec![Path::default(); world * world], throughput: vec![Throughput::default(); world] }
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.throughput.len()
    }

    /// Whether it has the size for this number of ranks.
    pub fn is_valid_for(&self, world: usize) -> bool {
        self.throughput.len() == world && self.paths.len() == world * world
    }

    /// The path from one rank to another.
    pub fn path(&self, from: Rank, to: Rank) -> Path {
        self.paths[from.index() * self.world() + to.index()]
    }

    /// The path from one rank to another, to be changed.
    pub fn path_mut(&mut self, from: Rank, to: Rank) -> &mut Path {
        let world = self.world();
        &mut self.paths[from.index() * world + to.index()]
    }

    /// A number for its content.
    pub fn digest(&self) -> u64 {
        let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        let paths = self.paths.iter().map(|path| pair(path.round_trip_us, path.kib_per_s));
        let totals = self.throughput.iter().map(|total| pair(total.up_kib_per_s, total.down_kib_per_s));
        paths.chain(totals).fold(1, mix)
    }
}

/// What a peer has measured on its link with another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MeasuredLink {
    pub peer: PeerId,
    /// From the measuring peer to the other one, and back.
    pub path: Path,
}

/// What a peer has measured. It reports its links when they are made, and again when they have changed much.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Measurement {
    pub links: Vec<MeasuredLink>,
    pub throughput: Throughput,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_part_of_the_digest() {
        let base = Network::unknown(3);
        let mut digests = vec![base.digest()];
        for change in 0..4 {
            let mut network = base.clone();
            let path = network.path_mut(Rank(1), Rank(2));
            match change {
                0 => path.round_trip_us = 1,
                1 => path.kib_per_s = 1,
                2 => network.throughput[1].up_kib_per_s = 1,
                _ => network.throughput[1].down_kib_per_s = 1,
            }
            assert!(network.is_valid_for(3) && !network.is_valid_for(2));
            digests.push(network.digest());
        }
        assert!((0..5).all(|a| (0..a).all(|b| digests[a] != digests[b])));
    }
}
