//! Peers sum up numbers, ten times.
//!
//! Start a master (`cargo run --release -- master`) and then this program at least twice:
//! `cargo run --release -p ringfold --example hello_world [MASTER]`

use ringfold::{AllReduce, Communicator, Error};
use std::time::{Duration, Instant};

fn main() -> Result<(), Error> {
    let master = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:48148".into());
    let peer = Communicator::builder(master).build()?;
    peer.connect()?;

    // New peers are admitted when all peers of the run vote for it.
    let begin = Instant::now();
    while peer.attributes().group_world < 2 {
        if begin.elapsed() > Duration::from_secs(60) {
            println!("no other peer joined: start a second one");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
        peer.update_topology()?;
    }

    for round in 1..=10 {
        let mut numbers = [1.0_f32, 2.0, 3.0, 4.0];
        match peer.all_reduce(&mut numbers, AllReduce::sum()) {
            Ok(info) => println!("round {round}: the sum of {} peers is {numbers:?}", info.world),
            Err(error) if error.is_alone() => {
                println!("the others have left");
                break;
            }
            // The numbers are restored: try again with the remaining peers.
            Err(error) if error.is_retryable() => println!("round {round}: {error}"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
