//! The elastic API: several peers in one process, over real sockets.

use ringfold::{
    AllReduce, Buffers, Communicator, DType, Error, Failure, FailureKind, Master, Memory, Quantization,
    QuantizationAlgorithm, Reduction, SharedState, SyncStrategy,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn master() -> (Master, String) {
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run().expect("listening on a free port");
    let address = master.addresses()[0].to_string();
    (master, address)
}

/// A peer that has joined a run of `world` peers.
fn join(address: &str, name: &str, world: u32) -> Communicator {
    let communicator = Communicator::builder(address).name(name).build().expect("building");
    communicator.connect().expect("connecting");
    let end = Instant::now() + Duration::from_secs(60);
    while communicator.attributes().group_world < world {
        assert!(Instant::now() < end, "{name}: timed out waiting for the other peers");
        communicator.update_topology().expect("updating the topology");
    }
    communicator
}

/// Runs peers, each on a thread, and returns their results in order.
pub fn with_peers<R: Send + 'static>(
    world: u32,
    run: impl Fn(Communicator, u32) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let (_master, address) = master();
    let peer = |number: u32| {
        let (address, run) = (address.clone(), run.clone());
        thread::spawn(move || run(join(&address, &format!("peer-{number}"), world), number))
    };
    let threads: Vec<_> = (0..world).map(peer).collect();
    threads.into_iter().map(|thread| thread.join().expect("the peer panicked")).collect()
}

#[test]
fn all_peers_get_the_sum() {
    for world in [2, 3, 5] {
        let results = with_peers(world, |peer, number| {
            let mut data: Vec<f32> = (0..100_000).map(|i| (i % 100 + number) as f32).collect();
            let info = peer.all_reduce(&mut data, AllReduce::sum()).expect("it succeeds");
            assert_eq!(info.world, peer.attributes().group_world);
            data
        });
        let expected = |i: usize| (0..world).map(|n| (i as u32 % 100 + n) as f32).sum::<f32>();
        for result in &results {
            assert!(result.iter().enumerate().all(|(i, x)| *x == expected(i)), "world {world}");
        }
    }
}

