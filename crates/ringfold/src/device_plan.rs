//! What the members of one host compute of an all-reduce in device memory, derived from the plans of the host.
//!
//! Each element is reduced from the same operands in the same order as in host memory, so results have the same bits.

use core::ops::Range;
use ringfold_cuda::device_arena::WORLD_MAX;
use ringfold_plan::choice;
use ringfold_plan::fused::{self, Fold};
use ringfold_plan::layout::Layout;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{PeerId, Rank};
use ringfold_proto::tuning::{Algorithm, Tuning};

/// The members of an operation, and who computes which elements.
#[derive(Debug)]
pub(crate) struct DevicePlan {
    /// By rank.
    pub(crate) members: Vec<PeerId>,
    /// The rank of this peer.
    pub(crate) me: usize,
    pub(crate) parts: Vec<DevicePart>,
    /// The most elements of a chunk; only quantised reductions have chunks.
    pub(crate) chunk_elements: u64,
}

/// Elements that one member computes for all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DevicePart {
    /// The rank of the member.
    pub(crate) rank: usize,
    /// The ranks of the operands, in the order of reduction.
    pub(crate) order: Vec<usize>,
    pub(crate) elements: Range<u64>,
}

impl DevicePlan {
    /// The parts of all ranks; none if the ranks are on several hosts, or the plans are more than chains of reductions.
    pub(crate) fn of(
        descriptor: &Descriptor,
        shape: &GroupShape,
        tuning: &Tuning,
    ) -> Option<Vec<DevicePart>> {
        let world = shape.world();
        let is_reachable = shape.is_on_one_host() && shape.is_full_mesh();
        if !is_reachable || !(2..=WORLD_MAX).contains(&world) {
            return None;
        }
        let algorithm =
            match choice::choose(descriptor, &Layout::Even, Rank(0), shape, tuning).ok()?.algorithm {
                // It reduces partial results with each other, which no kernel does. One-shot takes about as long for small tensors.
                Algorithm::Doubling => Algorithm::OneShot,
                algorithm => algorithm,
            };
        if descriptor.quantization.is_some() {
            return quantized_parts(descriptor, algorithm, world);
        }
        // Kernels need no chunks, which do not change the order of operands.
        let tuning = Tuning { forced: Some(algorithm), chunk_bytes: u32::MAX, ..*tuning };
        let plan = |rank| choice::plan(descriptor, &Layout::Even, Rank::from_index(rank), shape, &tuning);
        let plans = (0..world).map(plan).collect::<Result<Vec<_>, _>>().ok()?;
        let folds = fused::share(&fused::fuse(&plans).ok()?);
        let folds = folds.iter().enumerate().flat_map(|(rank, folds)| folds.iter().map(move |f| (rank, f)));
        folds.map(|(rank, fold)| part(rank, fold, world)).collect()
    }
}

/// The parts of a quantised reduction, where each owner reduces its own elements and then the quantised ones of the others
/// in rank order; none for rings of more than two ranks, which quantise partial sums.
fn quantized_parts(descriptor: &Descriptor, algorithm: Algorithm, world: usize) -> Option<Vec<DevicePart>> {
    if algorithm != Algorithm::Direct && world > 2 {
        return None;
    }
    let parts = Layout::Even.parts(descriptor, world);
    let part = |rank: usize| {
        let span = parts.part(rank);
        let order = core::iter::once(rank).chain((0..world).filter(|other| *other != rank)).collect();
        DevicePart { rank, order, elements: span.start..span.end() }
    };
    Some((0..world).map(part).collect())
}

