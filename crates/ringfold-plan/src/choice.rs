//! Chooses the method of a collective: the one with the least estimated time.
//!
//! The choice depends only on what all ranks know, so that all ranks make the same one.

use crate::cost::Cost;
use crate::estimate;
use crate::layout::Layout;
use crate::method::{
    Method, Task, alone, barrier, broadcast, bruck, direct, doubling, exchange, halving, kept_apart,
    one_shot, reduce, relay, ring, trees,
};
use crate::plan::Plan;
use crate::shape::GroupShape;
use core::fmt;
use ringfold_proto::descriptor::{Collective, Descriptor, mix};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::{Algorithm, Tuning};

/// The methods of a collective. A new method is a file with a [`Method`] and a line here. Of two with the same cost,
/// the first is chosen. Those of reproducible reductions reduce from left to right in rank order.
pub fn methods(collective: Collective, reproducible: bool) -> &'static [Method] {
    match collective {
        Collective::AllReduce if reproducible => &[direct::ALL_REDUCE, one_shot::ALL_REDUCE, relay::REDUCE],
        Collective::ReduceScatter if reproducible => &[direct::REDUCE_SCATTER, relay::REDUCE],
        Collective::Reduce { .. } if reproducible => &[reduce::STRAIGHT, reduce::STAR, relay::REDUCE],
        Collective::AllReduce => &[
            direct::ALL_REDUCE,
            ring::ALL_REDUCE,
            halving::ALL_REDUCE,
            one_shot::ALL_REDUCE,
            doubling::ALL_REDUCE,
            trees::ALL_REDUCE,
        ],
        Collective::ReduceScatter => &[direct::REDUCE_SCATTER, ring::REDUCE_SCATTER, halving::REDUCE_SCATTER],
        Collective::AllGather => &[direct::ALL_GATHER, ring::ALL_GATHER, doubling::ALL_GATHER],
        Collective::Broadcast { .. } => &[broadcast::CHAIN, broadcast::TREE, broadcast::STAR],
        Collective::Barrier => &[barrier::TWO_TRIPS, barrier::DISSEMINATION],
        Collective::Reduce { .. } => &[reduce::CHAIN, reduce::STRAIGHT, reduce::STAR],
        Collective::AllToAll => &[exchange::EXCHANGE, bruck::ALL_TO_ALL],
        Collective::Gather { .. } | Collective::Scatter { .. } | Collective::Transfer { .. } => {
            &[exchange::EXCHANGE]
        }
    }
}

/// The chosen method, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The algorithm; meaningless in a world of one.
    pub algorithm: Algorithm,
    /// Why it was chosen.
    pub reason: Reason,
    /// A request that could not be met.
    pub limitation: Option<Limitation>,
    /// All possible methods.
    pub candidates: Vec<Candidate>,
}

/// A possible method.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    pub algorithm: Algorithm,
    pub cost: Cost,
    /// The estimated time with the costs in the tuning.
    pub estimate_ns: u64,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.algorithm, self.reason)?;
        self.limitation.map_or(Ok(()), |limitation| write!(f, "; {limitation}"))
    }
}

impl Choice {
    /// All candidates with their estimated times.
    ///
    /// ```
    /// # use ringfold_plan::{choice::choose, layout::Layout, shape::GroupShape};
    /// # use ringfold_proto::{descriptor::Descriptor, dtype::DType, id::Rank, reduce_op::ReduceOp};
    /// let descriptor = Descriptor::all_reduce(1 << 20, DType::F32, ReduceOp::Sum);
    /// let choice = choose(&descriptor, &Layout::Even, Rank(0), &GroupShape::uniform(4), &Default::default());
    /// let text = choice.unwrap().explanation();
    /// // Such as "direct: 2.1 ms; ring: 2.0 ms <- taken; halving: 2.2 ms; one-shot: 4.8 ms".
    /// assert!(text.contains("ring: ") && text.contains(" <- taken"));
    /// ```
    pub fn explanation(&self) -> String {
        let text = |candidate: &Candidate| {
            let taken = if candidate.algorithm == self.algorithm { " <- taken" } else { "" };
            format!("{}: {}{taken}", candidate.algorithm, Nanoseconds(candidate.estimate_ns))
        };
        self.candidates.iter().map(text).collect::<Vec<_>>().join("; ")
    }
}