#[test]
fn tags_may_be_launched_in_any_order() {
    let results = with_peers(3, |peer, number| {
        let mut tags: Vec<u64> = (0..8).collect();
        tags.rotate_left(3 * number as usize);
        let launch = |tag: &u64| {
            let data = vec![*tag as f64 + f64::from(number); 200_000];
            (*tag, peer.all_reduce_async(data, AllReduce::sum().tag(*tag)).expect("it starts"))
        };
        let mut works: Vec<_> = tags.iter().map(launch).collect();
        works.sort_by_key(|(tag, _)| *tag);
        works
            .into_iter()
            .map(|(tag, work)| {
                let (data, result) = work.wait();
                result.expect("it succeeds");
                assert!(data.iter().all(|x| *x == 3.0 * tag as f64 + 3.0), "tag {tag}");
                data[0]
            })
            .collect::<Vec<_>>()
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn an_asynchronous_reduce_returns_the_vector_that_it_was_given() {
    with_peers(2, |peer, number| {
        for count in [1, 1000, 300_000] {
            let data = vec![f64::from(number) + 1.0; count];
            let start = data.as_ptr();
            let (data, result) = peer.all_reduce_async(data, AllReduce::sum()).expect("it starts").wait();
            result.expect("it succeeds");
            assert!(data.iter().all(|x| *x == 3.0));
            assert_eq!(data.as_ptr(), start, "{count} elements were copied");
        }
    });
}

#[test]
fn many_may_be_listed_in_any_order_with_any_number_in_flight() {
    with_peers(3, |peer, number| {
        let reduction = |tag: u64| Reduction {
            dtype: DType::F32,
            buffers: Buffers::InPlace(Memory::from(vec![0; 40_000])),
            options: AllReduce::sum().tag(tag),
        };
        let mut all: Vec<_> = (0..9).map(reduction).collect();
        all.rotate_left(4 * number as usize);
        peer.all_reduce_many(all, 1 + number as usize).expect("they succeed");
    });
}

#[test]
fn quantised_results_have_the_same_bits_everywhere() {
    let results = with_peers(3, |peer, number| {
        let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 };
        let mut data: Vec<f32> = (0..50_000).map(|i| ((i * (number + 1)) as f32).sin()).collect();
        peer.all_reduce(&mut data, AllReduce::avg().quantized(quantization)).expect("it succeeds");
        data.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    });
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn weighted_averages_use_the_weights() {
    let results = with_peers(3, |peer, number| {
        let mut data = vec![f64::from(number); 1000];
        let weight = [1.0, 2.0, 5.0][number as usize];
        peer.all_reduce(&mut data, AllReduce::avg().weight(weight)).expect("it succeeds");
        data
    });
    assert!(results.iter().flatten().all(|x| *x == 12.0 / 8.0));
}

#[test]
fn state_is_the_same_after_a_sync() {
    let results = with_peers(3, |peer, number| {
        let (mut a, mut b) = (vec![number as f32; 300_000], vec![7i64; 10]);
        if number == 1 {
            a.fill(0.0);
        }
        let mut state = SharedState::new(0).add("a", &mut a).add("b", &mut b);
        let info = peer.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("it succeeds");
        (info.rx_bytes, a)
    });
    // Two peers have zeros, so the third fetches one entry.
    assert!(results.iter().all(|(_, a)| a.iter().all(|x| *x == 0.0)));
    assert_eq!(results.iter().map(|(rx, _)| *rx).collect::<Vec<_>>(), [0, 0, 1_200_000]);
}

#[test]
fn the_topology_is_optimised() {
    with_peers(3, |peer, _| {
        let began = Instant::now();
        peer.optimize_topology().expect("it succeeds");
        eprintln!("optimised in {:?}", began.elapsed());
        let mut data = [1u32; 10];
        peer.all_reduce(&mut data, AllReduce::sum()).expect("it succeeds");
        assert_eq!(data, [3; 10]);
    });
}

/// The retry loop of the README.
fn retry<T>(mut call: impl FnMut() -> Result<T, Error>) -> (u32, Result<T, Error>) {
    let mut rounds = 0;
    loop {
        rounds += 1;
        let outcome = call();
        match &outcome {
            Err(error) if error.is_retryable() && rounds < 1000 => {}
            _ => return (rounds, outcome),
        }
    }
}

#[test]
fn a_loop_that_retries_ends_when_peers_disagree() {
    with_peers(2, |peer, number| {
        let mut data = vec![1.0_f32; 4 + number as usize];
        let (rounds, outcome) = retry(|| peer.all_reduce(&mut data, AllReduce::sum()));
        assert_eq!((rounds, outcome.unwrap_err().kind()), (1, Some(FailureKind::Mismatch)));
        let mut weights = [number as f32; 4];
        let (rounds, outcome) = retry(|| {
            let mut state = SharedState::new(0).add(&format!("w{number}"), &mut weights);
            peer.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)
        });
        if let Err(error) = outcome {
            assert_eq!((rounds, error.kind()), (1, Some(FailureKind::StateLayout)));
        }
    });
}

#[test]
fn a_lone_peer_gets_too_few_peers() {
    let (_master, address) = master();
    let peer = join(&address, "lone", 1);
    assert_eq!(peer.all_reduce(&mut [1.0f32], AllReduce::sum()), Err(Error::Failed(Failure::TooFewPeers)));
    assert!(matches!(peer.optimize_topology(), Err(Error::Misuse(_))));
    assert!(matches!(peer.connect(), Err(Error::Misuse(_))));
}

#[test]
fn without_a_master_connect_fails_and_can_be_retried() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let peer = Communicator::builder(address.to_string()).build().unwrap();
    let error = peer.connect().expect_err("no master listens there");
    let text = error.to_string();
    assert!(text.starts_with(&format!("could not reach the master at {address}: ")), "{text}");
    assert!(text.contains("refused"), "{text}");
    assert!(matches!(peer.update_topology(), Err(Error::Misuse(_))));
    let master = Master::builder().listen(address.to_string()).build();
    master.run().unwrap();
    peer.connect().expect("the master listens now");
}

#[test]
fn a_cancelled_wait_leaves_the_run_and_the_others_continue() {
    let (_master, address) = master();
    let waiting = Arc::new(AtomicBool::new(false));
    let must_end = waiting.clone();
    let cancelled = Communicator::builder(&address)
        .name("cancelled")
        .cancel_when(Duration::from_millis(20), move || must_end.load(Ordering::Acquire))
        .build()
        .expect("building");
    cancelled.connect().expect("connecting");
    let other = {
        let address = address.clone();
        thread::spawn(move || join(&address, "other", 2))
    };
    while cancelled.attributes().group_world < 2 {
        cancelled.update_topology().expect("updating the topology");
    }
    let other = other.join().expect("the peer panicked");

    // The other peer does not call.
    let mut data = [1.0_f32; 1000];
    waiting.store(true, Ordering::Release);
    let began = Instant::now();
    assert_eq!(cancelled.all_reduce(&mut data, AllReduce::sum()), Err(Error::Interrupted));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(data, [1.0; 1000]);
    assert_eq!(cancelled.update_topology(), Err(Error::Left));
    // It has left, so the other peer does not wait for it.
    other.update_topology().expect("updating the topology");
    assert_eq!(other.attributes().group_world, 1);
}

#[test]
fn traffic_is_counted_per_peer() {
    let reports = with_peers(2, |peer, number| {
        let mut data = vec![number as f32; 100_000];
        peer.all_reduce(&mut data, AllReduce::sum()).expect("it succeeds");
        peer.leave();
        peer.traffic()
    });
    for report in reports {
        // Everything is within this host.
        assert_eq!((report.total.sent, report.total.received), (0, 0));
        let master = report.peers.iter().find(|peer| peer.name == "master").expect("the master");
        assert!(master.traffic.local_sent > 100 && master.traffic.local_received > 100, "{report:?}");
        assert!(report.peers.iter().any(|peer| peer.name.starts_with("peer-")), "{report:?}");
    }
}
