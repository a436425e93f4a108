//! What every medium promises, tried on connections of ports: over TCP, through shared memory, and by a device.
//!
//! Both sides are threads of one process here, where told memory is the very memory. So that mapping is tried too, one pair
//! takes what it is told for another process's. What processes open of each other's devices is tried from Python.

use crate::{skip, suite};

use ringfold_cuda::port::{
    Connection, Port, PortError, RegisteredMemory, Registrable, SemaphoreFace, SemaphoreKind, SemaphoreOffer,
    Transport, TransportFlags, Wait, WordPlace,
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

/// Where memory lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ground {
    /// In this process alone.
    Private,
    /// In a file.
    File,
    /// In a file, and told as if it were another process's.
    ForeignFile,
    /// As above, without a file: it can't be reached but over TCP.
    Foreign,
    /// On a device.
    Device,
}

/// One rank.
struct Rank {
    // Dropped in this order: whoever lets go of everything has left.
    semaphores: BTreeMap<u32, SemaphoreFace>,
    connection: Connection,
    port: Port,
    ground: Ground,
}

fn pair(transport: Transport, ground: Ground) -> (Rank, Rank) {
    let open = |name| Port::open(name, Some("127.0.0.1".parse().unwrap())).unwrap();
    let (zero, one) = (open("rank 0"), open("rank 1"));
    let late = Instant::now() + suite::LONG;
    let (hers, his) = (zero.offer(transport, None).unwrap(), one.offer(transport, None).unwrap());
    let to_one = zero.connect(&hers, &his.record(), 1, late).unwrap();
    let to_zero = one.connect(&his, &hers.record(), 0, late).unwrap();
    let mut semaphores = (BTreeMap::new(), BTreeMap::new());
    for channel in CHANNELS {
        let offer = |connection| SemaphoreOffer::new(connection, WordPlace::of(transport)).unwrap();
        let (hers, his) = (offer(&to_one), offer(&to_zero));
        let tell = |offer: &SemaphoreOffer| told(offer.record(), ground);
        let face = |joined| SemaphoreFace::new(&joined, SemaphoreKind::HostToHost);
        semaphores.0.insert(channel, face(hers.join(&tell(&his)).unwrap()));
        semaphores.1.insert(channel, face(his.join(&tell(&hers)).unwrap()));
    }
    let rank = |port, connection, semaphores| Rank { semaphores, connection, port, ground };
    (rank(zero, to_one, semaphores.0), rank(one, to_zero, semaphores.1))
}

