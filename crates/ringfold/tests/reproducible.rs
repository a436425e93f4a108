//! Reproducible reductions have the same bits with every plan, transport and number of ranks per host.

use crate::rank_threads::{bootstrap_file, run_ranks};
use ringfold::{
    Algorithm, AllReduce, Cause, Communicator, DType, Error, Group, GroupBuilder, Master, Media,
    Quantization, QuantizationAlgorithm, ReduceOp, Tuning,
};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const COUNT: usize = 1003;

/// The input of a rank: numbers of very different sizes, so that each order of the operands gives other sums.
fn input_of(rank: usize) -> Vec<f32> {
    let number = |i: usize| {
        let random = (i as u64 * 31 + rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (random as f32 - 8e6) * 10_f32.powi((random % 9) as i32 - 4)
    };
    (0..COUNT).map(number).collect()
}

/// The sum of all ranks from left to right.
fn sum_of(world: usize) -> Vec<u32> {
    let all: Vec<_> = (0..world).map(input_of).collect();
    let sum = |i: usize| all.iter().map(|data| data[i]).reduce(|left, right| left + right);
    (0..COUNT).map(|i| sum(i).unwrap().to_bits()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Makes all reductions of a group, and compares them with the sum in rank order.
fn check(group: &Group, what: &str) {
    let (me, world) = (group.rank(), group.world());
    let expected = sum_of(world);
    let mut data = input_of(me);
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    assert_eq!(bits(&data), expected, "all_reduce: {what}");
    let mut data = input_of(me);
    group.reduce(&mut data, world / 2, ReduceOp::Sum).unwrap();
    if me == world / 2 {
        assert_eq!(bits(&data), expected, "reduce: {what}");
    }
    let counts: Vec<usize> =
        (0..world).map(|rank| if rank == 0 { COUNT - (world - 1) * 7 } else { 7 }).collect();
    let mut part = vec![0.0; counts[me]];
    group.reduce_scatter_v(&input_of(me), &mut part, &counts, ReduceOp::Sum).unwrap();
    let start: usize = counts[..me].iter().sum();
    assert_eq!(bits(&part), expected[start..][..part.len()], "reduce_scatter: {what}");
}

/// All algorithms. Those that reduce in another order are not used, even if they are forced.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Direct,
    Algorithm::OneShot,
    Algorithm::Ring,
    Algorithm::Halving,
    Algorithm::Doubling,
    Algorithm::Trees,
];

#[test]
fn groups_give_the_same_bits_with_every_plan_transport_chunk_and_number_of_ranks_per_host() {
    for world in 2..=9 {
        let configure =
            |builder: GroupBuilder| builder.timeout(LONG).connect_timeout(LONG).setting("reproducible", true);
        run_ranks(
            world,
            |builder| configure(builder).media(Media::Shared),
            |group| check(&group, "shared memory"),
        );
        for (number, algorithm) in ALGORITHMS.into_iter().enumerate() {
            let chunk_bytes = 256 << (2 * (number % 3));
            let tuning = Tuning { forced: Some(algorithm), chunk_bytes, ..Tuning::default() };
            // All over TCP, and then through shared memory within hosts of one, two or three ranks.
            let what = format!("{world} ranks, {algorithm}, TCP");
            let tcp = |builder: GroupBuilder| configure(builder).tuning(tuning).media(Media::Tcp);
            run_ranks(world, tcp, |group| check(&group, &what));
            let per_host = 1 + (number + world) % 3;
            on_hosts(world, per_host, |builder| configure(builder).tuning(tuning), &algorithm.to_string());
        }
    }
}

/// Checks a group whose ranks are on several hosts.
fn on_hosts(
    world: usize,
    per_host: usize,
    configure: impl Fn(GroupBuilder) -> GroupBuilder + Sync,
    what: &str,
) {
    let (at, configure) = (bootstrap_file(), &configure);
    std::thread::scope(|scope| {
        for rank in 0..world {
            let builder = Group::builder().rank(rank).world(world).bootstrap(at.clone());
            let builder = builder.setting("host", format!("host-{}", rank / per_host));
            scope.spawn(move || {
                let group = configure(builder).connect().unwrap();
                check(&group, &format!("{world} ranks, {what}, {per_host} ranks per host"));
            });
        }
    });
}

#[test]
fn peers_give_the_same_bits_with_every_plan_and_transport_in_the_order_in_which_they_joined() {
    for has_shared_memory in [true, false] {
        for forced in [None].into_iter().chain(ALGORITHMS.map(Some)) {
            let tuning = Tuning { forced, ..Tuning::default() };
            let master = Master::builder().listen("127.0.0.1:0").tuning(tuning).build();
            master.run().unwrap();
            let peer = |number: usize| {
                let builder = Communicator::builder(master.addresses()[0].to_string());
                let builder =
                    builder.name(format!("peer-{number}")).setting("shared_memory", has_shared_memory);
                if number.is_multiple_of(2) { builder.reproducible(true) } else { builder }.build().unwrap()
            };
            let peers: Vec<_> = (0..9).map(peer).collect();
            // Each one joins alone, so that the order of the members is known.
            for (number, joins) in peers.iter().enumerate() {
                std::thread::scope(|scope| {
                    let joined = scope.spawn(|| joins.connect());
                    while number > 0 && peers[0].attributes().group_world as usize <= number {
                        let voters: Vec<_> = peers[..number]
                            .iter()
                            .map(|peer| scope.spawn(|| peer.update_topology()))
                            .collect();
                        voters.into_iter().for_each(|voter| voter.join().unwrap().unwrap());
                    }
                    joined.join().unwrap().unwrap();
                });
                let what = format!("{} peers, {forced:?}, shared memory: {has_shared_memory}", number + 1);
                if number > 0 {
                    check_peers(&peers[..=number], &what);
                }
            }
        }
    }
}

fn check_peers(peers: &[Communicator], what: &str) {
    std::thread::scope(|scope| {
        for (number, peer) in peers.iter().enumerate() {
            scope.spawn(move || {
                let mut data = input_of(number);
                // Peers that say so for each operation agree with those that say so for all.
                let options = AllReduce::sum();
                let odd = !number.is_multiple_of(2);
                let options = if odd { options.reproducible() } else { options };
                peer.all_reduce(&mut data, options).unwrap();
                assert_eq!(bits(&data), sum_of(peers.len()), "{what}");
            });
        }
    });
}

#[test]
fn ranks_that_differ_in_it_and_quantised_reductions_fail_with_words() {
    let at = bootstrap_file();
    let errors = std::thread::scope(|scope| {
        let start = |rank: usize| {
            let builder =
                Group::builder().rank(rank).world(2).bootstrap(at.clone()).media(Media::Tcp).timeout(LONG);
            let builder = builder.reproducible(rank == 0);
            scope.spawn(move || builder.connect().unwrap().all_reduce(&mut input_of(rank), ReduceOp::Sum))
        };
        [0, 1].map(start).map(|rank| rank.join().unwrap().unwrap_err())
    });
    for error in errors {
        assert!(
            matches!(&error, Error::GroupFailed(cause) if matches!(**cause, Cause::Mismatch { .. })),
            "{error:?}"
        );
    }
    let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 };
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run().unwrap();
    let peer = Communicator::builder(master.addresses()[0].to_string()).reproducible(true).build().unwrap();
    peer.connect().unwrap();
    let refused = peer.all_reduce(&mut input_of(0), AllReduce::sum().quantized(quantization));
    assert!(
        matches!(&refused, Err(Error::BadArgument(why)) if why.contains("cannot be reproducible")),
        "{refused:?}"
    );
}
