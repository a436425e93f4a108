//! Which way a collective is carried out, and why. A function of what all ranks share, never of the
//! rank: all of them must choose alike.

use crate::layout::Layout;
use crate::method::{
    Method, Task, alone, barrier, broadcast, direct, exchange, halving, one_shot, reduce, ring,
};
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
        Collective::Reduce { .. } => &[reduce::CHAIN, reduce::STRAIGHT, reduce::STAR],
        Collective::Gather { .. }
        | Collective::Scatter { .. }
        | Collective::AllToAll
        | Collective::Transfer { .. } => &[exchange::EXCHANGE],
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

/// Why there is no plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoPlan {
    /// The rank itself, the root, or an end of a transfer does not exist.
    #[error("{rank} is not in a world of {world}")]
    NoSuchRank {
        /// Who.
        rank: Rank,
        /// How many there are.
        world: usize,
    },
    /// Nothing can be sent to oneself by a transfer.
    #[error("{0} transfers to itself")]
    ToOneself(Rank),
    /// The layout does not fit the collective, or the world.
    #[error("the layout does not fit: {0}")]
    Layout(&'static str),
    /// Not all ranks are linked with each other, and nothing is relayed.
    #[error("it needs a link between every two ranks that exchange data, and this group lacks some")]
    NoLink,
}

/// A rank's plan.
pub fn plan(
    descriptor: &Descriptor,
    layout: &Layout,
    rank: Rank,
    shape: &GroupShape,
    tuning: &Tuning,
) -> Result<Plan, NoPlan> {
    let world = shape.world();
    exists(rank, shape)?;
    let method = method(descriptor, shape, tuning)?;
    if let Some(flaw) = layout.flaw(descriptor, world, rank) {
        return Err(NoPlan::Layout(flaw));
    }
    let task = Task { descriptor, layout, me: rank, shape, tuning };
    let draft = if world == 1 { alone::draft(&task) } else { (method.draft)(&task) };
    let fingerprint = layout.stamp(descriptor.fingerprint(method.algorithm, tuning.chunk_bytes));
    let plan = Plan::new(method.algorithm, fingerprint, draft.scratch, draft.steps);
    Ok(Plan { is_pairwise: layout.is_pairwise(), ..plan })
}

/// Which plan all ranks make, and why.
pub fn choose(descriptor: &Descriptor, shape: &GroupShape, tuning: &Tuning) -> Result<Choice, NoPlan> {
    decide(descriptor, shape, tuning).map(|(_, choice)| choice)
}

/// The method of that choice.
pub(crate) fn method(
    descriptor: &Descriptor,
    shape: &GroupShape,
    tuning: &Tuning,
) -> Result<&'static Method, NoPlan> {
    decide(descriptor, shape, tuning).map(|(method, _)| method)
}

/// Whether a method can be used for what was asked.
fn possible(method: &Method, descriptor: &Descriptor, shape: &GroupShape) -> bool {
    let is_linked = match descriptor.collective {
        Collective::Transfer { from, to } => shape.is_linked(from, to),
        _ => shape.is_full_mesh() || !method.needs_mesh || shape.world() == 1,
    };
    is_linked && (descriptor.quantization.is_none() || method.one_owner)
}

fn exists(rank: Rank, shape: &GroupShape) -> Result<(), NoPlan> {
    let world = shape.world();
    if rank.index() < world { Ok(()) } else { Err(NoPlan::NoSuchRank { rank, world }) }
}

/// Whether the ranks that a collective names exist.
fn check_ranks(collective: Collective, shape: &GroupShape) -> Result<(), NoPlan> {
    match collective {
        Collective::AllReduce
        | Collective::ReduceScatter
        | Collective::AllGather
        | Collective::Barrier
        | Collective::AllToAll => Ok(()),
        Collective::Broadcast { root }
        | Collective::Reduce { root }
        | Collective::Gather { root }
        | Collective::Scatter { root } => exists(root, shape),
        Collective::Transfer { from, to } if from == to => Err(NoPlan::ToOneself(from)),
        Collective::Transfer { from, to } => exists(from, shape).and(exists(to, shape)),
    }
}

