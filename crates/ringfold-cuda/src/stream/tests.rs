//! Tests that need a device; without one, each prints that it was skipped.

#[path = "../../../ringfold-lab/src/skip.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod skip;

use super::*;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::limits::WORD_RING_WORDS;
use std::time::Duration;

fn gpu(test: &str) -> Option<Gpu> {
    let gpu = Gpu::open(0).map_err(|why| why.to_string());
    skip::check(test, gpu.as_ref().map(|_| ()).map_err(Clone::clone)).then_some(gpu.ok()).flatten()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Writes increasing numbers to one word and then to another; the second must never be ahead of the first.
fn check_word_order(gpu: &Gpu, stream: &Stream) {
    let count = 3 * WORD_RING_WORDS as u64 + 5;
    let device = GpuMemory::zeroed(gpu, 16).unwrap();
    let host = gpu.map_host_words(16).unwrap();
    for number in 1..=count {
        // SAFETY: all four words live until the stream is done, below.
        unsafe {
            stream.write_word(device.address(), number).unwrap();
            stream.copy(host.device_address(), device.address(), 8).unwrap();
            stream.write_word(host.device_address() + 8, number).unwrap();
        }
        if number % 97 == 0 {
            let (second, first) =
                (host.word(1).load(Ordering::Acquire), host.word(0).load(Ordering::Acquire));
            assert!(first >= second, "{second} was visible before {first}");
        }
    }
    stream.synchronize(soon()).unwrap();
    assert_eq!((host.word(0).load(Ordering::Acquire), host.word(1).load(Ordering::Acquire)), (count, count));
}

#[test]
fn words_written_by_the_stream_are_ordered_after_copies() {
    let Some(gpu) = gpu("words_written_by_the_stream_are_ordered_after_copies") else { return };
    let stream = gpu.create_stream().unwrap();
    check_word_order(&gpu, &stream);
    assert_eq!(stream.ring.lock().is_none(), gpu.writes_words(), "which method was used");
}

#[test]
fn words_copied_from_the_ring_are_ordered_after_copies() {
    let Some(gpu) = gpu("words_copied_from_the_ring_are_ordered_after_copies") else { return };
    let stream = gpu.create_stream().unwrap();
    stream.writes_words.store(false, Ordering::Relaxed);
    check_word_order(&gpu, &stream);
    assert!(stream.ring.lock().is_some());
}

#[test]
fn an_unaligned_word_is_rejected() {
    let Some(gpu) = gpu("an_unaligned_word_is_rejected") else { return };
    let (stream, memory) = (gpu.create_stream().unwrap(), GpuMemory::zeroed(&gpu, 64).unwrap());
    // SAFETY: the memory lives.
    let rejected = unsafe { stream.write_word(memory.address() + 4, 1) };
    assert!(rejected.unwrap_err().to_string().contains("not a multiple of 8"));
}

#[test]
fn calls_work_within_a_current_context_guard_which_restores_the_context() {
    let Some(gpu) = gpu("calls_work_within_a_current_context_guard_which_restores_the_context") else {
        return;
    };
    let current = || {
        let mut handle = 0;
        // SAFETY: the handle can be written.
        assert_eq!(unsafe { (gpu.context().api.current_context)(&raw mut handle) }, api::SUCCESS);
        handle
    };
    let (stream, before) = (gpu.create_stream().unwrap(), current());
    {
        let _current = gpu.context().current().unwrap();
        let held = current();
        assert_ne!(held, 0);
        check_word_order(&gpu, &stream);
        assert_eq!(current(), held);
    }
    assert_eq!(current(), before);
    check_word_order(&gpu, &stream);
}

#[test]
fn small_device_copies_use_a_graph_and_are_ordered() {
    const BYTES: usize = 2 * GRAPH_COPY_MAX;
    let Some(gpu) = gpu("small_device_copies_use_a_graph_and_are_ordered") else { return };
    let stream = gpu.create_stream().unwrap();
    let memories = [GpuMemory::zeroed(&gpu, BYTES).unwrap(), GpuMemory::zeroed(&gpu, BYTES).unwrap()];
    let host = gpu.map_host_words(8 * 64).unwrap();
    let sizes = [1, 7, 8, 4096, GRAPH_COPY_MAX, GRAPH_COPY_MAX + 1];
    for (round, bytes) in sizes.into_iter().cycle().take(60).enumerate() {
        let (to, from) = (memories[round % 2].address(), memories[1 - round % 2].address());
        // SAFETY: all of them live until the stream is done, below.
        unsafe {
            stream.fill(from + 3, round as u8 + 1, bytes).unwrap();
            stream.copy_within(to + 5, from + 3, bytes).unwrap();
            stream.copy(host.device_address() + 8 * round as u64, to + 5 + bytes as u64 - 1, 1).unwrap();
        }
    }
    stream.synchronize(soon()).unwrap();
    let last: Vec<_> = (0..60).map(|round| host.word(round).load(Ordering::Acquire)).collect();
    assert_eq!(last, (1..=60).collect::<Vec<u64>>());
    assert!(matches!(&*stream.copies.lock(), SmallCopies::Graph(_)), "which method was used");
}
