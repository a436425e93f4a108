//! Measures reduces of CUDA tensors between two peers of this process, and the cost of staging.
//!
//! `cargo run --release -p ringfold --example cuda_speed -- [largest MiB]` prints, for sizes up to that, the speed of
//! the copies, and the median times of a reduce of host memory, of a reduce of device memory, and of four reduces of
//! device memory that are in flight at once.

use ringfold::cuda::{DefaultStreamMark, DeviceBuffer, Download, UploadPiece, upload};
use ringfold::{AllReduce, Buffers, Communicator, DType, Master, Memory, Reduction};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Reduces that are in flight at once.
const AT_ONCE: usize = 4;

fn main() -> Outcome {
    let most: usize = std::env::args().nth(1).map_or(Ok(256), |mib| mib.parse())?;
    let sizes: Vec<usize> = [4, 4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]
        .into_iter()
        .filter(|bytes| *bytes <= most << 20)
        .collect();
    for bytes in &sizes {
        copies(*bytes)?;
    }
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run()?;
    let address = master.addresses()[0].to_string();
    let barrier = Arc::new(Barrier::new(2));
    let peers = [0, 1].map(|number| {
        let (address, sizes, barrier) = (address.clone(), sizes.clone(), barrier.clone());
        std::thread::spawn(move || peer(&address, number, &sizes, &barrier))
    });
    for peer in peers {
        peer.join().map_err(|_| "a peer panicked")??;
    }
    Ok(())
}

/// Measures downloads and uploads. The first download also pins pages.
fn copies(bytes: usize) -> Outcome {
    let buffer = DeviceBuffer::new(0, &vec![1; bytes])?;
    let memory = buffer.memory();
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for _ in 0..rounds(bytes) + 1 {
        let began = Instant::now();
        let host = Download::start(vec![memory.clone()], &DefaultStreamMark::record([&memory])?)?.finish()?;
        down.push(began.elapsed());
        let began = Instant::now();
        let piece = UploadPiece { target: &memory, offset: 0, bytes: host[0].as_slice() };
        upload(&[piece], &DefaultStreamMark::record([&memory])?)?;
        up.push(began.elapsed());
    }
    let first = down.remove(0);
    let (down, up) = (median(down), median(up));
    let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{bytes:>11} bytes: down {down:>10.1?} ({:.2} GB/s), the first time {first:.1?}; up {up:>10.1?} ({:.2} GB/s)",
        speed(down),
        speed(up)
    );
    Ok(())
}

fn peer(address: &str, number: usize, sizes: &[usize], barrier: &Barrier) -> Outcome {
    let communicator = Communicator::builder(address).name(format!("peer-{number}")).build()?;
    communicator.connect()?;
    while communicator.attributes().group_world < 2 {
        communicator.update_topology()?;
    }
    for bytes in sizes {
        let (bytes, rounds) = (*bytes, rounds(*bytes));
        let (mut host, mut device, mut at_once) = (Vec::new(), Vec::new(), Vec::new());
        let mut values = Memory::zeroed(bytes);
        let tensors =
            (0..AT_ONCE).map(|_| DeviceBuffer::new(0, &vec![0; bytes])).collect::<Result<Vec<_>, _>>()?;
        let buffers =
            |tensor: &DeviceBuffer| Buffers::Device { source: tensor.memory(), target: tensor.memory() };
        for _ in 0..rounds {
            barrier.wait();
            let began = Instant::now();
            let target = core::mem::replace(&mut values, Memory::zeroed(0));
            let work = communicator.reduce_async(reduction(Buffers::InPlace(target), AllReduce::avg()))?;
            work.wait()?;
            host.push(began.elapsed());
            values = Memory::zeroed(bytes);
            barrier.wait();
            let began = Instant::now();
            let options = AllReduce::avg();
            communicator.reduce(reduction(buffers(&tensors[0]), options))?;
            device.push(began.elapsed());
            barrier.wait();
            let began = Instant::now();
            let launch = |(tag, tensor): (usize, &DeviceBuffer)| {
                communicator.reduce_async(reduction(buffers(tensor), options.tag(tag as u64)))
            };
            let works = tensors.iter().enumerate().map(launch).collect::<Result<Vec<_>, _>>()?;
            works.iter().try_for_each(|work| work.wait().map(drop))?;
            at_once.push(began.elapsed());
        }
        if number == 0 {
            let (host, device, at_once) = (median(host), median(device), median(at_once));
            println!(
                "{bytes:>11} bytes: host {host:>10.1?}; device {device:>10.1?}; {AT_ONCE} at once {at_once:>10.1?}"
            );
        }
    }
    Ok(())
}

fn reduction(buffers: Buffers, options: AllReduce) -> Reduction {
    Reduction { dtype: DType::F32, buffers, options }
}

fn rounds(bytes: usize) -> usize {
    ((2_usize << 30) / bytes).clamp(3, 200)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