struct Nanoseconds(u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            ..1_000_000 => (1_000, "us"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            1_000_000_000.. => (1_000_000_000, "s"),
        };
        write!(f, "{}.{} {name}", self.0 / unit, self.0 % unit * 10 / unit)
    }
}

/// Why a method was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The world is one rank.
    Alone,
    /// The tuning forces it.
    Forced,
    /// No other method is possible.
    NoOther,
    /// It has the least estimated time.
    Cheapest,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "no other rank takes part",
            Self::Forced => "forced by the group's tuning",
            Self::NoOther => "no other plan is possible",
            Self::Cheapest => "least estimated time",
        })
    }
}

/// A request that could not be met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limitation {
    /// The forced algorithm is not possible for this collective, shape or quantisation.
    ForcedNotPossible(Algorithm),
}

impl fmt::Display for Limitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForcedNotPossible(algorithm) => {
                write!(f, "the forced {algorithm} plan is not possible")
            }
        }
    }
}

/// Why there is no plan.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoPlan {
    /// The rank, the root, or an end of a transfer is not in the world.
    #[error("invalid rank {rank}: the world has {world} ranks")]
    NoSuchRank { rank: Rank, world: usize },
    /// The sender of a transfer is its receiver.
    #[error("invalid transfer of {0} to itself")]
    ToOneself(Rank),
    /// The layout does not match the collective or the world.
    #[error("invalid layout: {0}")]
    Layout(&'static str),
    /// It would depend on how the data is cut into chunks, which share their scale.
    #[error("a quantised reduction cannot be reproducible")]
    Quantized,
    /// A link is missing; data is not relayed.
    #[error("the group lacks a link between two ranks that exchange data")]
    NoLink,
}

/// Plans a rank's part of a collective.
pub fn plan(
    descriptor: &Descriptor,
    layout: &Layout,
    rank: Rank,
    shape: &GroupShape,
    tuning: &Tuning,
) -> Result<Plan, NoPlan> {
    let task = Task { descriptor, layout, me: rank, shape, tuning };
    let (method, _) = decide(&task)?;
    let draft = if task.world() == 1 { alone::draft(&task) } else { (method.draft)(&task) };
    let fingerprint = descriptor.fingerprint(method.algorithm, tuning.chunk_bytes);
    let fingerprint =
        shape.network.as_ref().map_or(fingerprint, |network| mix(fingerprint, network.digest()));
    let fingerprint = layout.add_to_fingerprint(fingerprint);
    let plan = Plan::new(method.algorithm, fingerprint, draft.scratch, draft.steps);
    let resumption = kept_apart::resumption(&task);
    Ok(Plan { is_pairwise: layout.is_pairwise(), resumption, ..plan })
}

/// Chooses the method of all ranks, as one of them sees it.
pub fn choose(
    descriptor: &Descriptor,
    layout: &Layout,
    rank: Rank,
    shape: &GroupShape,
    tuning: &Tuning,
) -> Result<Choice, NoPlan> {
    decide(&Task { descriptor, layout, me: rank, shape, tuning }).map(|(_, choice)| choice)
}

/// The chosen method.
pub(crate) fn method(task: &Task) -> Result<&'static Method, NoPlan> {
    decide(task).map(|(method, _)| method)
}

