//! Checks every method of every collective over many worlds, counts, rings and schedules.

use super::symbol::mix;
use super::{Failure, Proof, Shares, check};
use crate::choice::methods;
use crate::method::Method;
use crate::shape::GroupShape;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::MissingPair;
use ringfold_proto::id::Rank;
use ringfold_proto::network::Network;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};
use std::collections::BTreeSet;

/// The range of cases to check.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sweep {
    pub world_min: usize,
    pub world_max: usize,
    /// The number of schedules per case; each case has its own.
    pub schedules: u64,
    pub first: u64,
}

/// The checked cases of one method in one world.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SweepResult {
    pub collective: &'static str,
    pub algorithm: Algorithm,
    pub world: usize,
    /// The number of cases: counts, rings, roots.
    pub cases: u64,
    pub proof: Proof,
}

impl Sweep {
    /// Checks all cases, and reports each method and world.
    pub fn run(&self, mut report: impl FnMut(&SweepResult)) -> Result<(), Box<Failure>> {
        let mut next = self.first;
        for world in self.world_min..=self.world_max {
            for (collective, name) in collectives(world) {
                for (reproducible, method) in all_methods(collective) {
                    report(&self.method(world, (collective, name), (reproducible, method), &mut next)?);
                }
            }
        }
        Ok(())
    }

    fn method(
        &self,
        world: usize,
        (collective, name): (Collective, &'static str),
        (reproducible, method): (bool, &Method),
        next: &mut u64,
    ) -> Result<SweepResult, Box<Failure>> {
        let algorithm = method.algorithm;
        let mut result =
            SweepResult { collective: name, algorithm, world, cases: 0, proof: Proof::default() };
        for (count, shares) in wholes(collective, world, *next) {
            // Data that is relayed by all ranks takes the square of their number of frames for each chunk.
            if reproducible && world > 5 && count > world as u64 + 1 {
                continue;
            }
            for shape in shapes(world, method, count) {
                let descriptor = Descriptor::all_reduce(count, DType::F64, ReduceOp::Avg);
                let descriptor = Descriptor { reproducible, ..descriptor.with_collective(collective) };
                let tuning = tuning(result.cases, algorithm);
                let proof = check(&descriptor, &shares, &shape, &tuning, *next..*next + self.schedules)?;
                *next += self.schedules;
                result.cases += 1;
                result.proof.runs += proof.runs;
                result.proof.events += proof.events;
            }
        }
        Ok(result)
    }
}

/// The methods of a collective, those of reproducible reductions included.
fn all_methods(collective: Collective) -> impl Iterator<Item = (bool, &'static Method)> {
    let is_reduction =
        matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. });
    let forms: &[bool] = if is_reduction { &[false, true] } else { &[false] };
    forms.iter().flat_map(move |form| methods(collective, *form).iter().map(|method| (*form, method)))
}

fn collectives(world: usize) -> Vec<(Collective, &'static str)> {
    let mut all = vec![
        (Collective::AllReduce, "all-reduce"),
        (Collective::ReduceScatter, "reduce-scatter"),
        (Collective::AllGather, "all-gather"),
        (Collective::Barrier, "barrier"),
        (Collective::AllToAll, "all-to-all"),
    ];
    for root in BTreeSet::from([0, world / 2, world - 1]).into_iter().map(Rank::from_index) {
        all.push((Collective::Broadcast { root }, "broadcast"));
        all.push((Collective::Reduce { root }, "reduce"));
        all.push((Collective::Gather { root }, "gather"));
        all.push((Collective::Scatter { root }, "scatter"));
        let to = Rank::from_index((root.index() + world / 2) % world);
        if to != root {
            all.push((Collective::Transfer { from: root, to }, "transfer"));
        }
    }
    all
}

/// Counts to check: none, fewer elements than ranks, as many, a few more, and some that do not divide; and random
/// shares if the collective supports them.
fn wholes(collective: Collective, world: usize, seed: u64) -> Vec<(u64, Shares)> {
    let evenly = |counts: &[u64]| -> Vec<(u64, Shares)> {
        let counts = BTreeSet::from_iter(counts);
        counts.into_iter().map(|count| (*count, Shares::Even)).collect()
    };
    let by_parts = || (0..2).map(|n| Shares::parts(world, seed + n)).map(|shares| (shares.count(), shares));
    let by_pairs = || (0..2).map(|n| (0, Shares::pairs(collective, world, seed + n)));
    let ranks = world as u64;
    let most = [0, 1, ranks - 1, ranks, ranks + 1, 7, 31, 101];
    let few = [0, ranks - 1, ranks + 1, 31];
    match collective {
        Collective::Barrier => evenly(&[0]),
        Collective::AllReduce | Collective::Broadcast { .. } => evenly(&most),
        Collective::Reduce { .. } => evenly(&few),
        Collective::ReduceScatter | Collective::AllGather => {
            evenly(&most).into_iter().chain(by_parts()).collect()
        }
        Collective::Gather { .. } | Collective::Scatter { .. } | Collective::AllToAll => {
            evenly(&few).into_iter().chain(by_parts()).chain(by_pairs()).collect()
        }
        Collective::Transfer { .. } => evenly(&few).into_iter().chain(by_pairs()).collect(),
    }
}

/// Minimal windows, except for every fourth case; chunks of two elements.
fn tuning(case: u64, algorithm: Algorithm) -> Tuning {
    let (window_slots, eager_slots) = if case % 4 == 3 { (3, 2) } else { (1, 1) };
    Tuning { chunk_bytes: 16, window_slots, eager_slots, forced: Some(algorithm), ..Tuning::default() }
}

/// Ring plans are checked in rank order with all links, and on a shuffled ring with only its edges; trees on two networks,
/// of which one lacks a link.
fn shapes(world: usize, method: &Method, seed: u64) -> Vec<GroupShape> {
    let needs_mesh = method.needs_mesh;
    let plain = GroupShape::uniform(world);
    if method.algorithm == Algorithm::Trees {
        let hosts = (0..world as u64).map(|rank| rank / 2).collect();
        let missing = if world > 2 { [MissingPair(Rank(0), Rank(2))].into() } else { BTreeSet::new() };
        let holed = GroupShape { hosts, missing, ..plain.clone() };
        let on = |shape: GroupShape, seed| shape.with_network(Some(&random_network(world, seed)));
        return vec![on(plain, seed), on(holed, seed + 1)];
    }
    let ring = shuffled(world, seed);
    let shuffled = GroupShape { ring, mesh: needs_mesh, ..plain.clone() };
    if needs_mesh { vec![shuffled] } else { vec![plain, shuffled] }
}

/// A pseudo-random network: some paths are fast, some slow, some not measured.
pub fn random_network(world: usize, seed: u64) -> Network {
    let mut network = Network::unknown(world);
    for (number, path) in network.paths.iter_mut().enumerate() {
        let random = mix(mix(0xca11, seed), number as u64);
        path.round_trip_us = 100 << (random % 11);
        path.kib_per_s = if random & 64 == 0 { 0 } else { 1000 << (random >> 7 & 7) };
    }
    network
}

/// The ranks of a world in a pseudo-random order.
pub fn shuffled(world: usize, seed: u64) -> Vec<Rank> {
    let mut ranks: Vec<_> = (0..world).map(Rank::from_index).collect();
    ranks.sort_by_key(|rank| mix(mix(0x5eed, seed), u64::from(rank.0)));
    ranks
}
