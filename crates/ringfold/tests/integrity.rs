//! Bits that flip in a result, or in a payload on the wire: the operation fails on all, its error names peers, and a retry succeeds.

use crate::flipping_proxy::{FILL, proxy};
use ringfold::{
    AllReduce, Cause, Communicator, CommunicatorBuilder, Error, Failure, FailureKind, Integrity, Master,
    PeerName, ReduceOp,
};
use ringfold_lab::socket::free_port;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// A run of these peers, each on a thread, with this input; returns what failed.
fn run<R: Send>(
    builders: Vec<impl FnOnce(&str) -> CommunicatorBuilder + Send>,
    run: impl Fn(&Communicator, usize) -> R + Sync,
) -> Vec<R> {
    let master = Master::builder().listen("127.0.0.1:0").insecure(true).build();
    master.run().unwrap();
    let address = master.addresses()[0].to_string();
    let (world, run) = (builders.len(), &run);
    thread::scope(|scope| {
        let peers = builders.into_iter().enumerate().map(|(number, builder)| {
            let builder = builder(&address).name(format!("peer-{number}")).insecure(true);
            scope.spawn(move || {
                let peer = builder.build().unwrap();
                peer.connect().unwrap();
                let end = Instant::now() + LONG;
                while (peer.attributes().group_world as usize) < world {
                    assert!(Instant::now() < end, "peer-{number}: the other peers are missing");
                    peer.update_topology().unwrap();
                }
                run(&peer, number)
            })
        });
        let peers: Vec<_> = peers.collect();
        peers.into_iter().map(|peer| peer.join().unwrap()).collect()
    })
}

fn aborted(error: &Error) -> &Cause {
    let Error::Failed(failure @ Failure::Aborted(cause)) = error else { panic!("{error:?}") };
    assert!(failure.is_retryable());
    cause
}

fn names(who: &[PeerName]) -> Vec<&str> {
    let mut names: Vec<_> = who.iter().map(|who| who.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// The causes of an operation in which the result of peer-1 gets a flipped bit, between two that succeed.
fn flip_in_memory(world: usize) -> Vec<Cause> {
    let builder = |number: usize| {
        move |address: &str| {
            let builder =
                Communicator::builder(address).integrity(Integrity { payloads: false, results: true });
            if number == 1 { builder.flip_result_of(2) } else { builder }
        }
    };
    run((0..world).map(builder).collect(), |peer, number| {
        let sum = (1..=world).sum::<usize>() as f32;
        let reduce = |data: &mut [f32]| peer.all_reduce(data, AllReduce::sum());
        let input = vec![number as f32 + 1.0; 50_000];
        let mut data = input.clone();
        reduce(&mut data).unwrap();
        assert!(data.iter().all(|x| *x == sum));
        let mut data = input.clone();
        let error = reduce(&mut data).unwrap_err();
        assert!(data == input, "the buffer was not restored");
        reduce(&mut data).unwrap();
        assert!(data.iter().all(|x| *x == sum));
        aborted(&error).clone()
    })
}

#[test]
fn of_three_peers_the_one_whose_result_has_a_flipped_bit_is_named() {
    for cause in flip_in_memory(3) {
        let Cause::ResultsDiffer { who, agree: 2 } = &cause else { panic!("{cause}") };
        assert_eq!(names(who), ["peer-1"]);
        assert_eq!(cause.to_string(), "the result of peer-1 differs from that of the other 2 peers");
    }
}

#[test]
fn of_two_peers_both_are_named_if_a_result_has_a_flipped_bit() {
    for cause in flip_in_memory(2) {
        let Cause::ResultsDiffer { who, agree: 0 } = &cause else { panic!("{cause}") };
        assert_eq!(names(who), ["peer-0", "peer-1"]);
    }
}

#[test]
fn a_payload_with_a_flipped_bit_fails_the_operation_and_names_both_ends() {
    let armed = Arc::new(AtomicBool::new(false));
    let builder = |_| {
        let armed = Arc::clone(&armed);
        move |address: &str| {
            let port = free_port();
            let proxy = proxy((Ipv4Addr::LOCALHOST, port).into(), armed);
            let builder = Communicator::builder(address).integrity(Integrity::ALL).listen_ports(port..=port);
            builder.advertise_at(proxy).shared_memory(false).setting("quic", false).setting("streams", 1)
        }
    };
    let errors = run((0..2).map(builder).collect(), |peer, number| {
        let input = vec![i32::from_ne_bytes([FILL; 4]); 50_000];
        let reduce = |data: &mut [i32]| peer.all_reduce(data, AllReduce::new(ReduceOp::Max));
        let mut data = input.clone();
        reduce(&mut data).unwrap();
        // All peers begin the next one when all have ended this one.
        if number == 0 {
            armed.store(true, Ordering::SeqCst);
        }
        peer.are_peers_pending().unwrap();
        let error = reduce(&mut data).unwrap_err();
        assert!(data == input, "the buffer was not restored");
        reduce(&mut data).unwrap();
        assert!(data == input);
        error
    });
    assert!(!armed.load(Ordering::SeqCst), "no payload went through the proxy");
    for error in &errors {
        let cause = aborted(error);
        let Cause::Corrupted { from, to } = cause else { panic!("{cause}") };
        assert_eq!(names(&[from.clone(), to.clone()]), ["peer-0", "peer-1"]);
        assert!(cause.to_string().contains("corrupted payload from"), "{cause}");
        let Error::Failed(failure) = error else { panic!("{error}") };
        assert_eq!(failure.kind(), FailureKind::Corrupted);
    }
}

#[test]
fn peers_that_check_different_things_fail_with_words() {
    let builder = |number: usize| {
        move |address: &str| {
            let word = Integrity::WORDS[number];
            Communicator::builder(address).setting("integrity", word)
        }
    };
    let errors = run((0..2).map(builder).collect(), |peer, _| {
        peer.all_reduce(&mut [1.0_f32; 10], AllReduce::sum()).unwrap_err()
    });
    for error in errors {
        assert!(error.to_string().contains("integrity payloads"), "{error}");
    }
}
