//! Runs all plans through the executor with minimal windows.

use ringfold_plan::checker::{Case, Schedule, Shares, Sweep, check, random_network, shuffled};
use ringfold_plan::choice::{self, choose, methods};
use ringfold_plan::layout::Layout;
use ringfold_plan::ownership::{Ownership, Resumption};
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::{Collective, Descriptor, mix};
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::MissingPair;
use ringfold_proto::id::Rank;
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};
use std::sync::Arc;

fn sweep(world_min: usize, world_max: usize, schedules: u64) {
    let sweep = Sweep { world_min, world_max, schedules, first: 0 };
    if let Err(failure) = sweep.run(|_| {}) {
        panic!("{failure}");
    }
}

#[test]
fn small_worlds_end_right_under_every_kind_of_schedule() {
    sweep(1, 5, 12);
}

#[test]
fn middle_worlds_end_right_under_every_kind_of_schedule() {
    sweep(6, 9, 6);
}

#[test]
fn worlds_around_a_power_of_two_and_beyond_end_right() {
    sweep(10, 17, 1);
}

fn tight(forced: Option<Algorithm>) -> Tuning {
    Tuning { chunk_bytes: 16, window_slots: 1, eager_slots: 1, forced, ..Tuning::default() }
}

/// The bits of all elements of a reduction, in their order, with one method and the schedule of a seed.
fn bits(
    collective: Collective,
    reproducible: bool,
    (world, seed): (usize, u64),
    (algorithm, tuning): (Algorithm, Tuning),
) -> Vec<u64> {
    let base = Descriptor::all_reduce(23, DType::F64, ReduceOp::Avg).with_collective(collective);
    let descriptor = Descriptor { reproducible, ..base };
    let mesh = algorithm != Algorithm::Ring;
    let hosts = (0..world as u64).map(|rank| rank / (1 + seed % 3)).collect();
    let shape = GroupShape { ring: shuffled(world, seed), mesh, hosts, ..GroupShape::uniform(world) };
    let network = (algorithm == Algorithm::Trees).then(|| random_network(world, seed));
    let shape = shape.with_network(network.as_ref());
    let tuning = Tuning { forced: Some(algorithm), ..tuning };
    let mut case = Case::new(&descriptor, &Shares::Even, &shape, &tuning);
    assert_eq!(case.plans[0].algorithm, algorithm);
    case.in_place = seed.is_multiple_of(2);
    let of_ranks =
        case.run(Schedule::numbered(seed)).map_or_else(|failure| panic!("{failure}"), |end| end.bits);
    match collective {
        Collective::ReduceScatter => of_ranks.concat(),
        Collective::Reduce { root } => of_ranks[root.index()].clone(),
        _ => of_ranks[0].clone(),
    }
}

#[test]
fn reproducible_reductions_give_the_same_bits_with_every_plan_ring_chunk_and_number_of_hosts() {
    for world in 2..=9 {
        let mut all = Vec::new();
        let root = Rank::from_index(world / 2);
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce { root }] {
            for method in methods(collective, true) {
                for (seed, chunk_bytes, window_slots) in [(0, 16, 1), (1, 8, 2), (2, 24, 3), (3, 1 << 20, 8)]
                {
                    let tuning = Tuning { chunk_bytes, window_slots, ..tight(None) };
                    let found = bits(collective, true, (world, seed), (method.algorithm, tuning));
                    all.push((collective, method.algorithm, seed, found));
                }
            }
        }
        for (collective, algorithm, seed, found) in &all {
            assert_eq!(found, &all[0].3, "{collective:?} by {algorithm:?}, world {world}, seed {seed}");
        }
    }
}

#[test]
fn plans_over_all_links_give_the_same_bits_on_every_ring_and_network() {
    for method in methods(Collective::AllReduce, false) {
        for world in [4, 6, 9] {
            let of =
                |seed| bits(Collective::AllReduce, false, (world, seed), (method.algorithm, tight(None)));
            assert_eq!(of(1) == of(2), method.needs_mesh, "{:?}, world {world}", method.algorithm);
        }
    }
}

#[test]
fn other_reductions_depend_on_the_plan() {
    for world in [4, 6, 9] {
        let of = |reproducible, algorithm| {
            bits(Collective::AllReduce, reproducible, (world, 1), (algorithm, tight(None)))
        };
        let in_order = of(true, Algorithm::Direct);
        assert_eq!(of(false, Algorithm::OneShot), in_order);
        for algorithm in [Algorithm::Direct, Algorithm::Ring, Algorithm::Halving, Algorithm::Trees] {
            assert_ne!(of(false, algorithm), in_order, "{algorithm:?}, world {world}");
        }
    }
}

