//! Peers on one host use shared memory links, others TCP.

use ringfold::{AllReduce, Communicator, Error, Master};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// Runs peers, each on a thread, and calls `part` when all have joined.
fn run<R: Send>(shares: &[bool], part: impl Fn(&Communicator, usize) -> Result<R, Error> + Sync) -> Vec<R> {
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run().unwrap();
    let address = master.addresses()[0].to_string();
    let world = shares.len() as u32;
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .enumerate()
            .map(|(index, shares)| {
                let (address, part) = (&address, &part);
                scope.spawn(move || {
                    let builder = Communicator::builder(address).name(format!("peer-{index}"));
                    let peer = builder.shared_memory(*shares).build()?;
                    peer.connect()?;
                    let end = Instant::now() + LONG;
                    while peer.attributes().group_world < world {
                        assert!(Instant::now() < end, "timed out waiting for the other peers");
                        peer.update_topology()?;
                    }
                    part(&peer, index)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, Error>>()
    });
    results.unwrap()
}

/// Reduces many sizes, and checks the results.
fn reduce(peer: &Communicator, index: usize, world: usize) -> Result<(), Error> {
    for (round, count) in [1, 100, 300, 20_000, 100_001, 1_000_003].into_iter().cycle().take(30).enumerate() {
        let mut data: Vec<i32> = (0..count).map(|at| at * (index as i32 + 1) + round as i32).collect();
        peer.all_reduce(&mut data, AllReduce::sum())?;
        let ranks = (1..=world as i32).sum::<i32>();
        let wrong = data.iter().zip(0..).find(|(is, at)| **is != at * ranks + (round * world) as i32);
        assert_eq!(wrong, None, "in round {round}");
    }
    Ok(())
}

#[test]
fn peers_of_one_host_reduce_through_shared_memory() {
    run(&[true; 3], |peer, index| {
        assert_eq!(peer.shared_links(), 2);
        reduce(peer, index, 3)
    });
}

#[test]
fn shared_memory_and_tcp_are_mixed_in_one_run() {
    run(&[true, false, true, true], |peer, index| {
        assert_eq!(peer.shared_links(), if index == 1 { 0 } else { 2 });
        reduce(peer, index, 4)
    });
}

#[test]
fn asynchronous_reduces_advance_while_no_thread_waits() {
    run(&[true; 2], |peer, index| {
        let launch = |tag| {
            let data = vec![index as f32 + 1.0; 700_000];
            peer.all_reduce_async(data, AllReduce::sum().tag(tag))
        };
        // Different orders on different peers.
        let tags: Vec<u64> = if index == 0 { (0..8).collect() } else { (0..8).rev().collect() };
        let works = tags.into_iter().map(launch).collect::<Result<Vec<_>, _>>()?;
        let end = Instant::now() + LONG;
        while !works.iter().all(|work| work.is_done()) {
            assert!(Instant::now() < end, "the reduces do not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        for work in works {
            let (data, result) = work.wait();
            result?;
            assert!(data.iter().all(|value| *value == 3.0));
        }
        Ok(())
    });
}
