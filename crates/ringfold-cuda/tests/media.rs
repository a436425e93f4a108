//! The transport test suite of the fabric, run on connections of ports: TCP, shared memory and CUDA.
//!
//! Both ranks are threads of one process, where records resolve to the same memory. To test mapping as well, some pairs
//! treat records as another process's. CUDA IPC between processes is tested from Python.

use crate::{skip, suite};

use ringfold_cuda::port::{
    Connection, Port, PortError, RegisteredMemory, Registrable, SemaphoreCursor, SemaphoreKind,
    SemaphoreOffer, Transport, TransportFlags, Wait, WordLocation,
};
use ringfold_cuda::{Gpu, GpuMemory, HostWords, Stream};
use ringfold_fabric::memory::Memory;
use ringfold_fabric::shared_memory::SharedMemory;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use suite::{CHANNELS, Failure, Guarded, Pair, Side};

/// The kind of memory that a pair registers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryKind {
    /// Private host memory.
    Private,
    /// Memory in a file.
    File,
    /// Memory in a file, with the record of another process.
    ForeignFile,
    /// Private host memory, with the record of another process: accessible only over TCP.
    Foreign,
    /// Device memory.
    Device,
}

/// One rank.
struct Rank {
    // Dropped in this order.
    semaphores: BTreeMap<u32, SemaphoreCursor>,
    connection: Connection,
    port: Port,
    kind: MemoryKind,
}

fn pair(transport: Transport, kind: MemoryKind) -> (Rank, Rank) {
    let open = |name| Port::open(name, Some("127.0.0.1".parse().unwrap())).unwrap();
    let (zero, one) = (open("rank 0"), open("rank 1"));
    let late = Instant::now() + suite::LONG;
    let (hers, his) = (zero.offer(transport, None).unwrap(), one.offer(transport, None).unwrap());
    let to_one = zero.connect(&hers, &his.record(), 1, late).unwrap();
    let to_zero = one.connect(&his, &hers.record(), 0, late).unwrap();
    let mut semaphores = (BTreeMap::new(), BTreeMap::new());
    for channel in CHANNELS {
        let offer = |connection| SemaphoreOffer::new(connection, WordLocation::of(transport)).unwrap();
        let (hers, his) = (offer(&to_one), offer(&to_zero));
        let tell = |offer: &SemaphoreOffer| foreign_record(offer.record(), kind);
        let cursor = |joined| SemaphoreCursor::new(&joined, SemaphoreKind::HostToHost);
        semaphores.0.insert(channel, cursor(hers.join(&tell(&his)).unwrap()));
        semaphores.1.insert(channel, cursor(his.join(&tell(&hers)).unwrap()));
    }
    let rank = |port, connection, semaphores| Rank { semaphores, connection, port, kind };
    (rank(zero, to_one, semaphores.0), rank(one, to_zero, semaphores.1))
}

/// The record, changed to another process for foreign kinds: the process id starts at byte 16.
fn foreign_record(mut record: Vec<u8>, kind: MemoryKind) -> Vec<u8> {
    if matches!(kind, MemoryKind::ForeignFile | MemoryKind::Foreign) {
        record[16] ^= 1;
    }
    record
}

impl Rank {
    fn flags(&self) -> TransportFlags {
        self.connection.transport().into()
    }
}

thread_local! {
    /// Stream and buffer for copies of device memory.
    static COPY_STREAM: RefCell<Option<(Stream, HostWords)>> = const { RefCell::new(None) };
}

/// Registered memory of any kind.
struct TestMemory {
    registered: RegisteredMemory,
    device: Option<GpuMemory>,
}

impl TestMemory {
    /// Calls `user` with a buffer, and a function that copies to it (true) or from it.
    fn copy(&self, at: usize, bytes: usize, user: impl FnOnce(&HostWords, &dyn Fn(bool))) {
        let Some(memory) = &self.device else { return };
        let (gpu, there) = (memory.gpu(), memory.address() + at as u64);
        COPY_STREAM.with_borrow_mut(|copier| {
            if copier.as_ref().is_none_or(|(_, words)| words.len() < bytes) {
                let words = gpu.map_host_words(bytes.next_power_of_two()).unwrap();
                *copier = Some((gpu.create_stream().unwrap(), words));
            }
            let (stream, words) = copier.as_ref().unwrap();
            user(words, &|is_down| {
                let here = words.device_address();
                let (to, from) = if is_down { (here, there) } else { (there, here) };
                // SAFETY: both have so many bytes, and live until the copy is done.
                unsafe { stream.copy(to, from, bytes) }.unwrap();
                stream.synchronize(Instant::now() + suite::LONG).unwrap();
            });
        });
    }

    fn pointer(&self, at: usize) -> *mut u8 {
        assert!(self.device.is_none());
        core::ptr::with_exposed_provenance_mut(self.registered.data() as usize + at)
    }
}

impl Side for Rank {
    type Memory = TestMemory;
    type Remote = RegisteredMemory;

    fn register(&self, bytes: Vec<u8>) -> TestMemory {
        if self.kind == MemoryKind::Device {
            let memory = GpuMemory::zeroed(&Gpu::open(0).unwrap(), bytes.len()).unwrap();
            let registered = self.port.register(Registrable::Device(memory.memory()), self.flags()).unwrap();
            let memory = TestMemory { registered, device: Some(memory) };
            self.write(&memory, 0, &bytes);
            return memory;
        }
        let what = match self.kind {
            MemoryKind::File | MemoryKind::ForeignFile => {
                Registrable::Shared(SharedMemory::create(bytes.len()).unwrap())
            }
            _ => Registrable::Host(Memory::zeroed(bytes.len())),
        };
        let memory = TestMemory { registered: self.port.register(what, self.flags()).unwrap(), device: None };
        self.write(&memory, 0, &bytes);
        memory
    }

