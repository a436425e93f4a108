//! Several all-reduces at a time, with different tags, while this thread computes.
//!
//! Start a master (`cargo run --release -- master`) and then this program at least twice:
//! `cargo run --release -p ringfold --example concurrent_reduces [MASTER]`

use ringfold::{AllReduce, Communicator, Error};
use std::time::{Duration, Instant};

const LAYERS: u64 = 8;
const ELEMENTS: usize = 1 << 20;

fn main() -> Result<(), Error> {
    let master = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:48148".into());
    let peer = Communicator::builder(master).build()?;
    peer.connect()?;
    let begin = Instant::now();
    while peer.attributes().group_world < 2 {
        if begin.elapsed() > Duration::from_secs(60) {
            println!("no other peer joined: start a second one");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
        peer.update_topology()?;
    }

    // The gradients of a layer are reduced while the next ones are computed.
    let begin = Instant::now();
    let mut pending = Vec::new();
    for layer in 0..LAYERS {
        let gradients = vec![layer as f32 + 1.0; ELEMENTS];
        pending.push((layer, peer.all_reduce_async(gradients, AllReduce::avg().tag(layer))?));
    }
    for (layer, reduce) in pending {
        let (mut gradients, mut result) = reduce.wait();
        // After an abort the vector is restored.
        while result.as_ref().is_err_and(|e| e.is_retryable() && !e.is_alone()) {
            println!("retrying layer {layer}");
            result = peer.all_reduce(&mut gradients, AllReduce::avg().tag(layer));
        }
        let info = result?;
        println!("layer {layer}: the mean of {} peers is {}", info.world, gradients[0]);
    }
    println!("{LAYERS} layers of {} MiB took {:.0?}", (ELEMENTS * 4) >> 20, begin.elapsed());
    Ok(())
}
