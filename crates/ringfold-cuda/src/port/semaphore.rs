//! Semaphores: counters of signals between two ranks, one in each direction.
//!
//! Each rank has a word that the peer sets or increments. A semaphore owns that word; several
//! [cursors](crate::port::SemaphoreCursor) may wait for it, each with its own count. The semaphore counts the signals
//! of the host, so that the cursors and proxies that signal through it never decrease the peer's word.
//!
//! A semaphore is signalled either by hosts, which set the word, or by kernels, which increment it, but not by both.

use crate::driver::Driver;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::port::device_word_reader::DeviceWordReader;
use crate::port::locked_pages::LockedPages;
use crate::port::registered_memory::MemoryAt;
use crate::port::{Connection, PortError, RegisteredMemory, Registrable, Transport, TransportFlags};
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use ringfold_fabric::channel;
use ringfold_fabric::memory::Memory;
use ringfold_fabric::shared_memory::SharedMemory;
use std::sync::Arc;

/// The size of the registered memory of a word: a cache line.
const WORD_BYTES: usize = 64;

/// The memory that a semaphore's word is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WordLocation {
    /// Device memory: fastest for waiting kernels; hosts can set it only through the device.
    Device,
    /// Mapped host memory.
    Mapped,
    /// Shared memory of the host. It is mapped for kernels with the first handle.
    Host,
}

/// This rank's half of a future semaphore.
pub struct SemaphoreOffer {
    connection: Connection,
    inbound: Arc<Inbound>,
}

/// A semaphore. Clones share it.
#[derive(Clone)]
pub struct Semaphore {
    inner: Arc<SemaphoreState>,
}

struct SemaphoreState {
    connection: Connection,
    inbound: Arc<Inbound>,
    remote: RegisteredMemory,
    outbound: Mutex<u64>,
}

/// The word that the peer sets.
struct Inbound {
    // Dropped first: pages are unlocked before they are unmapped.
    storage: WordStorage,
    registered: RegisteredMemory,
}

enum WordStorage {
    /// Host memory.
    Host {
        /// The device address of mapped memory.
        device_address: Option<u64>,
        /// The mapping of other memory for kernels, created on first use.
        locked: Mutex<Option<LockedPages>>,
    },
    /// Device memory, which the host reads by copies.
    Device { memory: GpuMemory, reader: Arc<DeviceWordReader> },
}

impl WordLocation {
    /// The best location for a transport: with the data; over TCP mapped if this process uses a device.
    pub fn of(transport: Transport) -> Self {
        match transport {
            Transport::CudaIpc => Self::Device,
            Transport::Ethernet | Transport::Ib(_)
                if Driver::in_use().is_some() && Gpu::unavailable_reason().is_none() =>
            {
                Self::Mapped
            }
            Transport::Ethernet | Transport::Ib(_) | Transport::SharedMemory => Self::Host,
        }
    }
}

impl SemaphoreOffer {
    /// Creates this rank's word, for a connection.
    pub fn new(connection: &Connection, storage: WordLocation) -> Result<Self, PortError> {
        let inbound = Arc::new(Inbound::open(connection, storage)?);
        Ok(Self { connection: connection.clone(), inbound })
    }

    /// The record that the peer needs.
    pub fn record(&self) -> Vec<u8> {
        self.inbound.registered.serialize()
    }

    /// Completes the semaphore with the peer's record.
    pub fn join(&self, theirs: &[u8]) -> Result<Semaphore, PortError> {
        let remote = self.connection.port().remote(theirs)?;
        if remote.size() != WORD_BYTES as u64 {
            return Err(PortError::Argument(format!(
                "invalid semaphore offer from rank {}",
                self.connection.peer()
            )));
        }
        let (connection, inbound) = (self.connection.clone(), self.inbound.clone());
        let inner = SemaphoreState { connection, inbound, remote, outbound: Mutex::new(0) };
        Ok(Semaphore { inner: Arc::new(inner) })
    }
}

impl Semaphore {
    /// Signals the peer, after all earlier writes on the connection.
    pub fn signal(&self) -> Result<(), PortError> {
        // Held until the update is queued: a higher count must not overtake a lower one.
        let mut outbound = self.inner.outbound.lock();
        self.inner.connection.update(&self.inner.remote, 0, *outbound + 1)?;
        *outbound += 1;
        Ok(())
    }

    /// Writes bytes to the peer's memory, then signals it.
    pub(super) fn put_and_signal(
        &self,
        dst: MemoryAt<'_>,
        src: MemoryAt<'_>,
        bytes: u64,
    ) -> Result<(), PortError> {
        let mut outbound = self.inner.outbound.lock();
        let word = ((&self.inner.remote, 0), *outbound + 1);
        self.inner.connection.write_and_update(dst, src, bytes, word)?;
        *outbound += 1;
        Ok(())
    }

