//! Tensors on a CUDA device: reduced and synchronized with the same bits as those on the host.
//!
//! The tests are skipped without a driver and a device. They need no CUDA toolkit.

use crate::blocked::Callers;
use half::bf16;
use ringfold::cuda::{CudaError, DefaultStreamMark, DeviceBuffer, DeviceMemory, Download, Driver, Gpu};
use ringfold::{
    AllReduce, Buffers, Cause, Communicator, DType, Element, Error, Failure, Master, Memory, Reduction,
    StateMemory, StateTensor, SyncCompany, SyncInfo, SyncStrategy,
};
use ringfold_lab::skip;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Whether there is a device. If not, reports that the test is skipped.
fn has_device(test: &str) -> bool {
    let driver = Driver::loaded().map_err(|why| why.to_string());
    let device = driver.and_then(|driver| match driver.device_count() {
        0 => Err("a CUDA device".into()),
        _ => Ok(()),
    });
    skip::check(test, device)
}

/// A tensor on the first device.
struct Tensor(DeviceBuffer);

impl Tensor {
    fn new<T: Element>(values: &[T]) -> Self {
        Self(DeviceBuffer::new(0, values.as_bytes()).expect("allocating on the device"))
    }

    fn values<T: Element>(&self) -> Vec<T> {
        let bytes = self.0.read().expect("reading from the device");
        bytes.chunks_exact(size_of::<T>()).map(|chunk| T::read_from_bytes(chunk).unwrap()).collect()
    }

    fn memory(&self) -> DeviceMemory {
        self.0.memory()
    }

    fn in_place(&self) -> Buffers {
        Buffers::Device { source: self.memory(), target: self.memory() }
    }

    fn to(&self, target: &Self) -> Buffers {
        Buffers::Device { source: self.memory(), target: target.memory() }
    }
}

fn reduction<T: Element>(buffers: Buffers, options: AllReduce) -> Reduction {
    Reduction { dtype: T::DTYPE, buffers, options }
}

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

/// Runs two peers, each on a thread, and returns their results.
fn two_peers<R: Send>(run: impl Fn(Communicator, usize) -> R + Sync) -> [R; 2] {
    let (_master, address) = master();
    thread::scope(|scope| {
        let (run, address) = (&run, &address);
        let peers = [0, 1]
            .map(|number| scope.spawn(move || run(join(address, &format!("peer-{number}"), 2), number)));
        peers.map(|peer| peer.join().expect("the peer panicked"))
    })
}

fn floats(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101) % 1009) as f32 / 8.0 - 50.0).collect()
}

