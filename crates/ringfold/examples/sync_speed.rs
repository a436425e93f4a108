//! Measures hashing, comparing and fetching of shared state between processes on this machine.
//!
//! `cargo run --release -p ringfold --example sync_speed -- [MiB]` starts a master and two peers with a state of that size.
//! Both hash it at the same time, then sync it without a fetch; then a third peer joins and fetches all of it.

use ringfold::{Communicator, Master, SharedState, SyncStrategy};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Syncs without anything to fetch.
const ROUNDS: u64 = 9;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("--peer") => peer(&arguments[1..]),
        _ => run(arguments.first().map_or("512", String::as_str)),
    };
    result.map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn run(mebibytes: &str) -> Outcome {
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run()?;
    let address = master.addresses()[0].to_string();
    let spawn = |number: &str| {
        let arguments = ["--peer", &address, mebibytes, number];
        Command::new(std::env::current_exe()?).args(arguments).stdin(Stdio::null()).spawn()
    };
    let mut peers = vec![spawn("0")?, spawn("1")?];
    std::thread::sleep(Duration::from_secs(1));
    peers.push(spawn("2")?);
    for mut peer in peers {
        if !peer.wait()?.success() {
            return Err("a peer failed".into());
        }
    }
    Ok(())
}

fn peer(arguments: &[String]) -> Outcome {
    let [address, mebibytes, number] = arguments else { return Err("three arguments".into()) };
    let bytes = mebibytes.parse::<usize>()? << 20;
    let is_new = number == "2";
    let mut data: Vec<u32> = (0..bytes / 4).map(|i| if is_new { 1 } else { i as u32 }).collect();
    let communicator = Communicator::builder(address).name(format!("peer-{number}")).build()?;
    communicator.connect()?;
    let mut revision = 0;
    if !is_new {
        while communicator.attributes().group_world < 2 {
            communicator.update_topology()?;
        }
        // The first sync touches all memory, and aligns the two peers.
        sync(&communicator, &mut data, 0)?;
        let mut hashes = median(ROUNDS, || {
            std::hint::black_box(ringfold_kernels::tree_hash(zerocopy::IntoBytes::as_bytes(&data[..])));
            Ok(())
        })?;
        let mut syncs = Vec::new();
        for _ in 0..ROUNDS {
            revision += 1;
            let began = Instant::now();
            sync(&communicator, &mut data, revision)?;
            syncs.push(began.elapsed());
        }
        syncs.sort_unstable();
        hashes.sort_unstable();
        if number == "0" {
            let (hash, sync) = (hashes[hashes.len() / 2], syncs[syncs.len() / 2]);
            let ratio = sync.as_secs_f64() / hash.as_secs_f64();
            println!(
                "{mebibytes} MiB, two peers: hash alone {hash:?}, sync without a fetch {sync:?}, {ratio:.2} x"
            );
        }
        while communicator.attributes().group_world < 3 {
            communicator.update_topology()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        revision += 1;
    }
    let began = Instant::now();
    let received = sync(&communicator, &mut data, revision)?;
    if is_new {
        let took = began.elapsed();
        let speed = received as f64 / took.as_secs_f64() / 1e9;
        println!("sync of a new peer: {received} bytes fetched and checked in {took:?}, {speed:.2} GB/s");
    }
    Ok(())
}

fn sync(communicator: &Communicator, data: &mut [u32], revision: u64) -> Result<u64, ringfold::Error> {
    let mut state = SharedState::new(revision).add("data", data);
    Ok(communicator.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?.rx_bytes)
}

fn median(
    rounds: u64,
    mut work: impl FnMut() -> Result<(), ringfold::Error>,
) -> Result<Vec<Duration>, ringfold::Error> {
    (0..rounds)
        .map(|_| {
            let began = Instant::now();
            work()?;
            Ok(began.elapsed())
        })
        .collect()
}
