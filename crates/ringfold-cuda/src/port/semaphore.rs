//! Counters of signals between two ranks, one each way.
//!
//! Each side has a word that the other one sets, or adds to, and tells the other side of it. A semaphore owns that word;
//! what waits for it are [faces](crate::port::SemaphoreFace), of which there may be several, each with a count of its
//! own. How often the host has signalled is counted here, so that several faces and proxies that signal through one
//! semaphore never set the other side's word back.
//!
//! One semaphore is signalled either by hosts, which set the word, or by kernels, which add to it; not by both.

use crate::driver::Driver;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::port::device_window::DeviceWindow;
use crate::port::locked_pages::LockedPages;
use crate::port::{Connection, PortError, RegisteredMemory, Registrable, Transport, TransportFlags};
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use ringfold_fabric::channel;
use ringfold_fabric::memory::Memory;
use ringfold_fabric::shared_memory::SharedMemory;
use std::sync::Arc;

/// The size of what is registered for a word: a cache line, so that no two words share one.
const WORD_BYTES: usize = 64;

/// Where the word of a semaphore lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WordPlace {
    /// In the memory of a device. Kernels wait for it fastest; hosts can't set it but by the device.
    Device,
    /// In memory of the host that kernels see, too.
    Mapped,
    /// In memory of the host that processes of the host share. Kernels see it, too, once there is a handle for them.
    Host,
}

/// This side's part of a semaphore to be.
pub struct SemaphoreOffer {
    connection: Connection,
    inbound: Arc<Inbound>,
}

/// A semaphore. Clones are the same one.
#[derive(Clone)]
pub struct Semaphore {
    inner: Arc<Inner>,
}

struct Inner {
    connection: Connection,
    inbound: Arc<Inbound>,
    /// The other side's word.
    remote: RegisteredMemory,
    /// How often the host has signalled.
    outbound: Mutex<u64>,
}

/// The word that the other side signals with.
struct Inbound {
    // Dropped first: pages are unlocked before they go.
    place: Place,
    /// Keeps the word.
    registered: RegisteredMemory,
}

enum Place {
    /// The host can look at it.
    Host {
        /// Where kernels see it, if that is known from the beginning.
        device_address: Option<u64>,
        /// What makes kernels see it, if they are to and did not before.
        locked: Mutex<Option<LockedPages>>,
    },
    /// A device has to be asked.
    Device { memory: GpuMemory, window: Arc<DeviceWindow> },
}

impl WordPlace {
    /// Where it lies best for a connection: with its data. Over TCP it is where kernels see it, too, if there are any in
    /// this process.
    pub fn of(transport: Transport) -> Self {
        match transport {
            Transport::CudaIpc => Self::Device,
            Transport::Ethernet | Transport::Ib(_)
                if Driver::in_use().is_some() && Gpu::why_not().is_none() =>
            {
                Self::Mapped
            }
            Transport::Ethernet | Transport::Ib(_) | Transport::SharedMemory => Self::Host,
        }
    }
}

impl SemaphoreOffer {
    /// Makes this side's word, for a connection.
    pub fn new(connection: &Connection, place: WordPlace) -> Result<Self, PortError> {
        let inbound = Arc::new(Inbound::open(connection, place)?);
        Ok(Self { connection: connection.clone(), inbound })
    }

    /// What the other side has to know.
    pub fn record(&self) -> Vec<u8> {
        self.inbound.registered.serialize()
    }

    /// The semaphore, once the other side has told of its word.
    pub fn join(&self, theirs: &[u8]) -> Result<Semaphore, PortError> {
        let remote = self.connection.port().remote(theirs)?;
        if remote.size() != WORD_BYTES as u64 {
            return Err(PortError::Argument("this is no semaphore of the other side".into()));
        }
        let (connection, inbound) = (self.connection.clone(), self.inbound.clone());
        let inner = Inner { connection, inbound, remote, outbound: Mutex::new(0) };
        Ok(Semaphore { inner: Arc::new(inner) })
    }
}

impl Semaphore {
    /// Signals to the other side, behind all that was written on the connection before.
    pub fn signal(&self) -> Result<(), PortError> {
        // Held until the word is on its way: a higher count must not overtake a lower one.
        let mut outbound = self.inner.outbound.lock();
        self.inner.connection.update(&self.inner.remote, 0, *outbound + 1)?;
        *outbound += 1;
        Ok(())
    }