/// A record, perhaps as if another process had made it: its number begins with the 17th byte.
fn told(mut record: Vec<u8>, ground: Ground) -> Vec<u8> {
    if matches!(ground, Ground::ForeignFile | Ground::Foreign) {
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
    /// What memory of devices is copied with.
    static TOOLS: RefCell<Option<(Stream, HostWords)>> = const { RefCell::new(None) };
}

/// Registered memory, and a device's besides.
struct Laid {
    registered: RegisteredMemory,
    device: Option<GpuMemory>,
}

impl Laid {
    /// Copies between the device and the host, and waits for it.
    fn copy(&self, at: usize, bytes: usize, user: impl FnOnce(&HostWords, &dyn Fn(bool))) {
        let Some(memory) = &self.device else { return };
        let (gpu, there) = (memory.gpu(), memory.address() + at as u64);
        TOOLS.with_borrow_mut(|tools| {
            if tools.as_ref().is_none_or(|(_, words)| words.len() < bytes) {
                let words = gpu.map_host_words(bytes.next_power_of_two()).unwrap();
                *tools = Some((gpu.create_stream().unwrap(), words));
            }
            let (stream, words) = tools.as_ref().unwrap();
            user(words, &|is_down| {
                let here = words.device_address();
                let (to, from) = if is_down { (here, there) } else { (there, here) };
                // SAFETY: both have so many bytes, and live until the copy is done.
                unsafe { stream.copy(to, from, bytes) }.unwrap();
                stream.synchronize(Instant::now() + suite::LONG).unwrap();
            });
        });
    }

    fn place(&self, at: usize) -> *mut u8 {
        assert!(self.device.is_none());
        core::ptr::with_exposed_provenance_mut(self.registered.data() as usize + at)
    }
}

impl Side for Rank {
    type Memory = Laid;
    type Remote = RegisteredMemory;

    fn register(&self, bytes: Vec<u8>) -> Laid {
        if self.ground == Ground::Device {
            let memory = GpuMemory::zeroed(&Gpu::open(0).unwrap(), bytes.len()).unwrap();
            let registered = self.port.register(Registrable::Device(memory.memory()), self.flags()).unwrap();
            let laid = Laid { registered, device: Some(memory) };
            self.write(&laid, 0, &bytes);
            return laid;
        }
        let what = match self.ground {
            Ground::File | Ground::ForeignFile => {
                Registrable::Shared(SharedMemory::create(bytes.len()).unwrap())
            }
            _ => Registrable::Host(Memory::zeroed(bytes.len())),
        };
        let laid = Laid { registered: self.port.register(what, self.flags()).unwrap(), device: None };
        self.write(&laid, 0, &bytes);
        laid
    }

    fn tell(&self, memory: &Laid) -> Vec<u8> {
        told(memory.registered.serialize(), self.ground)
    }

    fn hear(&self, record: &[u8]) -> RegisteredMemory {
        let heard = self.port.remote(record).unwrap();
        assert_eq!(heard.data() == 0, self.ground == Ground::Foreign);
        heard
    }

    fn read(&self, memory: &Laid, at: usize, into: &mut [u8]) {
        if memory.device.is_some() {
            memory.copy(at, into.len(), |words, go| {
                go(true);
                // SAFETY: there are so many bytes, and the copy is done.
                unsafe { core::ptr::copy_nonoverlapping(words.start(), into.as_mut_ptr(), into.len()) };
            });
            return;
        }
        // SAFETY: the memory has so many bytes from there on. What is written to it meanwhile is some of both.
        unsafe { core::ptr::copy(memory.place(at), into.as_mut_ptr(), into.len()) };
    }

    fn write(&self, memory: &Laid, at: usize, from: &[u8]) {
        if memory.device.is_some() {
            memory.copy(at, from.len(), |words, go| {
                // SAFETY: there are so many bytes, which nobody else uses yet.
                unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), words.start(), from.len()) };
                go(false);
            });
            return;
        }
        // SAFETY: as above.
        unsafe { core::ptr::copy(from.as_ptr(), memory.place(at), from.len()) };
    }

    fn word(&self, memory: &Laid, at: usize) -> u64 {
        if memory.device.is_some() {
            let mut bytes = [0; 8];
            self.read(memory, at, &mut bytes);
            return u64::from_le_bytes(bytes);
        }
        // SAFETY: it is within the memory, and aligned.
        unsafe { AtomicU64::from_ptr(memory.place(at).cast()) }.load(Ordering::Acquire)
    }

    fn put(&self, from: &Laid, range: Range<usize>, to: &RegisteredMemory, at: u64) -> Result<(), Failure> {
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
    ($($medium:ident = $transport:expr, $ground:expr;)*) => {$(
        struct $medium;

        impl Pair for $medium {
            type Side = Rank;
            const ANN: &str = "rank 0";
            const BOB: &str = "rank 1";

            fn pair() -> (Rank, Rank) {
                pair($transport, $ground)
            }
        }
    )*};
}

media! {
    Tcp = Transport::Ethernet, Ground::Private;
    TcpToOthers = Transport::Ethernet, Ground::Foreign;
    Shared = Transport::SharedMemory, Ground::File;
    SharedMapped = Transport::SharedMemory, Ground::ForeignFile;
    SharedBeside = Transport::SharedMemory, Ground::Foreign;
    Cuda = Transport::CudaIpc, Ground::Device;
    TcpOfDevices = Transport::Ethernet, Ground::Device;
}

impl Guarded for TcpToOthers {
    fn forged(record: &[u8], bytes: u64) -> Vec<u8> {
        // The size is told twice: of the memory, and of what stands for it over TCP.
        let mut record = record.to_vec();
        let end = record.len();
        record[64..72].copy_from_slice(&bytes.to_le_bytes());
        record[end - 8..].copy_from_slice(&bytes.to_le_bytes());
        record
    }
}

/// Whether there is a device; where there is none, that is said.
fn has_device() -> bool {
    match Gpu::why_not() {
        None => true,
        Some(why) => {
            skip::tell("media of CUDA devices", &why.to_string());
            false
        }
    }
}

suite::every_medium_promises!(tcp, Tcp);
suite::every_medium_promises!(tcp_to_others, TcpToOthers);
suite::queueing_media_promise!(tcp_queue, Tcp);
suite::guarded_media_promise!(tcp_guard, TcpToOthers);
suite::every_medium_promises!(shared_memory, Shared);
suite::every_medium_promises!(shared_memory_mapped, SharedMapped);
suite::every_medium_promises!(shared_memory_beside, SharedBeside);
suite::every_medium_promises!(cuda, Cuda, if has_device());
suite::every_medium_promises!(tcp_of_devices, TcpOfDevices, if has_device());
