//! Every method of every collective, over many worlds, counts, rings and schedules.

use super::symbol::mix;
use super::{Failure, Proof, check};
use crate::choice::methods;
use crate::method::Method;
use crate::shape::GroupShape;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};

/// What to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sweep {
    /// The smallest world.
    pub world_min: usize,
    /// The largest world.
    pub world_max: usize,
    /// Schedules for each case; each case is given others.
    pub schedules: u64,
    /// The number of the first schedule.
    pub first: u64,
}

/// One method in one world: all of its cases were right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swept {
    /// Which collective.
    pub collective: &'static str,
    /// Which method.
    pub algorithm: Algorithm,
    /// The world.
    pub world: usize,
    /// Cases: counts, rings, roots.
    pub cases: u64,
    /// All of their runs.
    pub proof: Proof,
}

impl Sweep {
    /// Checks everything, and tells of each method and world once it is proved.
    pub fn run(&self, mut tell: impl FnMut(&Swept)) -> Result<(), Box<Failure>> {
        let mut next = self.first;
        for world in self.world_min..=self.world_max {
            for (collective, name) in collectives(world) {
                for method in methods(collective) {
                    tell(&self.method(world, (collective, name), method, &mut next)?);
                }
            }
        }
        Ok(())
    }

    fn method(
        &self,
        world: usize,
        (collective, name): (Collective, &'static str),
        method: &Method,
        next: &mut u64,
    ) -> Result<Swept, Box<Failure>> {
        let algorithm = method.algorithm;
        let mut swept = Swept { collective: name, algorithm, world, cases: 0, proof: Proof::default() };
        for count in counts(collective, world) {
            for shape in shapes(world, method.needs_mesh, count) {
                let descriptor = Descriptor::all_reduce(count, DType::F64, ReduceOp::Avg);
                let descriptor = descriptor.with_collective(collective);
                let proof =
                    check(&descriptor, &shape, &tuning(*next, algorithm), *next..*next + self.schedules)?;
                *next += self.schedules;
                swept.cases += 1;
                swept.proof.runs += proof.runs;
                swept.proof.events += proof.events;
            }
        }
        Ok(swept)
    }
}

fn collectives(world: usize) -> Vec<(Collective, &'static str)> {
    let mut all = vec![
        (Collective::AllReduce, "all-reduce"),
        (Collective::ReduceScatter, "reduce-scatter"),
        (Collective::AllGather, "all-gather"),
        (Collective::Barrier, "barrier"),
    ];
    let roots = std::collections::BTreeSet::from([0, world / 2, world - 1]);
    let broadcast = |root| (Collective::Broadcast { root: Rank::from_index(root) }, "broadcast");
    all.extend(roots.into_iter().map(broadcast));
    all
}

/// None, fewer than there are ranks, as many, a few more, and some that divide badly.
fn counts(collective: Collective, world: usize) -> std::collections::BTreeSet<u64> {
    let world = world as u64;
    match collective {
        Collective::Barrier => [0].into(),
        _ => [0, 1, world - 1, world, world + 1, 7, 31, 101].into(),
    }
}

/// The windows are as tight as can be, except for every fourth case; chunks have two elements.
fn tuning(case: u64, algorithm: Algorithm) -> Tuning {
    let (window_slots, eager_slots) = if case % 4 == 3 { (3, 2) } else { (1, 1) };
    Tuning { chunk_bytes: 16, window_slots, eager_slots, forced: Some(algorithm), ..Tuning::default() }
}

/// Ring plans are checked in rank order with all links, and on a shuffled ring without any others.
fn shapes(world: usize, needs_mesh: bool, seed: u64) -> Vec<GroupShape> {
    let plain = GroupShape::uniform(world);
    let ring = shuffled(world, seed);
    let shuffled = GroupShape { ring, mesh: needs_mesh, ..plain.clone() };
    if needs_mesh { vec![shuffled] } else { vec![plain, shuffled] }
}

/// The ranks of a world in another order.
pub fn shuffled(world: usize, seed: u64) -> Vec<Rank> {
    let mut ranks: Vec<_> = (0..world).map(Rank::from_index).collect();
    ranks.sort_by_key(|rank| mix(mix(0x5eed, seed), u64::from(rank.0)));
    ranks
}