/// The methods of a request. Where not all pairs are linked, a resumable all-reduce runs as any other and cannot be resumed.
fn methods_of(task: &Task) -> &'static [Method] {
    let descriptor = task.descriptor;
    if kept_apart::is_possible(task) || matches!(task.layout, Layout::Resumed(_)) {
        return &[kept_apart::ALL_REDUCE];
    }
    methods(descriptor.collective, descriptor.reproducible)
}

/// Whether a method supports the request.
fn is_possible(method: &Method, &Task { descriptor, layout, shape, .. }: &Task) -> bool {
    let is_linked = match descriptor.collective {
        Collective::Transfer { from, to } => shape.is_linked(from, to),
        _ => shape.is_full_mesh() || !method.needs_mesh || shape.world() == 1,
    };
    let has_trees = shape.network.as_ref().is_some_and(|network| !network.trees().is_empty());
    let fits = match (method.algorithm, descriptor.collective) {
        (Algorithm::Trees, _) => has_trees,
        // Blocks pass through ranks that would have to know their sizes.
        (Algorithm::Doubling, Collective::AllToAll) => !layout.is_pairwise(),
        _ => true,
    };
    is_linked && fits && (descriptor.quantization.is_none() || method.one_owner)
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

fn decide(task: &Task) -> Result<(&'static Method, Choice), NoPlan> {
    let &Task { descriptor, layout, me, shape, tuning } = task;
    exists(me, shape)?;
    check_ranks(descriptor.collective, shape)?;
    if let Some(flaw) = layout.flaw(descriptor, shape.world(), me) {
        return Err(NoPlan::Layout(flaw));
    }
    if descriptor.reproducible && descriptor.quantization.is_some() {
        return Err(NoPlan::Quantized);
    }
    let all = methods_of(task);
    if shape.world() == 1 {
        let (algorithm, reason) = (all[0].algorithm, Reason::Alone);
        return Ok((&all[0], Choice { algorithm, reason, limitation: None, candidates: Vec::new() }));
    }
    let possible: Vec<_> = all.iter().filter(|method| is_possible(method, task)).collect();
    let forced = possible.iter().find(|method| Some(method.algorithm) == tuning.forced);
    let limitation = tuning.forced.filter(|_| forced.is_none()).map(Limitation::ForcedNotPossible);
    let candidates: Vec<_> = possible.iter().map(|method| candidate(method, task)).collect();
    let rated = possible.iter().zip(&candidates);
    let cheapest = rated.min_by_key(|(_, candidate)| candidate.estimate_ns).map(|(method, _)| method);
    let reason = match (forced, candidates.len()) {
        (Some(_), _) => Reason::Forced,
        (None, 1) => Reason::NoOther,
        (None, _) => Reason::Cheapest,
    };
    let method = *forced.or(cheapest).ok_or(NoPlan::NoLink)?;
    Ok((method, Choice { algorithm: method.algorithm, reason, limitation, candidates }))
}

/// A method and its estimate.
fn candidate(method: &Method, task: &Task) -> Candidate {
    let tuning = task.tuning;
    let prices = if task.shape.is_on_one_host() { &tuning.shared } else { &tuning.tcp };
    // Two of the other ranks are neighbours on the ring.
    let others = task.world() as u64 - 1;
    let moved_percent = match others.checked_sub(2) {
        Some(beside) if method.needs_mesh && beside > 0 => {
            (200 + beside * u64::from(prices.beside_ring_percent)) / others
        }
        _ => 100,
    };
    let cost = (method.cost)(task);
    let estimate_ns = match task.shape.network.as_deref() {
        Some(network) if !task.layout.is_pairwise() => estimate::of_method(method, task, network),
        _ => cost.estimate_ns(prices, moved_percent),
    };
    Candidate { algorithm: method.algorithm, cost, estimate_ns }
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

    fn look(descriptor: &Descriptor, shape: &GroupShape, tuning: &Tuning) -> Choice {
        choose(descriptor, &Layout::Even, Rank(0), shape, tuning).unwrap()
    }

    fn chosen(descriptor: &Descriptor, shape: &GroupShape) -> (Algorithm, Reason) {
        let choice = look(descriptor, shape, &Tuning::default());
        assert_eq!(choice.limitation, None, "{choice}");
        (choice.algorithm, choice.reason)
    }

    #[test]
    fn the_plan_of_an_all_reduce_depends_on_size_world_and_transport() {
        let hosts = |world| GroupShape::uniform(world);
        let host = |world| GroupShape { hosts: vec![7; world], ..hosts(world) };
        for (bytes, shape, best) in [
            (4, hosts(2), Algorithm::OneShot),
            (4, hosts(8), Algorithm::OneShot),
            (4, hosts(200), Algorithm::Doubling),
            (64 << 10, hosts(8), Algorithm::Direct),
            (1 << 30, hosts(2), Algorithm::Direct),
            (1 << 30, hosts(3), Algorithm::Direct),
            (1 << 30, hosts(8), Algorithm::Ring),
            (1 << 30, host(8), Algorithm::Direct),
        ] {
            let choice = look(&all_reduce(bytes), &shape, &Tuning::default());
            let text = format!("{bytes} bytes: {}", choice.explanation());
            assert_eq!((choice.algorithm, choice.reason), (best, Reason::Cheapest), "{text}");
        }
        assert_eq!(chosen(&all_reduce(1 << 30), &GroupShape::uniform(1)).1, Reason::Alone);
    }

    #[test]
    fn ranks_of_one_host_send_few_frames_through_the_kernel() {
        let of = |bytes, world| {
            let tuning = Tuning::default().for_loopback();
            look(&all_reduce(bytes), &GroupShape::uniform(world), &tuning).algorithm
        };
        assert_eq!(of(4, 2), Algorithm::OneShot);
        assert_eq!(
            (of(4, 4), of(64 << 10, 4), of(4, 8)),
            (Algorithm::Doubling, Algorithm::Doubling, Algorithm::Doubling)
        );
        assert_eq!(of(1 << 20, 4), Algorithm::Direct);
        let parts_of = |collective, bytes, world| {
            let (tuning, shape) = (Tuning::default().for_loopback(), GroupShape::uniform(world));
            look(&all_reduce(bytes).with_collective(collective), &shape, &tuning).algorithm
        };
        for (collective, best) in [
            (Collective::AllGather, Algorithm::Doubling),
            (Collective::ReduceScatter, Algorithm::Halving),
            (Collective::AllToAll, Algorithm::Doubling),
        ] {
            assert_eq!(parts_of(collective, 4096, 8), best);
            assert_eq!(parts_of(collective, 1 << 20, 8), Algorithm::Direct);
            assert_eq!(parts_of(collective, 4096, 2), Algorithm::Direct);
        }
        let measured = Tuning { tcp: Tuning::DEFAULT.shared, ..Tuning::default() };
        assert_eq!(measured.for_loopback().tcp, measured.tcp);
    }

    #[test]
    fn two_ranks_on_a_long_link_exchange_everything_in_one_hop() {
        let far = Tuning::default().for_round_trip(core::time::Duration::from_millis(100));
        for bytes in [4, 1 << 20, 32 << 20] {
            let choice = look(&all_reduce(bytes), &GroupShape::uniform(2), &far);
            assert_eq!(choice.algorithm, Algorithm::OneShot, "{}", choice.explanation());
        }
        // With many ranks that would be too many bytes.
        let choice = look(&all_reduce(1 << 30), &GroupShape::uniform(8), &far);
        assert_ne!(choice.algorithm, Algorithm::OneShot, "{}", choice.explanation());
    }

    #[test]
    fn all_ranks_choose_the_same_method() {
        let parts: Vec<u64> = (0..9).map(|rank| 100 * (rank % 4)).collect();
        let count = parts.iter().sum();
        let root = Rank(4);
        let layouts = [Layout::Even, Layout::Parts(parts.into())];
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Reduce { root },
            Collective::Gather { root },
            Collective::AllToAll,
        ] {
            let base = Descriptor::all_reduce(count, DType::F32, ReduceOp::Sum);
            let descriptor = base.with_collective(collective);
            for layout in &layouts {
                let of = |rank| {
                    choose(&descriptor, layout, Rank(rank), &GroupShape::uniform(9), &Tuning::default())
                };
                assert!((1..9).all(|rank| of(rank) == of(0)), "{descriptor}");
            }
        }
    }

    #[test]
    fn the_estimate_is_the_sum_of_costs() {
        let prices = ringfold_proto::tuning::TransportCosts {
            hop_ns: 1_000_000,
            frame_ns: 10_000,
            sent_ns_per_kib: 1024 * 10,
            reduced_ns_per_kib: 1024,
            beside_ring_percent: 200,
        };
        let tuning = Tuning { chunk_bytes: 16, tcp: prices, ..Tuning::default() };
        // Five parts of 80 bytes, each in five frames.
        let choice = look(&all_reduce(400), &GroupShape::uniform(5), &tuning);
        let of = |algorithm| {
            let found = choice.candidates.iter().find(|candidate| candidate.algorithm == algorithm);
            found.map(|candidate| candidate.estimate_ns)
        };
        assert_eq!(of(Algorithm::Ring), Some(8 * 1_000_000 + 40 * 10_000 + 640 * 10 + 320));
        // Half of its traffic is not on the ring.
        assert_eq!(of(Algorithm::Direct), Some(2 * 1_000_000 + 40 * 10_000 + 640 * 15 + 320));
        assert_eq!(of(Algorithm::OneShot), Some(1_000_000 + 100 * 10_000 + 1600 * 15 + 1600));
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
                let choice = look(&descriptor, &GroupShape::uniform(world), &Tuning::default());
                assert!(matches!(choice.algorithm, Algorithm::Ring | Algorithm::Direct), "{choice}");
            }
        }
    }

    #[test]
    fn reproducible_reductions_are_relayed_where_links_are_missing() {
        let descriptor = Descriptor { reproducible: true, ..all_reduce(1 << 30) };
        let mesh = GroupShape::uniform(8);
        assert_eq!(chosen(&descriptor, &mesh).0, Algorithm::Direct);
        let ring = GroupShape { mesh: false, ..mesh.clone() };
        let choice = look(&descriptor, &ring, &Tuning::default());
        assert_eq!((choice.algorithm, choice.candidates[0].cost.sent_bytes), (Algorithm::Ring, 7 << 30));
        let quantization = Some(Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 });
        let gather = descriptor.with_collective(Collective::AllGather);
        assert_eq!(chosen(&gather, &ring).0, Algorithm::Ring);
        let quantized = Descriptor { quantization, ..descriptor };
        let refused = plan(&quantized, &Layout::Even, Rank(0), &mesh, &Tuning::default());
        assert_eq!(refused.unwrap_err(), NoPlan::Quantized);
    }

    #[test]
    fn the_forced_algorithm_is_used_if_possible_and_reported_otherwise() {
        let tuning = Tuning { forced: Some(Algorithm::OneShot), ..Tuning::default() };
        let choice = look(&all_reduce(1 << 30), &GroupShape::uniform(8), &tuning);
        assert_eq!((choice.algorithm, choice.reason), (Algorithm::OneShot, Reason::Forced));
        let bare = GroupShape { mesh: false, ..GroupShape::uniform(8) };
        let choice = look(&all_reduce(4), &bare, &tuning);
        assert_eq!(choice.limitation, Some(Limitation::ForcedNotPossible(Algorithm::OneShot)));
        assert_eq!(choice.algorithm, Algorithm::Ring);
    }

    #[test]
    fn invalid_requests_are_rejected_with_a_reason() {
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
    fn different_layouts_have_different_fingerprints() {
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
