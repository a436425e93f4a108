//! Groups of fixed ranks that check payloads and results: bits that flip on the wire or in a result fail the group and name ranks.

use crate::flipping_proxy::{FILL, proxy};
use crate::rank_threads::{bootstrap_file, run_on_both_media, run_ranks};
use ringfold::{Cause, Error, Group, GroupBuilder, Integrity, Media, PeerName, ReduceOp};
use ringfold_lab::socket::free_port;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const PAYLOADS: Integrity = Integrity { payloads: true, results: false };
const RESULTS: Integrity = Integrity { payloads: false, results: true };

fn checked(builder: GroupBuilder, integrity: Integrity) -> GroupBuilder {
    builder.integrity(integrity).timeout(LONG).connect_timeout(LONG)
}

fn cause_of(error: &Error) -> &Cause {
    let Error::GroupFailed(cause) = error else { panic!("{error:?}") };
    cause
}

/// The ranks of names such as `rank-1@host-123`, in order.
fn ranks(who: &[&PeerName]) -> Vec<char> {
    let digit = |who: &&PeerName| who.name.chars().find(char::is_ascii_digit).unwrap();
    let mut ranks: Vec<_> = who.iter().map(digit).collect();
    ranks.sort_unstable();
    ranks
}

type Collective = fn(&Group, &mut [u8]) -> Result<(), Error>;

fn exchange(group: &Group, data: &mut [u8]) -> Result<(), Error> {
    match group.rank() {
        0 => group.send(data, 1),
        _ => group.recv(data, 0),
    }
}

/// Collectives that move payloads of equal bytes.
const COLLECTIVES: [(&str, Collective); 6] = [
    ("all_reduce", |group, data| group.all_reduce(data, ReduceOp::Max)),
    ("reduce", |group, data| group.reduce(data, 0, ReduceOp::Max)),
    ("broadcast", |group, data| group.broadcast(data, 1)),
    ("all_gather", |group, data| group.all_gather(&data.to_vec()[..data.len() / 2], data)),
    ("all_to_all", |group, data| {
        let input = vec![FILL; data.len()];
        group.all_to_all(&input, data)
    }),
    ("transfer", exchange),
];

/// Runs a collective in which a bit flips between two ranks, and a barrier. Returns the outcomes, and whether the data is unchanged.
fn flip_on_the_wire(integrity: Integrity, collective: Collective) -> Vec<(Result<(), Error>, bool)> {
    let armed = Arc::new(AtomicBool::new(false));
    let configure = |builder: GroupBuilder| {
        let port = free_port();
        let proxy = proxy((Ipv4Addr::LOCALHOST, port).into(), Arc::clone(&armed));
        let builder = checked(builder, integrity).listen_ports(port..=port).advertise(proxy).insecure(true);
        builder.media(Media::Tcp).setting("quic", false).streams(1)
    };
    let outcomes = run_ranks(2, configure, |group| {
        let mut data = vec![FILL; 200_000];
        collective(&group, &mut data).unwrap();
        group.barrier().unwrap();
        armed.store(true, Ordering::SeqCst);
        group.barrier().unwrap();
        let outcome = collective(&group, &mut data);
        // A rank that only sends may have succeeded before the other one fails the group.
        let outcome = outcome.and_then(|()| group.barrier());
        (outcome, data.iter().all(|byte| *byte == FILL))
    });
    assert!(!armed.load(Ordering::SeqCst), "no payload went through the proxy");
    outcomes
}

#[test]
fn a_payload_with_a_flipped_bit_fails_the_group_and_names_both_ends() {
    for (name, collective) in COLLECTIVES {
        for (outcome, _) in flip_on_the_wire(PAYLOADS, collective) {
            let error = outcome.expect_err(name);
            let Cause::Corrupted { from, to } = cause_of(&error) else { panic!("{name}: {error}") };
            assert_eq!(ranks(&[from, to]), ['0', '1'], "{name}: {error}");
            assert!(error.to_string().contains("corrupted payload from"), "{error}");
        }
    }
}

#[test]
fn without_checks_the_bit_is_not_noticed() {
    let outcomes = flip_on_the_wire(Integrity::NONE, COLLECTIVES[0].1);
    assert!(outcomes.iter().all(|(outcome, _)| outcome.is_ok()));
    assert!(outcomes.iter().any(|(_, is_unchanged)| !is_unchanged));
}