#[test]
fn quantised_reductions_end_right_with_every_choice() {
    let quantization = Some(Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 });
    for world in [2, 3, 5, 8] {
        for mesh in [true, false] {
            let base = Descriptor::all_reduce(29, DType::F32, ReduceOp::Avg);
            let descriptor = Descriptor { quantization, ..base };
            let shape = GroupShape { ring: shuffled(world, 3), mesh, ..GroupShape::uniform(world) };
            let choice = choose(&descriptor, &Layout::Even, Rank(0), &shape, &tight(None)).unwrap();
            if let Err(failure) = check(&descriptor, &Shares::Even, &shape, &tight(None), 0..6) {
                panic!("{choice}: {failure}");
            }
        }
    }
}

#[test]
fn the_scratch_of_a_reduce_scatter_is_a_part_and_a_window_for_any_count() {
    for count in [1_000, 10_000, 100_000] {
        let base = Descriptor::all_reduce(count, DType::F32, ReduceOp::Sum);
        let descriptor = base.with_collective(Collective::ReduceScatter);
        let tuning =
            Tuning { chunk_bytes: 64, window_slots: 4, forced: Some(Algorithm::Ring), ..tight(None) };
        let case = Case::new(&descriptor, &Shares::Even, &GroupShape::uniform(8), &tuning);
        for plan in &case.plans {
            assert!(plan.scratch <= count.div_ceil(8) + 5 * 16, "{count}: {}", plan.scratch);
        }
    }
}

