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
fn puts_of_all_widths_are_ordered_and_set_their_word_last() {
    const BYTES: usize = 128 << 10;
    const ROUNDS: usize = 120;
    let Some(gpu) = gpu("puts_of_all_widths_are_ordered_and_set_their_word_last") else { return };
    let stream = gpu.create_stream().unwrap();
    stream.prepare_puts();
    assert!(stream.puts.lock().is_some(), "which method is used");
    let memories = [GpuMemory::zeroed(&gpu, BYTES).unwrap(), GpuMemory::zeroed(&gpu, BYTES).unwrap()];
    let word = GpuMemory::zeroed(&gpu, 64).unwrap();
    let host = gpu.map_host_words(3 * 8 * ROUNDS).unwrap();
    let at = |index: usize| host.device_address() + 8 * index as u64;
    let sizes = [1, 7, 8, 16, 4096, 4097, 16 << 10, 20 << 10, 64 << 10, (64 << 10) + 1];
    // Offsets that allow elements of 16, 4 and 1 bytes.
    let offsets = [(0, 0), (4, 12), (5, 3)];
    for round in 0..ROUNDS {
        let (bytes, (to, from)) = (sizes[round % sizes.len()], offsets[round / sizes.len() % 3]);
        let (to, from) = (memories[round % 2].address() + to, memories[1 - round % 2].address() + from);
        let number = round as u64 + 1;
        // SAFETY: all of them live until the stream is done, below.
        unsafe {
            stream.fill(from, number as u8, bytes).unwrap();
            stream.put(&Put { to, from, bytes, word: Some((word.address(), number)) }).unwrap();
            stream.copy(at(3 * round), to, 1).unwrap();
            stream.copy(at(3 * round + 1), to + bytes as u64 - 1, 1).unwrap();
            stream.copy(at(3 * round + 2), word.address(), 8).unwrap();
        }
    }
    stream.synchronize(soon()).unwrap();
    for round in 0..ROUNDS {
        let found = [0, 1, 2].map(|index| host.word(3 * round + index).load(Ordering::Acquire));
        assert_eq!(found, [round as u64 + 1; 3], "round {round}");
    }
}

#[test]
fn a_put_without_the_kernels_uses_the_driver() {
    let Some(gpu) = gpu("a_put_without_the_kernels_uses_the_driver") else { return };
    let (stream, memory) = (gpu.create_stream().unwrap(), GpuMemory::zeroed(&gpu, 64).unwrap());
    let host = gpu.map_host_words(16).unwrap();
    // SAFETY: all of them live until the stream is done.
    unsafe {
        stream.fill(memory.address(), 7, 8).unwrap();
        let (to, from) = (memory.address() + 16, memory.address());
        stream.put(&Put { to, from, bytes: 8, word: Some((to + 16, 9)) }).unwrap();
        stream.copy(host.device_address(), to, 8).unwrap();
        stream.copy(host.device_address() + 8, to + 16, 8).unwrap();
    }
    stream.synchronize(soon()).unwrap();
    let found = [0, 1].map(|index| host.word(index).load(Ordering::Acquire));
    assert_eq!(found, [0x0707_0707_0707_0707, 9]);
}
