//! Runs all plans through the executor with minimal windows.

use ringfold_plan::checker::{Case, Schedule, Shares, Sweep, check, random_network, shuffled};
use ringfold_plan::choice::{choose, methods};
use ringfold_plan::layout::Layout;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};

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

#[test]
fn plans_in_member_order_give_the_same_bits_on_every_ring_and_network() {
    let bits = |algorithm, world, seed| {
        let descriptor = Descriptor::all_reduce(23, DType::F64, ReduceOp::Sum);
        let shape = GroupShape { ring: shuffled(world, seed), ..GroupShape::uniform(world) };
        let network = (algorithm == Algorithm::Trees).then(|| random_network(world, seed));
        let shape = shape.with_network(network.as_ref());
        let case = Case::new(&descriptor, &Shares::Even, &shape, &tight(Some(algorithm)));
        case.run(Schedule::numbered(seed)).map_or_else(|failure| panic!("{failure}"), |o| o.bits)
    };
    for method in methods(Collective::AllReduce) {
        for world in [4, 6, 9] {
            let [one, another] = [1, 2].map(|seed| bits(method.algorithm, world, seed));
            assert_eq!(one == another, method.member_order, "{:?}, world {world}", method.algorithm);
        }
    }
}

#[test]
fn quantised_and_reproducible_reductions_end_right_with_every_choice() {
    let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 };
    for world in [2, 3, 5, 8] {
        for mesh in [true, false] {
            for (quantization, reproducible) in
                [(Some(quantization), false), (None, true), (Some(quantization), true)]
            {
                let base = Descriptor::all_reduce(29, DType::F32, ReduceOp::Avg);
                let descriptor = Descriptor { quantization, reproducible, ..base };
                let shape = GroupShape { ring: shuffled(world, 3), mesh, ..GroupShape::uniform(world) };
                let choice = choose(&descriptor, &Layout::Even, Rank(0), &shape, &tight(None)).unwrap();
                if let Err(failure) = check(&descriptor, &Shares::Even, &shape, &tight(None), 0..6) {
                    panic!("{choice}: {failure}");
                }
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
    assert_eq!(hops(broadcast, Algorithm::Direct, 8), 1);
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