/// With two elements to a chunk.
fn ticks(collective: Collective, algorithm: Algorithm, world: usize, count: u64) -> u64 {
    let descriptor = Descriptor::all_reduce(count, DType::F64, ReduceOp::Sum).with_collective(collective);
    let tuning = Tuning { window_slots: 8, eager_slots: 4, ..tight(Some(algorithm)) };
    let case = Case::new(&descriptor, &Shares::Even, &GroupShape::uniform(world), &tuning);
    case.ticks().unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn long_messages_keep_every_edge_of_the_ring_busy() {
    // In a world of two, slots are granted behind data that goes the other way on the same link.
    for world in [3, 8, 17] {
        for chunks in [2, 5, 40] {
            let (count, hops) = (world as u64 * chunks * 2, world as u64 - 1);
            let of = |collective| ticks(collective, Algorithm::Ring, world, count);
            assert_eq!(of(Collective::AllReduce), 2 * hops * chunks, "world {world}, {chunks} chunks");
            assert_eq!(of(Collective::ReduceScatter), hops * chunks);
            assert_eq!(of(Collective::AllGather), hops * chunks);
            let root = Rank(1);
            assert_eq!(of(Collective::Broadcast { root }), world as u64 * chunks + hops - 1);
            assert_eq!(of(Collective::Reduce { root }), world as u64 * chunks + hops - 1);
        }
    }
}

#[test]
fn short_messages_take_the_hops_of_their_plan() {
    let broadcast = Collective::Broadcast { root: Rank(1) };
    let hops = |collective, algorithm, world| ticks(collective, algorithm, world, 2);
    assert_eq!(hops(Collective::AllReduce, Algorithm::OneShot, 8), 1);
    assert_eq!(hops(Collective::AllReduce, Algorithm::Direct, 8), 2);
    assert_eq!(hops(Collective::AllReduce, Algorithm::Halving, 8), 6);
    assert_eq!(hops(Collective::AllReduce, Algorithm::Doubling, 8), 3);
    assert_eq!(hops(Collective::AllReduce, Algorithm::Doubling, 11), 5);
    assert_eq!(hops(broadcast, Algorithm::Direct, 8), 1);
    let hops_of_parts = |collective, algorithm, world| ticks(collective, algorithm, world, world as u64);
    assert_eq!(hops_of_parts(Collective::AllGather, Algorithm::Doubling, 4), 2);
    assert_eq!(hops_of_parts(Collective::ReduceScatter, Algorithm::Halving, 4), 2);
    assert_eq!(hops(broadcast, Algorithm::Halving, 16), 4);
    assert_eq!(hops(Collective::Barrier, Algorithm::Halving, 17), 5);
    assert_eq!(hops(Collective::Barrier, Algorithm::Ring, 17), 33);
    let root = Rank(1);
    assert_eq!(hops(Collective::Reduce { root }, Algorithm::OneShot, 8), 1);
    assert_eq!(hops(Collective::Reduce { root }, Algorithm::Direct, 8), 2);
    assert_eq!(hops(Collective::Reduce { root }, Algorithm::Ring, 8), 7);
    for collective in [Collective::Gather { root }, Collective::Scatter { root }, Collective::AllToAll] {
        assert_eq!(hops(collective, Algorithm::Direct, 8), 1);
    }
}

/// The spans of the survivors of an all-reduce, and how much each owner holds of each contributor.
fn resumptions(descriptor: &Descriptor, tuning: &Tuning, world: usize, seed: u64) -> Vec<Resumption> {
    let pick = |n: u64, below: u64| mix(mix(seed, n), 7) % below;
    let mut ownership = Ownership::new(descriptor, tuning, world);
    let mut resumed = Vec::new();
    // The second resumption is that of a resumed operation.
    for round in 0..2 {
        let lost = pick(round, ownership.world() as u64) as usize;
        let mut survivors: Vec<_> =
            (0..ownership.world()).filter(|rank| *rank != lost).map(Rank::from_index).collect();
        if survivors.len() < 2 {
            break;
        }
        let turn = pick(round + 9, survivors.len() as u64) as usize;
        survivors.rotate_left(turn);
        ownership = ownership.after(&survivors).unwrap();
        let ranks = || (0..survivors.len()).map(Rank::from_index);
        let held = |owner: Rank, from: Rank| {
            let chunks = ownership.chunk_count(owner) as u32;
            match pick(100 + u64::from(owner.0) * 64 + u64::from(from.0), 4) {
                0 => 0,
                1 => chunks,
                _ => pick(9000 + u64::from(owner.0) * 64 + u64::from(from.0), u64::from(chunks) + 1) as u32,
            }
        };
        let pairs = ranks().flat_map(|owner| ranks().map(move |from| (owner, from)));
        let held = pairs.map(|(owner, from)| if owner == from { 0 } else { held(owner, from) }).collect();
        resumed.push(Resumption { ownership: ownership.clone(), held });
    }
    resumed
}

#[test]
fn resumed_all_reduces_end_right_whatever_has_arrived() {
    for world in 2..=9 {
        for seed in 0..12 {
            let count = [0, 1, 7, 40, 41, 97][seed as usize % 6];
            let op = [ReduceOp::Sum, ReduceOp::Avg][seed as usize % 2];
            let descriptor = Descriptor { resume: true, ..Descriptor::all_reduce(count, DType::F32, op) };
            let tuning = Tuning { window_slots: 1 + seed as u16 % 3, ..tight(None) };
            let proved = |shares: &Shares, world: usize| {
                let shape = GroupShape { ring: shuffled(world, seed), ..GroupShape::uniform(world) };
                check(&descriptor, shares, &shape, &tuning, 0..4)
                    .map_or_else(|failure| panic!("{failure}"), |_| ());
            };
            proved(&Shares::Even, world);
            for resumption in resumptions(&descriptor, &tuning, world, seed) {
                proved(&Shares::Resumed(Arc::new(resumption.clone())), resumption.ownership.world());
            }
        }
    }
}

#[test]
fn a_resumption_that_does_not_fit_is_refused() {
    let descriptor = Descriptor { resume: true, ..Descriptor::all_reduce(40, DType::F32, ReduceOp::Sum) };
    let tuning = tight(None);
    let ownership = Ownership::new(&descriptor, &tuning, 3);
    let chunks = ownership.chunk_count(Rank(0)) as u32;
    let plan = |descriptor: &Descriptor, held: Vec<u32>, shape: GroupShape| {
        let layout = Layout::Resumed(Arc::new(Resumption { ownership: ownership.clone(), held }));
        choice::plan(descriptor, &layout, Rank(0), &shape, &tuning).map(|_| ())
    };
    let whole = || GroupShape::uniform(3);
    assert_eq!(plan(&descriptor, vec![chunks; 9], whole()), Ok(()));
    let invalid = [
        plan(&descriptor, vec![chunks + 1; 9], whole()),
        plan(&descriptor, vec![0; 8], whole()),
        plan(&descriptor, vec![0; 16], GroupShape::uniform(4)),
        plan(&Descriptor { count: 41, ..descriptor }, vec![0; 9], whole()),
        plan(&Descriptor { resume: false, ..descriptor }, vec![0; 9], whole()),
        plan(
            &descriptor,
            vec![0; 9],
            GroupShape { missing: [MissingPair(Rank(0), Rank(2))].into(), ..whole() },
        ),
    ];
    assert!(invalid.iter().all(Result::is_err), "{invalid:?}");
}
