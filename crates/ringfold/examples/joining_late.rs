//! A run that admits new peers, which receive the current state.
//!
//! Start a master (`cargo run --release -- master`), then this program, and again some seconds later:
//! `cargo run --release -p ringfold --example joining_late [MASTER]`

use ringfold::{AllReduce, Communicator, Error, SharedState, SyncStrategy};
use std::time::Duration;

const STEPS: u64 = 40;

fn main() -> Result<(), Error> {
    let master = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:48148".into());
    let peer = Communicator::builder(master).build()?;
    peer.connect()?;

    let mut weights = vec![0.0_f32; 1 << 20];
    let mut step = 0;
    let mut is_new = true;
    while step < STEPS {
        // A new peer continues after the vote that admitted it, like the others.
        if !is_new && peer.are_peers_pending()? {
            peer.update_topology()?;
        }
        is_new = false;

        // A peer that is behind receives the state and the step of the others.
        let info = peer.sync_shared_state(
            &mut SharedState::new(step).add("weights", &mut weights),
            SyncStrategy::EnforcePopular,
        )?;
        step = info.revision;
        if info.rx_bytes > 0 {
            println!("received {} bytes: continuing after step {step}", info.rx_bytes);
        }

        std::thread::sleep(Duration::from_millis(250)); // stands for the computation
        let mut gradients = vec![1.0_f32; weights.len()];
        loop {
            match peer.all_reduce(&mut gradients, AllReduce::avg()) {
                Ok(_) => break,
                Err(error) if error.is_alone() => break,
                Err(error) if error.is_retryable() => println!("retrying: {error}"),
                Err(error) => return Err(error),
            }
        }
        weights.iter_mut().zip(&gradients).for_each(|(weight, gradient)| *weight += gradient);
        step += 1;
        println!("step {step}: {} peers, weights {}", peer.attributes().group_world, weights[0]);
    }
    Ok(())
}