#[test]
fn results_that_differ_by_a_bit_fail_the_group_and_name_the_ranks_without_a_majority() {
    for (world, expected, agree) in [(2, &['0', '1'][..], 0), (3, &['1'], 2), (4, &['1'], 3)] {
        for (media, restores) in [(Media::Tcp, false), (Media::Tcp, true), (Media::Shared, true)] {
            let at = bootstrap_file();
            std::thread::scope(|scope| {
                for rank in 0..world {
                    let builder = Group::builder().rank(rank).world(world).bootstrap(at.clone()).media(media);
                    let builder = checked(builder, RESULTS).restore_on_failure(restores);
                    let builder = if rank == 1 { builder.flip_result_of(2) } else { builder };
                    scope.spawn(move || {
                        let group = builder.connect().unwrap();
                        let mut data = vec![rank as f32; 30_000];
                        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                        let input = vec![rank as f32; 30_000];
                        data.copy_from_slice(&input);
                        let error = group.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
                        let Cause::ResultsDiffer { who, agree: found } = cause_of(&error) else {
                            panic!("{error}")
                        };
                        let who: Vec<_> = who.iter().collect();
                        assert_eq!((&ranks(&who)[..], *found), (expected, agree), "{error}");
                        assert!(!restores || data == input, "the buffer was not restored");
                        assert_eq!(group.barrier().unwrap_err(), error);
                    });
                }
            });
        }
    }
}

#[test]
fn a_rank_that_leaves_or_does_not_call_fails_compared_all_reduces_in_time_and_is_named() {
    for (restores, leaves) in [(false, false), (false, true), (true, false), (true, true)] {
        let others_failed = Barrier::new(3);
        let configure = |builder| checked(builder, Integrity::ALL).restore_on_failure(restores);
        run_ranks(3, configure, |group| {
            let mut data = [1.0_f32; 1000];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            group.set_timeout(Duration::from_secs(1));
            if group.rank() == 2 {
                // It stays, and calls nothing.
                let _stays = (!leaves).then_some(group);
                others_failed.wait();
                return;
            }
            let error = group.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
            let is_expected = match cause_of(&error) {
                Cause::PeerLost { .. } => leaves,
                Cause::Timeout(_) => !leaves,
                _ => false,
            };
            assert!(is_expected && error.to_string().contains("rank 2"), "{error}");
            assert!(!restores || data == [3.0; 1000]);
            others_failed.wait();
        });
    }
}

/// Makes all kinds of collectives with small and large data, also queued ones.
fn check_results(group: &Group) {
    let (me, world) = (group.rank(), group.world());
    for count in [1, 5000] {
        let mut data = vec![me as i32 + 1; count];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert!(data.iter().all(|x| *x == (world * (world + 1) / 2) as i32));
        let mut output = vec![0; count];
        group.all_reduce_into(&data, &mut output, ReduceOp::Max).unwrap();
        assert_eq!(output, data);
        let mut all = vec![0; count * world];
        group.all_gather(&vec![me as i32; count], &mut all).unwrap();
        assert!(all.chunks(count).enumerate().all(|(rank, part)| part.iter().all(|x| *x == rank as i32)));
        let mut part = vec![0; count];
        group.reduce_scatter(&all, &mut part, ReduceOp::Sum).unwrap();
        assert!(part.iter().all(|x| *x == (me * world) as i32));
        let mut exchanged = vec![0; count * world];
        group.all_to_all(&all, &mut exchanged).unwrap();
        assert!(exchanged.iter().all(|x| *x == me as i32));
        let mut root = vec![me as i32; count];
        group.broadcast(&mut root, world - 1).unwrap();
        assert!(root.iter().all(|x| *x == world as i32 - 1));
        group.barrier().unwrap();
    }
}

#[test]
fn checked_groups_have_the_same_results_on_links_of_shared_memory_and_tcp() {
    for integrity in [PAYLOADS, RESULTS, Integrity::ALL] {
        for world in [1, 2, 3, 5] {
            let configure = |builder| checked(builder, integrity);
            run_on_both_media(world, configure, |group| {
                assert_eq!((group.integrity(), group.is_shared()), (integrity, false));
                check_results(&group);
            });
        }
    }
}

#[test]
fn splits_inherit_the_checks_of_their_group() {
    run_ranks(
        3,
        |builder| checked(builder, Integrity::NONE).setting("integrity", "none").integrity(Integrity::ALL),
        |group| {
            let child = group.split(&[0, 1, 2], "child").unwrap();
            assert_eq!(child.integrity(), Integrity::ALL);
            check_results(&child);
        },
    );
    run_ranks(
        2,
        |builder| builder.setting("integrity", "payloads"),
        |group| {
            assert_eq!(group.integrity(), PAYLOADS);
        },
    );
}

#[test]
fn ranks_that_check_different_things_cannot_connect_and_all_say_why() {
    let at = bootstrap_file();
    let errors = std::thread::scope(|scope| {
        let start = |rank: usize| {
            let builder = Group::builder().rank(rank).world(3).bootstrap(at.clone()).connect_timeout(LONG);
            let builder = builder.setting("integrity", if rank == 2 { "payloads" } else { "none" });
            scope.spawn(move || builder.connect().unwrap_err())
        };
        [0, 1, 2].map(start).map(|rank| rank.join().unwrap())
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("rank 2 has payloads, rank 0 has none; it must be the same"), "{text}");
    }
}