#[test]
fn uploaded_bytes_are_downloaded_unchanged() {
    if !has_device("uploaded_bytes_are_downloaded_unchanged") {
        return;
    }
    let data: Vec<u8> = (0..40_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let sizes = [0, 1, 4097, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 40_000_000];
    let buffers = sizes.map(|size| DeviceBuffer::new(0, &data[..size]).unwrap());
    for (buffer, size) in buffers.iter().zip(sizes) {
        assert!(buffer.read().unwrap() == data[..size], "{size} bytes");
    }
    let sources: Vec<_> = buffers.iter().map(DeviceBuffer::memory).collect();
    let queued = DefaultStreamMark::record(&sources).unwrap();
    let download = Download::start(sources, &queued).unwrap();
    for (source, size) in sizes.into_iter().enumerate() {
        assert!(*download.wait_for(source, size / 3..size).unwrap() == data[size / 3..size], "{size} bytes");
    }
    for (memory, size) in download.finish().unwrap().iter().zip(sizes) {
        assert!(memory.as_slice() == &data[..size], "{size} bytes");
    }
}

#[test]
fn host_addresses_are_rejected_also_of_pinned_memory() {
    if !has_device("host_addresses_are_rejected_also_of_pinned_memory") {
        return;
    }
    let tensor = Tensor::new(&[1.0_f32; 1000]);
    let queued = DefaultStreamMark::record([&tensor.memory()]).unwrap();
    let pinned = Download::start(vec![tensor.memory()], &queued).unwrap().finish().unwrap();
    let plain = vec![0_u8; 4000];
    for host in [plain.as_slice(), pinned[0].as_slice()] {
        let address = host.as_ptr().addr() as u64;
        // SAFETY: the bytes live until after the value is gone.
        let refused = unsafe { DeviceMemory::borrowed(address, host.len(), Box::new(())) };
        assert_eq!(refused.unwrap_err(), CudaError::NotOnDevice(address));
        assert!(!Gpu::is_on_device(address));
    }
    let address = tensor.memory().address();
    assert!(Gpu::is_on_device(address + 100));
    // SAFETY: the tensor lives until after the value is gone.
    let part = unsafe { DeviceMemory::borrowed(address + 16, 32, Box::new(())) }.unwrap();
    assert_eq!((part.ordinal(), part.len()), (Some(0), 32));
}

/// The result of two peers with these inputs in host memory.
fn on_the_host<T: Element>(inputs: &[Vec<T>; 2], options: AllReduce) -> Vec<T> {
    let [one, other] = two_peers(|peer, number| {
        let mut data = inputs[number].clone();
        peer.all_reduce(&mut data, options).expect("it succeeds");
        data
    });
    assert_eq!(one.as_bytes(), other.as_bytes());
    one
}

fn same_bits<T: Element>(make: impl Fn(usize, usize) -> Vec<T>) {
    for count in [0, 1, 1000, 3_000_001] {
        let inputs = [make(count, 0), make(count, 1)];
        let want = on_the_host(&inputs, AllReduce::avg());
        two_peers(|peer, number| {
            let input = &inputs[number];
            let (tensor, target) = (Tensor::new(input), Tensor::new(&vec![T::new_zeroed(); count]));
            let out = reduction::<T>(tensor.to(&target), AllReduce::avg());
            let info = peer.reduce(out).expect("it succeeds");
            assert_eq!(info.world, 2);
            assert!(target.values::<T>().as_bytes() == want.as_bytes(), "{count} out of place");
            assert!(tensor.values::<T>().as_bytes() == input.as_bytes(), "{count}: the input stays");
            peer.reduce(reduction::<T>(tensor.in_place(), AllReduce::avg())).expect("it succeeds");
            assert!(tensor.values::<T>().as_bytes() == want.as_bytes(), "{count} in place");
            // One peer on the host, one on the device.
            let mut host = input.clone();
            let mixed = if number == 0 {
                let tensor = Tensor::new(input);
                peer.reduce(reduction::<T>(tensor.in_place(), AllReduce::avg())).expect("it succeeds");
                tensor.values::<T>()
            } else {
                peer.all_reduce(&mut host, AllReduce::avg()).expect("it succeeds");
                host
            };
            assert!(mixed.as_bytes() == want.as_bytes(), "{count} mixed");
        });
    }
}

#[test]
fn f32_on_devices_are_reduced_to_the_bits_of_the_host() {
    if has_device("f32_on_devices_are_reduced_to_the_bits_of_the_host") {
        same_bits(floats);
    }
}

#[test]
fn bf16_on_devices_are_reduced_to_the_bits_of_the_host() {
    if has_device("bf16_on_devices_are_reduced_to_the_bits_of_the_host") {
        same_bits(|count, seed| floats(count, seed).into_iter().map(bf16::from_f32).collect());
    }
}

/// Numbers of very different sizes, so that each order of the operands gives other sums.
fn wide(count: usize, seed: usize) -> Vec<f32> {
    let power = |i: usize| 10_f32.powi((i * 7 + seed * 5) as i32 % 15 - 7);
    floats(count, seed).into_iter().enumerate().map(|(i, value)| value * power(i)).collect()
}

#[test]
fn reproducible_reductions_on_devices_have_the_bits_of_the_host() {
    if !has_device("reproducible_reductions_on_devices_have_the_bits_of_the_host") {
        return;
    }
    for world in [3, 5, 9] {
        let (_master, address) = master();
        let address = &address;
        let run = |number: usize| {
            let peer = join(address, &format!("peer-{number}"), world as u32);
            for count in [1, 1000, 300_001] {
                let input = wide(count, number);
                // The same members, so the same order.
                let options = AllReduce::sum().reproducible();
                let mut host = input.clone();
                peer.all_reduce(&mut host, options).expect("it succeeds");
                let tensor = Tensor::new(&input);
                peer.reduce(reduction::<f32>(tensor.in_place(), options)).expect("it succeeds");
                assert!(
                    tensor.values::<f32>().as_bytes() == host.as_bytes(),
                    "{world} peers, {count} elements"
                );
            }
        };
        thread::scope(|scope| (0..world).for_each(|number| drop(scope.spawn(move || run(number)))));
    }
}

#[test]
fn tags_that_peers_launch_in_different_orders_are_in_flight_at_once() {
    if !has_device("tags_that_peers_launch_in_different_orders_are_in_flight_at_once") {
        return;
    }
    const TAGS: usize = 8;
    two_peers(|peer, number| {
        let tensors: Vec<_> = (0..TAGS).map(|tag| Tensor::new(&floats(200_000, number + 10 * tag))).collect();
        let mut order: Vec<_> = (0..TAGS).collect();
        if number == 1 {
            order.reverse();
        }
        let launch = |tag: usize| {
            let options = AllReduce::sum().tag(tag as u64);
            peer.reduce_async(reduction::<f32>(tensors[tag].in_place(), options))
        };
        let mut works: Vec<_> = order.iter().map(|tag| (*tag, launch(*tag).expect("it starts"))).collect();
        works.rotate_left(3);
        for (tag, work) in &works {
            let done = work.wait_for(Duration::from_secs(60)).expect("in time").expect("it succeeds");
            assert_eq!(done.world, 2);
            assert!(work.is_done());
            assert_eq!(work.wait(), Ok(done), "it can be asked again");
            let want: Vec<_> = floats(200_000, 10 * tag)
                .iter()
                .zip(floats(200_000, 1 + 10 * tag))
                .map(|(mine, theirs)| mine + theirs)
                .collect();
            assert!(tensors[*tag].values::<f32>() == want, "tag {tag}");
        }
    });
}

#[test]
fn a_launch_takes_its_tag_and_holds_up_votes_until_it_has_ended() {
    if !has_device("a_launch_takes_its_tag_and_holds_up_votes_until_it_has_ended") {
        return;
    }
    let (go, going) = mpsc::channel::<()>();
    let (go, going) = (parking_lot::Mutex::new(Some(go)), parking_lot::Mutex::new(going));
    two_peers(|peer, number| {
        let tensor = Tensor::new(&[number as f32 + 1.0; 1000]);
        if number == 1 {
            going.lock().recv().unwrap_err();
        }
        let work = peer.reduce_async(reduction::<f32>(tensor.in_place(), AllReduce::sum())).unwrap();
        if number == 0 {
            let again = peer.reduce_async(reduction::<f32>(tensor.in_place(), AllReduce::sum())).map(drop);
            assert_eq!(again, Err(Error::BadArgument("tag 0 is already in flight".into())));
            assert_eq!(peer.update_topology(), Err(Error::Failed(Failure::PendingOperations(1))));
            assert_eq!(work.wait_for(Duration::from_millis(50)), None);
            assert!(!work.is_done());
            go.lock().take();
        }
        work.wait().expect("it succeeds");
        assert_eq!(tensor.values::<f32>(), [3.0; 1000]);
    });
}

#[test]
fn an_abort_does_not_change_device_memory() {
    if !has_device("an_abort_does_not_change_device_memory") {
        return;
    }
    let (input, callers) = (floats(1_000_000, 0), Callers::default());
    two_peers(|peer, number| {
        if number == 1 {
            callers.await_waiting(1);
            return peer.leave();
        }
        let (blocking, launched) = (Tensor::new(&input), Tensor::new(&input));
        let work = peer
            .reduce_async(reduction::<f32>(launched.in_place(), AllReduce::sum().tag(1)))
            .expect("it starts");
        callers.add();
        for failed in [peer.reduce(reduction::<f32>(blocking.in_place(), AllReduce::sum())), work.wait()] {
            match failed {
                Err(Error::Failed(Failure::Aborted(cause))) => {
                    assert!(matches!(*cause, Cause::PeerLost { .. }), "{cause}")
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(blocking.values::<f32>() == input && launched.values::<f32>() == input);
        let alone = peer.reduce_async(reduction::<f32>(launched.in_place(), AllReduce::sum())).map(drop);
        assert_eq!(alone, Err(Error::Failed(Failure::TooFewPeers)));
    });
}

#[test]
fn many_are_reduced_with_few_in_flight_and_dropped_work_runs_on() {
    if !has_device("many_are_reduced_with_few_in_flight_and_dropped_work_runs_on") {
        return;
    }
    two_peers(|peer, number| {
        let tensors: Vec<_> = (0..10).map(|tag| Tensor::new(&[tag as f32 + number as f32; 5000])).collect();
        let all = tensors
            .iter()
            .enumerate()
            .map(|(tag, tensor)| reduction::<f32>(tensor.in_place(), AllReduce::sum().tag(tag as u64)));
        let info = peer.all_reduce_many(all.collect(), 3).expect("all succeed");
        assert_eq!(info.world, 2);
        for (tag, tensor) in tensors.iter().enumerate() {
            assert_eq!(tensor.values::<f32>(), [2.0 * tag as f32 + 1.0; 5000]);
        }
        let dropped = Tensor::new(&[1.0_f32; 100]);
        drop(peer.reduce_async(reduction::<f32>(dropped.in_place(), AllReduce::sum().tag(99))));
        // Both peers have launched the dropped reduce before this one ends.
        peer.reduce(reduction::<f32>(tensors[0].in_place(), AllReduce::sum())).expect("it succeeds");
        let end = Instant::now() + Duration::from_secs(30);
        while dropped.values::<f32>() != [2.0; 100] {
            assert!(Instant::now() < end, "the dropped reduce does not end");
            thread::sleep(Duration::from_millis(5));
        }
    });
}

fn entry(key: &str, dtype: DType, memory: impl Into<StateMemory>) -> StateTensor {
    StateTensor { key: key.into(), dtype, memory: memory.into(), allow_content_inequality: false }
}

fn host(values: &[f32]) -> Memory {
    Memory::from(values.as_bytes().to_vec())
}

/// Syncs weights on the device, a tensor on the host, and a small one on the device.
fn sync(peer: &Communicator, revision: u64, weights: &Tensor, host_too: &[f32], small: &Tensor) -> SyncInfo {
    let state = vec![
        entry("weights", DType::F32, weights.memory()),
        entry("host", DType::F32, host(host_too)),
        entry("small", DType::BF16, small.memory()),
    ];
    peer.sync_memory(revision, state, SyncStrategy::EnforcePopular, SyncCompany::Alone).expect("syncing")
}

#[test]
fn host_and_device_states_are_equal_and_a_late_joiner_fetches_them() {
    if !has_device("host_and_device_states_are_equal_and_a_late_joiner_fetches_them") {
        return;
    }
    // Several pieces, and not a multiple of the leaf size.
    let weights = floats(5_000_003, 3);
    let small = [bf16::from_f32(1.5); 7];
    let bytes = (weights.len() * 4) as u64;
    let (_master, address) = master();
    let (joined, waits) = mpsc::channel();
    thread::scope(|scope| {
        let (address, weights) = (&*address, &weights);
        let first = scope.spawn(move || {
            let peer = join(address, "device", 2);
            let mine = (Tensor::new(weights), Tensor::new(&small));
            let info = sync(&peer, 1, &mine.0, &[4.0; 10], &mine.1);
            assert_eq!((info.tx_bytes, info.rx_bytes, info.revision), (0, 0, 1));
            joined.send(()).unwrap();
            while peer.attributes().group_world < 3 {
                peer.update_topology().expect("updating the topology");
            }
            let info = sync(&peer, 2, &mine.0, &[4.0; 10], &mine.1);
            assert_eq!(info.rx_bytes, 0);
            assert!(mine.0.values::<f32>() == *weights);
        });
        let second = scope.spawn(move || {
            let peer = join(address, "host", 2);
            // The same state, but all of it on the host.
            let state = || {
                let few = Memory::from(small.as_bytes().to_vec());
                vec![
                    entry("weights", DType::F32, host(weights)),
                    entry("host", DType::F32, host(&[4.0; 10])),
                    entry("small", DType::BF16, few),
                ]
            };
            let info =
                peer.sync_memory(1, state(), SyncStrategy::EnforcePopular, SyncCompany::Alone).unwrap();
            assert_eq!((info.tx_bytes, info.rx_bytes), (0, 0), "the hashes are the same");
            while peer.attributes().group_world < 3 {
                peer.update_topology().expect("updating the topology");
            }
            peer.sync_memory(2, state(), SyncStrategy::EnforcePopular, SyncCompany::Alone).unwrap();
        });
        waits.recv().unwrap();
        let peer = join(address, "late", 3);
        let mine = (Tensor::new(&vec![0.0_f32; weights.len()]), Tensor::new(&small));
        let info = sync(&peer, 0, &mine.0, &[4.0; 10], &mine.1);
        assert_eq!((info.revision, info.rx_bytes), (2, bytes), "only what differs is fetched");
        assert!(mine.0.values::<f32>() == *weights, "the late joiner's device holds the weights");
        assert_eq!(mine.1.values::<bf16>(), small);
        first.join().unwrap();
        second.join().unwrap();
    });
}