fn decide(
    descriptor: &Descriptor,
    shape: &GroupShape,
    tuning: &Tuning,
) -> Result<(&'static Method, Choice), NoPlan> {
    check_ranks(descriptor.collective, shape)?;
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
    let (method, reason) = chosen.ok_or(NoPlan::NoLink)?;
    Ok((method, Choice { algorithm: method.algorithm, reason, concession }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::dtype::DType;
    use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
    use ringfold_proto::reduce_op::ReduceOp;

    fn all_reduce(bytes: u64) -> Descriptor {
        Descriptor::all_reduce(bytes / 4, DType::F32, ReduceOp::Sum)
    }

    fn chosen(descriptor: &Descriptor, shape: &GroupShape) -> (Algorithm, Reason) {
        let choice = choose(descriptor, shape, &Tuning::default()).unwrap();
        assert_eq!(choice.concession, None, "{choice}");
        (choice.algorithm, choice.reason)
    }

    #[test]
    fn size_and_world_decide_between_the_plans_of_an_all_reduce() {
        let eight = GroupShape::uniform(8);
        assert_eq!(chosen(&all_reduce(4096), &eight), (Algorithm::OneShot, Reason::FewBytes));
        assert_eq!(chosen(&all_reduce(100_000), &eight), (Algorithm::Halving, Reason::ModerateBytes));
        assert_eq!(chosen(&all_reduce(1 << 30), &eight), (Algorithm::Ring, Reason::ManyBytes));
        let two = GroupShape::uniform(2);
        assert_eq!(chosen(&all_reduce(1 << 30), &two), (Algorithm::Direct, Reason::FewRanks));
        assert_eq!(chosen(&all_reduce(1 << 30), &GroupShape::uniform(1)).1, Reason::Alone);
    }

    #[test]
    fn without_all_links_plans_keep_to_the_ring() {
        let missing = ringfold_proto::epoch::MissingPair(Rank(0), Rank(3));
        let holed = GroupShape { missing: [missing].into(), ..GroupShape::uniform(6) };
        let bare = GroupShape { mesh: false, ..GroupShape::uniform(6) };
        for shape in [holed, bare] {
            for bytes in [4, 100_000, 1 << 30] {
                assert_eq!(chosen(&all_reduce(bytes), &shape), (Algorithm::Ring, Reason::NoOther));
                let barrier = all_reduce(bytes).with_collective(Collective::Barrier);
                assert_eq!(chosen(&barrier, &shape).0, Algorithm::Ring);
            }
        }
    }

    #[test]
    fn quantised_reductions_have_one_owner_per_chunk() {
        let quantization = Some(Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 });
        for bytes in [4, 100_000, 1 << 30] {
            for world in [2, 3, 8] {
                let descriptor = Descriptor { quantization, ..all_reduce(bytes) };
                let choice = choose(&descriptor, &GroupShape::uniform(world), &Tuning::default()).unwrap();
                assert!(matches!(choice.algorithm, Algorithm::Ring | Algorithm::Direct), "{choice}");
            }
        }
    }

    #[test]
    fn reproducible_reductions_follow_the_member_order_or_say_that_they_cannot() {
        let descriptor = Descriptor { reproducible: true, ..all_reduce(1 << 30) };
        let mesh = GroupShape::uniform(8);
        assert_eq!(chosen(&descriptor, &mesh).0, Algorithm::Direct);
        let ring = GroupShape { mesh: false, ..mesh.clone() };
        let choice = choose(&descriptor, &ring, &Tuning::default()).unwrap();
        assert_eq!(
            (choice.algorithm, choice.concession),
            (Algorithm::Ring, Some(Concession::OrderOfTheRing))
        );
        assert!(choice.to_string().contains("ring's order"), "{choice}");
        let gather = descriptor.with_collective(Collective::AllGather);
        assert_eq!(chosen(&gather, &ring).0, Algorithm::Ring);
    }

    #[test]
    fn the_forced_algorithm_is_taken_where_it_is_possible_and_refused_by_name_elsewhere() {
        let tuning = Tuning { forced: Some(Algorithm::OneShot), ..Tuning::default() };
        let choice = choose(&all_reduce(1 << 30), &GroupShape::uniform(8), &tuning).unwrap();
        assert_eq!((choice.algorithm, choice.reason), (Algorithm::OneShot, Reason::Forced));
        let bare = GroupShape { mesh: false, ..GroupShape::uniform(8) };
        let choice = choose(&all_reduce(4), &bare, &tuning).unwrap();
        assert_eq!(choice.concession, Some(Concession::NotAsForced(Algorithm::OneShot)));
        assert_eq!(choice.algorithm, Algorithm::Ring);
    }

    #[test]
    fn what_cannot_be_planned_is_refused_with_a_reason() {
        let of = |collective, layout: &Layout, shape: &GroupShape| {
            let count = if layout.is_pairwise() { 0 } else { 12 };
            let descriptor = Descriptor::all_reduce(count, DType::F32, ReduceOp::Sum);
            let descriptor = descriptor.with_collective(collective);
            plan(&descriptor, layout, Rank(1), shape, &Tuning::default()).map(|plan| plan.steps.len())
        };
        let mesh = GroupShape::uniform(4);
        let ring = GroupShape { mesh: false, ..mesh.clone() };
        let (near, far) = (Rank(2), Rank(3));
        let transfer = |to| Collective::Transfer { from: Rank(1), to };
        assert_eq!(of(Collective::AllToAll, &Layout::Even, &ring), Err(NoPlan::NoLink));
        assert_eq!(of(transfer(far), &Layout::Even, &ring), Err(NoPlan::NoLink));
        assert_eq!(of(transfer(near), &Layout::Even, &ring), Ok(1));
        assert_eq!(of(transfer(far), &Layout::Even, &mesh), Ok(1));
        assert_eq!(of(transfer(Rank(1)), &Layout::Even, &mesh), Err(NoPlan::ToOneself(Rank(1))));
        let nobody = NoPlan::NoSuchRank { rank: Rank(4), world: 4 };
        assert_eq!(of(transfer(Rank(4)), &Layout::Even, &mesh), Err(nobody));
        assert_eq!(of(Collective::Reduce { root: Rank(4) }, &Layout::Even, &mesh), Err(nobody));

        let parts = |sizes: &[u64]| Layout::Parts(sizes.into());
        let pairs =
            |send: [u64; 4], receive: [u64; 4]| Layout::Pairs { send: send.into(), receive: receive.into() };
        let gather = Collective::Gather { root: Rank(0) };
        assert!(of(Collective::AllGather, &parts(&[12, 0, 0, 0]), &mesh).is_ok());
        assert!(of(gather, &pairs([3, 0, 0, 0], [0; 4]), &mesh).is_ok());
        for (collective, layout) in [
            (Collective::AllGather, parts(&[12, 0, 0])),
            (Collective::AllGather, parts(&[12, 0, 0, 1])),
            (Collective::AllGather, parts(&[12, u64::MAX, 1, 0])),
            (Collective::Barrier, parts(&[12, 0, 0, 0])),
            (Collective::AllReduce, pairs([0; 4], [0; 4])),
            (gather, pairs([3, 1, 0, 0], [0, 1, 0, 0])),
            (gather, pairs([3, 0, 0, 0], [1, 0, 0, 0])),
            (Collective::AllToAll, pairs([0, 1, 0, 0], [0, 2, 0, 0])),
            (Collective::AllToAll, pairs([u64::MAX, 1, 0, 0], [0, 1, 0, 0])),
        ] {
            let refused = of(collective, &layout, &mesh);
            assert!(matches!(refused, Err(NoPlan::Layout(_))), "{collective:?}, {layout:?}: {refused:?}");
        }
    }

    #[test]
    fn ranks_that_cut_differently_have_different_fingerprints() {
        let descriptor = all_reduce(48).with_collective(Collective::AllGather);
        let print = |layout: &Layout| {
            plan(&descriptor, layout, Rank(0), &GroupShape::uniform(3), &Tuning::default())
                .unwrap()
                .fingerprint
        };
        let parts = |sizes: [u64; 3]| Layout::Parts(sizes.into());
        let all = [Layout::Even, parts([12, 0, 0]), parts([0, 12, 0]), parts([4, 4, 4])].map(|l| print(&l));
        assert!((0..4).all(|a| (0..a).all(|b| all[a] != all[b])));
    }
}
