//! All-reduces that the others resume when a peer is lost.

use super::communicator::with_peers;
use ringfold::AllReduce;
use std::sync::{Arc, Barrier};

/// The data of a peer: sums of them are exact.
fn data(number: u32) -> Vec<f32> {
    (0..8_000_003).map(|i| (i % 1000) as f32 + (1 << number) as f32 * 1000.0).collect()
}

#[test]
fn the_others_get_the_sum_without_a_peer_that_leaves() {
    let launched = Arc::new(Barrier::new(4));
    let results = with_peers(4, move |peer, number| {
        let pending = peer.all_reduce_async(data(number), AllReduce::sum().resume()).expect("it starts");
        launched.wait();
        if number == 3 {
            peer.leave();
            return None;
        }
        let (result, info) = pending.wait();
        Some((info.expect("the others resume it").world, result))
    });
    let results: Vec<_> = results.into_iter().flatten().collect();
    assert_eq!(results.len(), 3);
    let parts = [data(0), data(1), data(2)];
    for (world, result) in results {
        assert_eq!(world, 3, "the peer left before its result was complete");
        let expected = |i: usize| parts.iter().map(|part| part[i]).sum::<f32>();
        assert_eq!(result.iter().enumerate().find(|(i, x)| **x != expected(*i)), None);
    }
}
