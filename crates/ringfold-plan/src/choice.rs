//! Which way a collective is carried out, and why. A function of what all ranks share, never of the
//! rank: all of them must choose alike.

use crate::method::{Method, Task, alone, barrier, broadcast, direct, halving, one_shot, ring};
use crate::plan::Plan;
use crate::shape::GroupShape;
use core::fmt;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::{Algorithm, Tuning};

/// All ways to carry out a collective. A new one is a file with a [`Method`] and its line here.
pub fn methods(collective: Collective) -> &'static [Method] {
    match collective {
        Collective::AllReduce => {
            &[ring::ALL_REDUCE, direct::ALL_REDUCE, halving::ALL_REDUCE, one_shot::ALL_REDUCE]
        }
        Collective::ReduceScatter => &[ring::REDUCE_SCATTER, direct::REDUCE_SCATTER],
        Collective::AllGather => &[ring::ALL_GATHER, direct::ALL_GATHER],
        Collective::Broadcast { .. } => &[broadcast::CHAIN, broadcast::TREE, broadcast::STAR],
        Collective::Barrier => &[barrier::TWO_TRIPS, barrier::DISSEMINATION],
    }
}

/// What was chosen, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// What was chosen. Meaningless where nobody else takes part.
    pub algorithm: Algorithm,
    /// Why.
    pub reason: Reason,
    /// What was asked for and could not be had.
    pub concession: Option<Concession>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.algorithm, self.reason)?;
        self.concession.map_or(Ok(()), |concession| write!(f, "; {concession}"))
    }
}

/// Why a way was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Nobody else is there.
    Alone,
    /// The tuning says so.
    Forced,
    /// No other way is possible.
    NoOther,
    /// Few bytes: hops cost more than traffic.
    FewBytes,
    /// A small world.
    FewRanks,
    /// Not so many bytes that the ring would be faster.
    ModerateBytes,
    /// Many bytes: every edge is kept busy.
    ManyBytes,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "nobody else takes part",
            Self::Forced => "forced by the group's tuning",
            Self::NoOther => "no other plan is possible here",
            Self::FewBytes => "so few bytes that hops are what costs",
            Self::FewRanks => "so few ranks that each can talk to all",
            Self::ModerateBytes => "few enough bytes for a logarithmic number of hops to win",
            Self::ManyBytes => "so many bytes that traffic is what costs",
        })
    }
}

/// What was asked for and could not be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Concession {
    /// The forced algorithm is not possible for this collective, shape or quantisation.
    NotAsForced(Algorithm),
    /// The result depends on the ring's order: without links beside the ring's edges operands can only
    /// meet in that order. The same ring still gives the same bits.
    OrderOfTheRing,
}

impl fmt::Display for Concession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsForced(algorithm) => write!(f, "the forced {algorithm:?} is not possible here"),
            Self::OrderOfTheRing => f.write_str("operands meet in the ring's order, for want of other links"),
        }
    }
}

/// A rank's plan.
///
/// # Panics
/// If the rank, or the root of a broadcast, is not in the group; both are checked on entry.
pub fn plan(descriptor: &Descriptor, rank: Rank, shape: &GroupShape, tuning: &Tuning) -> Plan {
    let world = shape.world();
    assert!(rank.index() < world, "{rank} is not in a world of {world}");
    if let Collective::Broadcast { root } = descriptor.collective {
        assert!(root.index() < world, "the root, {root}, is not in a world of {world}");
    }
    let (method, _) = decide(descriptor, shape, tuning);
    let task = Task { descriptor, me: rank, shape, tuning };
    let draft = if world == 1 { alone::draft(&task) } else { (method.draft)(&task) };
    let fingerprint = descriptor.fingerprint(method.algorithm, tuning.chunk_bytes);
    Plan::new(method.algorithm, fingerprint, draft.scratch, draft.steps)
}

/// Which plan all ranks make, and why.
pub fn choose(descriptor: &Descriptor, shape: &GroupShape, tuning: &Tuning) -> Choice {
    decide(descriptor, shape, tuning).1
}

/// Whether a method can be used for what was asked.
fn possible(method: &Method, descriptor: &Descriptor, shape: &GroupShape) -> bool {
    (shape.is_full_mesh() || !method.needs_mesh) && (descriptor.quantization.is_none() || method.one_owner)
}

fn decide(descriptor: &Descriptor, shape: &GroupShape, tuning: &Tuning) -> (&'static Method, Choice) {
    let all = methods(descriptor.collective);
    let find = |algorithm, strict: bool| {
        all.iter().find(|m| {
            m.algorithm == algorithm && possible(m, descriptor, shape) && (m.member_order || !strict)
        })
    };
    let any_in_member_order = all.iter().any(|m| m.member_order && possible(m, descriptor, shape));
    let strict = descriptor.reproducible && any_in_member_order;
    let mut concession =
        (descriptor.reproducible && !any_in_member_order).then_some(Concession::OrderOfTheRing);
    let mut wishes = Vec::with_capacity(5);
    if shape.world() == 1 {
        concession = None;
    } else if let Some(forced) = tuning.forced {
        wishes.push((forced, Reason::Forced));
        if find(forced, strict).is_none() {
            concession = concession.or(Some(Concession::NotAsForced(forced)));
        }
    }
    wishes.extend(preferences(descriptor, shape, tuning));
    let chosen = wishes.into_iter().find_map(|(wish, reason)| find(wish, strict).map(|m| (m, reason)));
    let (method, reason) = chosen.unwrap_or((&all[0], Reason::NoOther));
    (method, Choice { algorithm: method.algorithm, reason, concession })
}

/// Algorithms in the order in which they are wanted. The first that is possible is taken, so the list
/// ends with one of those that are possible wherever any is.
fn preferences(
    descriptor: &Descriptor,
    shape: &GroupShape,
    tuning: &Tuning,
) -> impl Iterator<Item = (Algorithm, Reason)> {
    let (bytes, world) = (descriptor.bytes(), shape.world());
    let alone = world == 1;
    let barrier = descriptor.collective == Collective::Barrier;
    let few = bytes <= u64::from(tuning.one_shot_bytes_max);
    let moderate = barrier || bytes <= u64::from(tuning.halving_bytes_max);
    let small = world <= usize::from(tuning.direct_world_max);
    // Where a collective has no one-shot form, a direct plan is its one-hop plan; a broadcast's has the
    // root send to each in turn, so there the tree does better.
    let one_hop =
        few && !matches!(descriptor.collective, Collective::Broadcast { .. } | Collective::AllReduce);
    let reason = if !shape.is_full_mesh() { Reason::NoOther } else { Reason::ManyBytes };
    [
        (alone, Algorithm::Ring, Reason::Alone),
        (few, Algorithm::OneShot, Reason::FewBytes),
        (one_hop, Algorithm::Direct, Reason::FewBytes),
        (small, Algorithm::Direct, Reason::FewRanks),
        (moderate, Algorithm::Halving, Reason::ModerateBytes),
        (true, Algorithm::Ring, reason),
        (true, Algorithm::Direct, Reason::NoOther),
    ]
    .into_iter()
    .filter_map(|(wanted, algorithm, reason)| wanted.then_some((algorithm, reason)))
}