    /// The number of signals from the peer.
    pub fn signalled(&self) -> Result<u64, PortError> {
        let Inbound { registered, storage } = &*self.inner.inbound;
        match storage {
            WordStorage::Host { .. } => Ok(host_word(registered).load(Ordering::Acquire)),
            WordStorage::Device { memory, reader } => Ok(reader.read(memory)?),
        }
    }

    /// The TCP connection by which signals arrive, if waiters can make it progress.
    pub(super) fn tcp_channels(&self) -> Option<&channel::Connection> {
        match &self.inner.inbound.storage {
            WordStorage::Host { .. } => self.inner.connection.tcp_channels(),
            WordStorage::Device { .. } => None,
        }
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    /// The device of its word, if it is in device memory.
    pub(crate) fn gpu(&self) -> Option<Gpu> {
        match &self.inner.inbound.storage {
            WordStorage::Device { memory, .. } => Some(memory.gpu()),
            WordStorage::Host { .. } => None,
        }
    }

    /// The device address of this rank's word.
    pub(crate) fn inbound_address(&self) -> Result<u64, PortError> {
        let Inbound { registered, storage } = &*self.inner.inbound;
        match storage {
            WordStorage::Device { memory, .. } => Ok(memory.address()),
            WordStorage::Host { device_address: Some(address), .. } => Ok(*address),
            // Without a device the handle is unusable, but can be created.
            WordStorage::Host { .. } if Gpu::unavailable_reason().is_some() => Ok(registered.data()),
            WordStorage::Host { locked, .. } => {
                let mut locked = locked.lock();
                let locked = match &mut *locked {
                    Some(locked) => locked,
                    none => {
                        let start = host_word(registered).as_ptr().expose_provenance();
                        // SAFETY: the word is in a mapping of its own, which its registration keeps longer than this.
                        none.insert(unsafe { LockedPages::lock(&Gpu::current()?, start, WORD_BYTES) }?)
                    }
                };
                Ok(locked.device_address())
            }
        }
    }

    /// The device address of the peer's word.
    pub(crate) fn remote_address(&self) -> Result<u64, PortError> {
        match self.inner.remote.data() {
            0 => Err(PortError::Unsupported(format!(
                "the semaphore of rank {} is not accessible from kernels: a memory channel needs CUDA IPC",
                self.inner.connection.peer()
            ))),
            address => Ok(address),
        }
    }
}

debug_as!(Semaphore, self => "Semaphore({:?})", self.inner.connection);

impl Inbound {
    fn open(connection: &Connection, storage: WordLocation) -> Result<Self, PortError> {
        let port = connection.port();
        let transports = TransportFlags::from(connection.transport());
        match storage {
            WordLocation::Device => {
                let gpu = connection.gpu()?;
                // Created now: later, allocating might wait for a kernel that waits for a signal.
                let reader = DeviceWordReader::of(&gpu)?;
                let memory = GpuMemory::zeroed(&gpu, WORD_BYTES)?;
                let registered = port.register(Registrable::Device(memory.memory()), transports)?;
                Ok(Self { registered, storage: WordStorage::Device { memory, reader } })
            }
            WordLocation::Mapped => {
                let words = connection.gpu()?.map_host_words(WORD_BYTES)?;
                let (start, device_address) = (words.start(), Some(words.device_address()));
                // SAFETY: the keeper has the words; this process reads them and the peer sets them only atomically.
                let memory = unsafe { Memory::kept(start, WORD_BYTES, Box::new(words)) };
                let registered = port.register(Registrable::Host(memory), transports)?;
                Ok(Self {
                    registered,
                    storage: WordStorage::Host { device_address, locked: Mutex::new(None) },
                })
            }
            WordLocation::Host => {
                let memory = SharedMemory::create(WORD_BYTES)
                    .map_err(|error| PortError::system("allocating memory for a semaphore", &error))?;
                let registered = port.register(Registrable::Shared(memory), transports)?;
                Ok(Self {
                    registered,
                    storage: WordStorage::Host { device_address: None, locked: Mutex::new(None) },
                })
            }
        }
    }
}

/// The word in registered host memory of this process.
fn host_word(registered: &RegisteredMemory) -> &AtomicU64 {
    let address = usize::try_from(registered.data()).unwrap_or(0);
    let word = core::ptr::with_exposed_provenance_mut::<u64>(address);
    // SAFETY: `Inbound::open` has registered it: an aligned cache line of host memory, which lives as long as the
    // registration, and is only accessed atomically.
    unsafe { AtomicU64::from_ptr(word) }
}