    fn tell(&self, memory: &TestMemory) -> Vec<u8> {
        foreign_record(memory.registered.serialize(), self.kind)
    }

    fn hear(&self, record: &[u8]) -> RegisteredMemory {
        let heard = self.port.remote(record).unwrap();
        assert_eq!(heard.data() == 0, self.kind == MemoryKind::Foreign);
        heard
    }

    fn read(&self, memory: &TestMemory, at: usize, into: &mut [u8]) {
        if memory.device.is_some() {
            memory.copy(at, into.len(), |words, go| {
                go(true);
                // SAFETY: there are so many bytes, and the copy is done.
                unsafe { core::ptr::copy_nonoverlapping(words.start(), into.as_mut_ptr(), into.len()) };
            });
            return;
        }
        // SAFETY: the range is within the memory. Concurrent writes may be seen in part.
        unsafe { core::ptr::copy(memory.pointer(at), into.as_mut_ptr(), into.len()) };
    }

    fn write(&self, memory: &TestMemory, at: usize, from: &[u8]) {
        if memory.device.is_some() {
            memory.copy(at, from.len(), |words, go| {
                // SAFETY: there are so many bytes, and nothing else uses them yet.
                unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), words.start(), from.len()) };
                go(false);
            });
            return;
        }
        // SAFETY: as above.
        unsafe { core::ptr::copy(from.as_ptr(), memory.pointer(at), from.len()) };
    }

    fn word(&self, memory: &TestMemory, at: usize) -> u64 {
        if memory.device.is_some() {
            let mut bytes = [0; 8];
            self.read(memory, at, &mut bytes);
            return u64::from_le_bytes(bytes);
        }
        // SAFETY: it is within the memory, and aligned.
        unsafe { AtomicU64::from_ptr(memory.pointer(at).cast()) }.load(Ordering::Acquire)
    }

    fn put(
        &self,
        from: &TestMemory,
        range: Range<usize>,
        to: &RegisteredMemory,
        at: u64,
    ) -> Result<(), Failure> {
        let (start, bytes) = (range.start as u64, range.len() as u64);
        Ok(self.connection.write(to, at, &from.registered, start, bytes)?)
    }

    fn set_word(&self, to: &RegisteredMemory, at: u64, value: u64) -> Result<(), Failure> {
        Ok(self.connection.update(to, at, value)?)
    }

    fn signal(&self, channel: u32) -> Result<(), Failure> {
        Ok(self.semaphores[&channel].signal()?)
    }

    fn wait(&self, channel: u32, deadline: Instant) -> Result<(), Failure> {
        Ok(self.semaphores[&channel].wait(Wait::until(deadline))?)
    }

    fn poll(&self, channel: u32) -> Result<bool, Failure> {
        Ok(self.semaphores[&channel].poll()?)
    }

    fn flush(&self, deadline: Instant) -> Result<(), Failure> {
        Ok(self.connection.flush(deadline)?)
    }

    fn confirm(&self, deadline: Instant) -> Result<(), Failure> {
        self.flush(deadline)
    }

    fn abort(&self, why: &str) {
        self.port.abort(why);
    }
}

impl From<PortError> for Failure {
    fn from(error: PortError) -> Self {
        let words = error.to_string();
        match error.kind() {
            "timeout" => Self::Late(words),
            "aborted" => Self::Aborted(words),
            "lost" => Self::Lost(words),
            "argument" => Self::Misuse(words),
            _ => Self::Other(words),
        }
    }
}

macro_rules! media {
    ($($medium:ident = $transport:expr, $kind:expr;)*) => {$(
        struct $medium;

        impl Pair for $medium {
            type Side = Rank;
            const ANN: &str = "rank 0";
            const BOB: &str = "rank 1";

            fn pair() -> (Rank, Rank) {
                pair($transport, $kind)
            }
        }
    )*};
}

media! {
    Tcp = Transport::Ethernet, MemoryKind::Private;
    TcpForeign = Transport::Ethernet, MemoryKind::Foreign;
    Shared = Transport::SharedMemory, MemoryKind::File;
    SharedMapped = Transport::SharedMemory, MemoryKind::ForeignFile;
    SharedOverTcp = Transport::SharedMemory, MemoryKind::Foreign;
    Cuda = Transport::CudaIpc, MemoryKind::Device;
    TcpDevice = Transport::Ethernet, MemoryKind::Device;
}

impl Guarded for TcpForeign {
    fn forged(record: &[u8], bytes: u64) -> Vec<u8> {
        // The size is in the record twice: of the memory, and of its segment.
        let mut record = record.to_vec();
        let end = record.len();
        record[64..72].copy_from_slice(&bytes.to_le_bytes());
        record[end - 8..].copy_from_slice(&bytes.to_le_bytes());
        record
    }
}

/// Whether there is a device; prints the reason if not.
fn has_device() -> bool {
    match Gpu::unavailable_reason() {
        None => true,
        Some(why) => {
            skip::report("CUDA transports", &why.to_string());
            false
        }
    }
}

suite::every_medium_promises!(tcp, Tcp);
suite::every_medium_promises!(tcp_foreign, TcpForeign);
suite::queueing_media_promise!(tcp_queue, Tcp);
suite::guarded_media_promise!(tcp_guard, TcpForeign);
suite::every_medium_promises!(shared_memory, Shared);
suite::every_medium_promises!(shared_memory_mapped, SharedMapped);
suite::every_medium_promises!(shared_memory_over_tcp, SharedOverTcp);
suite::every_medium_promises!(cuda, Cuda, if has_device());
suite::every_medium_promises!(tcp_device, TcpDevice, if has_device());