    /// How often the other side has signalled.
    pub fn signalled(&self) -> Result<u64, PortError> {
        let Inbound { registered, place } = &*self.inner.inbound;
        match place {
            Place::Host { .. } => Ok(host_word(registered).load(Ordering::Acquire)),
            Place::Device { memory, window } => Ok(window.look(memory)?),
        }
    }

    /// What the signals come by, if whoever waits for them can move it.
    pub(super) fn wire(&self) -> Option<&channel::Connection> {
        match &self.inner.inbound.place {
            Place::Host { .. } => self.inner.connection.wire(),
            Place::Device { .. } => None,
        }
    }

    /// The connection that it belongs to.
    pub fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    /// The device that its word is on.
    pub(crate) fn gpu(&self) -> Option<Gpu> {
        match &self.inner.inbound.place {
            Place::Device { memory, .. } => Some(memory.gpu()),
            Place::Host { .. } => None,
        }
    }

    /// Where kernels find this side's word.
    pub(crate) fn inbound_address(&self) -> Result<u64, PortError> {
        let Inbound { registered, place } = &*self.inner.inbound;
        match place {
            Place::Device { memory, .. } => Ok(memory.address()),
            Place::Host { device_address: Some(address), .. } => Ok(*address),
            // Nobody can use the handle where there is no device, but it can be made and looked at.
            Place::Host { .. } if Gpu::why_not().is_some() => Ok(registered.data()),
            Place::Host { locked, .. } => {
                let mut locked = locked.lock();
                let locked = match &mut *locked {
                    Some(locked) => locked,
                    none => {
                        let start = host_word(registered).as_ptr().expose_provenance();
                        // SAFETY: the word is in a mapping of its own, which its registration keeps for longer.
                        none.insert(unsafe { LockedPages::lock(&Gpu::current()?, start, WORD_BYTES) }?)
                    }
                };
                Ok(locked.device_address())
            }
        }
    }

    /// Where kernels find the other side's word.
    pub(crate) fn remote_address(&self) -> Result<u64, PortError> {
        match self.inner.remote.data() {
            0 => Err(PortError::Unsupported(format!(
                "the semaphore of rank {} can't be reached from kernels here: a memory channel needs CUDA IPC",
                self.inner.connection.peer()
            ))),
            address => Ok(address),
        }
    }
}

impl core::fmt::Debug for Semaphore {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "Semaphore({:?})", self.inner.connection)
    }
}

impl Inbound {
    fn open(connection: &Connection, place: WordPlace) -> Result<Self, PortError> {
        let port = connection.port();
        let transports = TransportFlags::from(connection.transport());
        match place {
            WordPlace::Device => {
                let gpu = connection.gpu()?;
                // Made now: what it takes might have to wait for a kernel that runs later, and waits for a signal.
                let window = DeviceWindow::of(&gpu)?;
                let memory = GpuMemory::zeroed(&gpu, WORD_BYTES)?;
                let registered = port.register(Registrable::Device(memory.memory()), transports)?;
                Ok(Self { registered, place: Place::Device { memory, window } })
            }
            WordPlace::Mapped => {
                let words = connection.gpu()?.map_host_words(WORD_BYTES)?;
                let (start, device_address) = (words.start(), Some(words.device_address()));
                // SAFETY: the keeper has the words, which this process only looks at atomically; what the other side
                // sets is set atomically, too.
                let memory = unsafe { Memory::kept(start, WORD_BYTES, Box::new(words)) };
                let registered = port.register(Registrable::Host(memory), transports)?;
                Ok(Self { registered, place: Place::Host { device_address, locked: Mutex::new(None) } })
            }
            WordPlace::Host => {
                let memory = SharedMemory::create(WORD_BYTES)
                    .map_err(|error| PortError::system("making memory for a semaphore", &error))?;
                let registered = port.register(Registrable::Shared(memory), transports)?;
                Ok(Self { registered, place: Place::Host { device_address: None, locked: Mutex::new(None) } })
            }
        }
    }
}

/// The word in registered memory of the host, of this process.
fn host_word(registered: &RegisteredMemory) -> &AtomicU64 {
    let address = usize::try_from(registered.data()).unwrap_or(0);
    let word = core::ptr::with_exposed_provenance_mut::<u64>(address);
    // SAFETY: it is memory that `Inbound::open` has registered: a line of the host's memory, aligned to more than a
    // word, which lives as long as the registration, and is only ever used atomically.
    unsafe { AtomicU64::from_ptr(word) }
}
