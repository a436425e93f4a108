//! Tests of a device through the driver. Without a device each prints that it was skipped.

use crate::skip;
use ringfold_cuda::nvrtc::{CompileRequest, Compiler};
use ringfold_cuda::{
    CudaError, Dim3, Gpu, GpuMemory, IpcMemory, IpcRecord, Module, buffer_id, relaxed_capture,
};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SPIN: &str = r#"
extern "C" __global__ void spin(volatile unsigned long long* word, unsigned long long* out) {
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (*word == 0 && now - began < 20000000000ull);
  *out = *word;
}
"#;

const ONE: Dim3 = Dim3 { x: 1, y: 1, z: 1 };
const THREAD: Dim3 = Dim3 { x: 1, y: 1, z: 1 };

/// One test at a time: freeing memory waits for kernels of other tests, and blocks all driver calls meanwhile.
static DEVICE: Mutex<()> = Mutex::new(());

fn gpu(test: &str) -> Option<(Gpu, MutexGuard<'static, ()>)> {
    let gpu = Gpu::open(0);
    let available = gpu.as_ref().map(|_| ()).map_err(ToString::to_string);
    let gpu = if skip::check(test, available) { gpu.ok()? } else { return None };
    Some((gpu, DEVICE.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Copies the first words of device memory to the host.
fn words_of(memory: &GpuMemory, count: usize) -> Vec<u64> {
    let (stream, host) =
        (memory.gpu().create_stream().unwrap(), memory.gpu().map_host_words(8 * count).unwrap());
    // SAFETY: both live until the stream is done.
    unsafe { stream.copy(host.device_address(), memory.address(), 8 * count).unwrap() };
    stream.synchronize(soon()).unwrap();
    (0..count).map(|index| host.word(index).load(Ordering::Relaxed)).collect()
}

#[test]
fn device_properties_are_reported() {
    let Some((gpu, _alone)) = gpu("device_properties_are_reported") else { return };
    assert!(gpu.sms() > 0 && gpu.arch().starts_with("sm_"), "{gpu:?}");
    assert_ne!(gpu.uuid().unwrap(), [0; 16]);
    assert_eq!(Gpu::current().unwrap().ordinal(), 0);
    assert_eq!(Gpu::unavailable_reason(), None);
}

#[test]
fn memory_is_zeroed_and_copied_both_ways() {
    let Some((gpu, _alone)) = gpu("memory_is_zeroed_and_copied_both_ways") else { return };
    let memory = GpuMemory::zeroed(&gpu, 1 << 20).unwrap();
    assert_eq!(Gpu::of_address(memory.address() + 77).unwrap(), Some(gpu));
    assert!(words_of(&memory, 1 << 17).iter().all(|word| *word == 0));
    let (stream, host) = (gpu.create_stream().unwrap(), gpu.map_host_words(64).unwrap());
    for index in 0..8 {
        host.word(index).store(index as u64 + 1, Ordering::Relaxed);
    }
    // SAFETY: all of them live until the stream is done.
    unsafe {
        stream.copy(memory.address() + 64, host.device_address(), 64).unwrap();
        stream.copy(memory.address(), memory.address() + 64, 32).unwrap();
        stream.fill(memory.address() + 8, 0xff, 8).unwrap();
    }
    stream.synchronize(soon()).unwrap();
    assert!(stream.is_idle().unwrap() && !stream.is_capturing().unwrap());
    assert_eq!(words_of(&memory, 10), [1, u64::MAX, 3, 4, 0, 0, 0, 0, 1, 2]);
}

#[test]
fn waits_have_deadlines_and_do_not_block_other_streams() {
    let name = "waits_have_deadlines_and_do_not_block_other_streams";
    let Some((gpu, _alone)) = gpu(name) else { return };
    let compiler = Compiler::load(None);
    if !skip::check(name, compiler.as_ref().map(|_| ()).map_err(ToString::to_string)) {
        return;
    }
    let arch = gpu.arch();
    let request = CompileRequest { source: SPIN, name: "spin.cu", arch: &arch, ..CompileRequest::default() };
    let spin =
        Module::load(&gpu, &compiler.unwrap().compile(&request).unwrap()).unwrap().function("spin").unwrap();
    let (word, out) = (gpu.map_host_words(8).unwrap(), GpuMemory::zeroed(&gpu, 8).unwrap());
    let (stream, other) = (gpu.create_stream().unwrap(), gpu.create_stream().unwrap());
    let target = GpuMemory::zeroed(&gpu, 64).unwrap();
    let parameters = [word.device_address().to_ne_bytes(), out.address().to_ne_bytes()].concat();
    // Once on a created stream, once on the default stream.
    for raw in [stream.raw(), 0] {
        word.word(0).store(0, Ordering::Release);
        // SAFETY: the parameters match the kernel, and their memory lives until it has ended.
        unsafe { spin.launch(&parameters, ONE, THREAD, 0, raw).unwrap() };
        // SAFETY: the stream exists.
        let launched = unsafe { gpu.borrow_stream(raw) };
        let began = Instant::now();
        let late = launched.synchronize(Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert!(matches!(late, CudaError::TimedOut { .. }), "{late}");
        assert!(began.elapsed() < Duration::from_secs(5));
        // SAFETY: the target lives.
        unsafe { other.write_word(target.address(), 7).unwrap() };
        other.synchronize(Instant::now() + Duration::from_secs(5)).unwrap();
        word.word(0).store(9, Ordering::Release);
        launched.synchronize(soon()).unwrap();
        assert_eq!(words_of(&out, 1), [9]);
    }
}

#[test]
fn events_order_streams() {
    let Some((gpu, _alone)) = gpu("events_order_streams") else { return };
    let (first, second) = (gpu.create_stream().unwrap(), gpu.create_stream().unwrap());
    let (began, ended) = (gpu.create_event().unwrap(), gpu.create_event().unwrap());
    let memory = GpuMemory::zeroed(&gpu, 64 << 20).unwrap();
    first.record(&began).unwrap();
    for value in 0..8 {
        // SAFETY: the memory lives until both streams are done.
        unsafe { first.fill(memory.address(), value, memory.len()).unwrap() };
    }
    first.record(&ended).unwrap();
    second.wait(&ended).unwrap();
    // SAFETY: as above.
    unsafe { second.fill(memory.address(), 0xaa, 8).unwrap() };
    second.synchronize(soon()).unwrap();
    assert!(ended.query().unwrap());
    assert!(began.query().unwrap());
    assert_eq!(words_of(&memory, 2), [0xaaaa_aaaa_aaaa_aaaa, 0x0707_0707_0707_0707]);
}

#[test]
fn ipc_records_contain_the_offset_and_are_rejected_by_their_own_process() {
    let name = "ipc_records_contain_the_offset_and_are_rejected_by_their_own_process";
    let Some((gpu, _alone)) = gpu(name) else { return };
    let (memory, other) = (GpuMemory::zeroed(&gpu, 8 << 20).unwrap(), GpuMemory::zeroed(&gpu, 64).unwrap());
    let record = IpcRecord::export(memory.address() + 4096, 512).unwrap();
    assert_eq!((record.offset, record.bytes, record.gpu), (4096, 512, gpu.uuid().unwrap()));
    assert!(record.allocation_bytes >= 8 << 20);
    assert_eq!(IpcRecord::decode(&record.encode()), Some(record));
    let too_long = IpcRecord::export(memory.address() + 4096, 8 << 20).unwrap_err();
    assert!(too_long.to_string().contains("exceed their allocation"), "{too_long}");
    let own = IpcMemory::open(&record, &gpu).unwrap_err();
    assert!(own.to_string().contains("it belongs to this process"), "{own}");
    assert_eq!(buffer_id(memory.address()).unwrap(), buffer_id(memory.address() + 4096).unwrap());
    assert_ne!(buffer_id(memory.address()).unwrap(), buffer_id(other.address()).unwrap());
}

#[test]
fn calls_work_in_relaxed_capture_mode() {
    let Some((gpu, _alone)) = gpu("calls_work_in_relaxed_capture_mode") else { return };
    let guard = relaxed_capture();
    let inner = relaxed_capture();
    assert_eq!(GpuMemory::zeroed(&gpu, 100).unwrap().len(), 100);
    drop(inner);
    drop(guard);
}

#[test]
fn running_out_of_memory_is_reported() {
    let Some((gpu, _alone)) = gpu("running_out_of_memory_is_reported") else { return };
    let lacking = GpuMemory::zeroed(&gpu, 1 << 50).unwrap_err();
    assert_eq!(lacking, CudaError::OutOfMemory { device: 0, bytes: 1 << 50 });
    assert_eq!((lacking.kind(), lacking.code()), ("cuda", 2));
}