/// A fold of all ranks' elements for all ranks; none if it is another one.
fn part(rank: usize, fold: &Fold, world: usize) -> Option<DevicePart> {
    let start = fold.sources.first()?.offset;
    let is_at_start = |all: &[fused::RankOffset]| all.len() == world && all.iter().all(|o| o.offset == start);
    if !fold.settle || !is_at_start(&fold.sources) || !is_at_start(&fold.targets) {
        return None;
    }
    let order = fold.sources.iter().map(|source| source.rank.index()).collect();
    Some(DevicePart { rank, order, elements: start..start + fold.count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_plan::parts::Chunking;
    use ringfold_plan::step::Action;
    use ringfold_proto::dtype::DType;
    use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
    use ringfold_proto::reduce_op::ReduceOp;

    fn one_host(world: usize) -> GroupShape {
        GroupShape { hosts: vec![0; world], ..GroupShape::uniform(world) }
    }

    fn sum(count: u64) -> Descriptor {
        Descriptor::all_reduce(count, DType::F32, ReduceOp::Avg)
    }

    #[test]
    fn reproducible_reductions_are_computed_in_rank_order() {
        for world in 2..=WORLD_MAX {
            for count in [1, 7, 1_000_003] {
                let descriptor = Descriptor { reproducible: true, ..sum(count) };
                let parts = DevicePlan::of(&descriptor, &one_host(world), &Tuning::default()).unwrap();
                assert!(parts.iter().all(|part| part.order.iter().copied().eq(0..world)), "{parts:?}");
                assert_eq!(
                    parts.iter().map(|part| part.elements.clone().count()).sum::<usize>() as u64,
                    count
                );
            }
        }
    }

    #[test]
    fn the_parts_cover_all_elements_once() {
        for world in 2..=WORLD_MAX {
            for count in [1, 7, 1_000_003, 64 << 20, 1 << 32] {
                let parts = DevicePlan::of(&sum(count), &one_host(world), &Tuning::default());
                let mut parts = parts.unwrap_or_else(|| panic!("{world} ranks, {count} elements"));
                parts.sort_by_key(|part| part.elements.start);
                let mut next = 0;
                for part in parts {
                    assert_eq!(part.elements.start, next);
                    next = part.elements.end;
                    let mut order = part.order;
                    order.sort_unstable();
                    assert!(order.into_iter().eq(0..world), "each rank is one operand");
                }
                assert_eq!(next, count, "{world} ranks");
            }
        }
    }

    /// The order of operands of each element, in the plans that the host runs.
    #[test]
    fn the_order_is_that_of_the_host() {
        let tuning = Tuning { chunk_bytes: 64, ..Tuning::default() };
        for world in 2..=5 {
            let (shape, descriptor) = (one_host(world), sum(1000));
            let plan = |rank| {
                choice::plan(&descriptor, &Layout::Even, Rank::from_index(rank), &shape, &tuning).unwrap()
            };
            let folds = fused::fuse(&(0..world).map(plan).collect::<Vec<_>>()).unwrap();
            for part in DevicePlan::of(&descriptor, &shape, &tuning).unwrap() {
                for element in part.elements {
                    let has = |fold: &&Fold| {
                        (0..fold.count).contains(&element.wrapping_sub(fold.sources[0].offset))
                    };
                    let fold = folds.iter().flatten().find(has).unwrap();
                    assert!(fold.sources.iter().map(|s| s.rank.index()).eq(part.order.iter().copied()));
                }
            }
        }
    }

    /// Each settled region of the host's plans is a chunk, and its operands arrive in the order of the part.
    #[test]
    fn quantised_chunks_are_those_of_the_host() {
        let quantization = Some(Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 });
        let descriptor = Descriptor { quantization, ..sum(100_003) };
        for (world, forced) in [(2, None), (2, Some(Algorithm::Ring)), (3, Some(Algorithm::Direct))] {
            let (shape, tuning) = (one_host(world), Tuning { forced, ..Tuning::default() });
            let elements = u64::from(Chunking::of(&descriptor, &tuning).elements_max);
            for part in DevicePlan::of(&descriptor, &shape, &tuning).unwrap() {
                let rank = Rank::from_index(part.rank);
                let plan = choice::plan(&descriptor, &Layout::Even, rank, &shape, &tuning).unwrap();
                let settled: Vec<_> = plan.steps.iter().filter(|step| step.settle).collect();
                let starts: Vec<_> = part.elements.clone().step_by(elements as usize).collect();
                assert_eq!(settled.iter().map(|step| step.region.offset).collect::<Vec<_>>(), starts);
                for (step, start) in settled.iter().zip(starts) {
                    assert_eq!(u64::from(step.region.count), elements.min(part.elements.end - start));
                    let reduces = plan.steps.iter().filter(|other| other.region == step.region);
                    let order = reduces.filter_map(|step| match step.action {
                        Action::Reduce { from, .. } => Some(from.index()),
                        _ => None,
                    });
                    assert!(order.eq(part.order[1..].iter().copied()), "{world} ranks");
                }
            }
        }
        let ring = Tuning { forced: Some(Algorithm::Ring), ..Tuning::default() };
        assert_eq!(DevicePlan::of(&descriptor, &one_host(3), &ring), None);
    }

    /// Halving reduces partial results with each other, which no kernel does.
    #[test]
    fn plans_that_are_no_chains_use_host_memory() {
        let tuning = Tuning { forced: Some(Algorithm::Halving), ..Tuning::default() };
        assert_eq!(DevicePlan::of(&sum(1000), &one_host(4), &tuning), None);
        assert!(DevicePlan::of(&sum(1000), &one_host(2), &tuning).is_some());
    }

    #[test]
    fn members_of_several_hosts_use_host_memory() {
        let shape = GroupShape { hosts: vec![0, 0, 1], ..GroupShape::uniform(3) };
        assert_eq!(DevicePlan::of(&sum(1000), &shape, &Tuning::default()), None);
        let ring = GroupShape { mesh: false, ..one_host(4) };
        assert_eq!(DevicePlan::of(&sum(1000), &ring, &Tuning::default()), None);
        assert_eq!(DevicePlan::of(&sum(1000), &one_host(1), &Tuning::default()), None);
    }
}
