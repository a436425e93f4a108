//! Registered memory: memory that connections read and write.

use super::error::PortError;
use super::memory_record::MemoryRecord;
use super::transport::{Transport, TransportFlags};
use crate::{CudaError, DeviceMemory, Gpu, IpcMemory, IpcRecord};
use parking_lot::Mutex;
use ringfold_fabric::channel::{Handle, Segment};
use ringfold_fabric::memory::{Memory, RawMemory};
use ringfold_fabric::shared_memory::{FileTicket, MappedMemory, SharedMemory};
use ringfold_fabric::{host, random};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, OnceLock, Weak};

/// Memory to register. Its owner is dropped with the last registration, by any thread. Registrations may overlap.
#[derive(Debug)]
pub enum Registrable {
    /// Private host memory.
    Host(Memory),
    /// Host memory in a file, which other processes of the host can map.
    Shared(SharedMemory),
    /// Device memory.
    Device(DeviceMemory),
}

/// Registered memory of this process or of a peer. Clones share the memory.
#[derive(Clone)]
pub struct RegisteredMemory {
    pub(super) inner: Arc<Registered>,
}

/// Memory and an offset in it.
pub(super) type MemoryAt<'a> = (&'a RegisteredMemory, u64);

pub(super) struct Registered {
    pub(super) record: MemoryRecord,
    access: Access,
    /// Why other processes cannot open it, if so.
    ipc_error: Option<CudaError>,
}

/// How this process can access the memory.
enum Access {
    /// Memory of this process.
    Own {
        _owner: MemoryOwner,
        gpu: Option<Gpu>,
    },
    Mapped(Arc<MappedMemory>),
    Opened(IpcMemory, Gpu),
    /// Not directly, for this reason.
    Unreachable(String),
}

/// The owner of registered memory of this process.
pub(super) enum MemoryOwner {
    /// Not writable over TCP.
    Memory(#[expect(dead_code, reason = "held for its drop")] RawMemory),
    Device(#[expect(dead_code, reason = "held for its drop")] DeviceMemory),
    Segment(#[expect(dead_code, reason = "held for its drop")] Segment),
    /// With the file that other processes map while it is open.
    File(
        #[expect(dead_code, reason = "held for its drop")] Box<MemoryOwner>,
        #[expect(dead_code, reason = "as above")] OwnedFd,
    ),
}

/// An address that this process can access.
#[derive(Clone, Copy, Debug)]
pub(super) enum LocalAddress {
    Host(*mut u8),
    Device(Gpu, u64),
}

impl LocalAddress {
    /// The address, for a stream.
    pub(super) fn address(self) -> u64 {
        match self {
            Self::Host(start) => start.expose_provenance() as u64,
            Self::Device(_, address) => address,
        }
    }

    /// The device that it is mapped for; none for host memory.
    pub(super) fn ordinal(self) -> Option<i32> {
        match self {
            Self::Host(_) => None,
            Self::Device(gpu, _) => Some(gpu.ordinal()),
        }
    }
}

/// The memory registered by this process, by id: its records resolve to the same registration.
static REGISTERED: LazyLock<Mutex<HashMap<u64, Weak<Registered>>>> = LazyLock::new(Mutex::default);

/// Mapped memory of other processes, by its encoded file ticket.
static MAPPED: LazyLock<Mutex<HashMap<[u8; FileTicket::BYTES], Weak<MappedMemory>>>> =
    LazyLock::new(Mutex::default);

pub(super) struct Registration {
    pub(super) port: u128,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) transports: TransportFlags,
    pub(super) gpu: Option<Gpu>,
    pub(super) file: Option<(OwnedFd, FileTicket)>,
    pub(super) segment: Option<Handle>,
    pub(super) owner: MemoryOwner,
}

impl RegisteredMemory {
    pub(super) fn register(new: Registration) -> io::Result<Self> {
        let Registration { port, address, bytes, transports, gpu, file, segment, owner } = new;
        let id = u64::from_le_bytes(random::bytes()?);
        let mut ipc_error = None;
        let mut ipc = None;
        if gpu.is_some() && bytes > 0 && transports.has(Transport::CudaIpc) {
            match IpcRecord::export(address, usize::try_from(bytes).unwrap_or(usize::MAX)) {
                Ok(record) => ipc = Some(record.encode()),
                Err(error) => ipc_error = Some(error),
            }
        }
        let ticket = file.as_ref().map(|(_, ticket)| *ticket);
        let record = MemoryRecord {
            host: this_host(),
            process: process_id(),
            port,
            id,
            address,
            bytes,
            transports,
            is_device: gpu.is_some(),
            file: ticket,
            segment,
            ipc,
        };
        let owner = match file {
            Some((file, _)) => MemoryOwner::File(Box::new(owner), file),
            None => owner,
        };
        let inner = Arc::new(Registered { record, access: Access::Own { _owner: owner, gpu }, ipc_error });
        REGISTERED.lock().insert(id, Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    pub(super) fn remote(record: &[u8]) -> Result<Self, PortError> {
        let record = MemoryRecord::decode(record)
            .ok_or_else(|| PortError::Argument("invalid record of registered memory".into()))?;
        if record.process == process_id() {
            let known = REGISTERED.lock().get(&record.id).and_then(Weak::upgrade);
            let gone = || {
                PortError::Argument(format!("the memory at {:#x} is no longer registered", record.address))
            };
            return known.map(|inner| Self { inner }).ok_or_else(gone);
        }
        let access = Access::of(&record);
        Ok(Self { inner: Arc::new(Registered { record, access, ipc_error: None }) })
    }

    /// Encodes the record for peers.
    pub fn serialize(&self) -> Vec<u8> {
        self.inner.record.encode()
    }

    /// Fails if other processes cannot open the memory although it is registered for CUDA IPC.
    pub fn check_sharable(&self) -> Result<(), PortError> {
        self.inner.ipc_error.clone().map_or(Ok(()), |error| Err(error.into()))
    }

    /// The address in this process (a device address for device memory); 0 if it is not accessible.
    pub fn data(&self) -> u64 {
        match &self.inner.access {
            Access::Own { .. } => self.inner.record.address,
            Access::Mapped(mapped) => mapped.start().expose_provenance() as u64,
            Access::Opened(opened, _) => opened.address(),
            Access::Unreachable(_) => 0,
        }
    }

    /// The number of bytes.
    pub fn size(&self) -> u64 {
        self.inner.record.bytes
    }

    /// The transports that it is registered for.
    pub fn transports(&self) -> TransportFlags {
        self.inner.record.transports
    }

    /// Whether it is device memory.
    pub fn is_device(&self) -> bool {
        self.inner.record.is_device
    }

    pub(super) fn local_address(&self, offset: u64) -> Result<LocalAddress, PortError> {
        let address = self.data() + offset;
        let host = || LocalAddress::Host(core::ptr::with_exposed_provenance_mut(address as usize));
        match &self.inner.access {
            Access::Own { gpu: Some(gpu), .. } | Access::Opened(_, gpu) => {
                Ok(LocalAddress::Device(*gpu, address))
            }
            Access::Own { gpu: None, .. } | Access::Mapped(_) => Ok(host()),
            Access::Unreachable(why) => Err(PortError::Unsupported(why.clone())),
        }
    }

    /// Fails if the range is out of bounds.
    pub(super) fn check(&self, offset: u64, bytes: u64) -> Result<(), PortError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(PortError::Argument(format!(
                "{bytes} bytes at offset {offset} are out of bounds of registered memory of {} bytes",
                self.size()
            ))),
        }
    }

    /// As [`RegisteredMemory::check`], for a word.
    pub(super) fn check_word(&self, offset: u64) -> Result<(), PortError> {
        self.check(offset, 8)?;
        if (self.inner.record.address + offset).is_multiple_of(8) {
            return Ok(());
        }
        Err(PortError::Argument(format!(
            "the word at offset {offset} is not aligned: its address must be a multiple of 8"
        )))
    }
}

impl Access {
    fn of(record: &MemoryRecord) -> Self {
        if record.host != this_host() {
            return Self::Unreachable("memory of another host is accessible only over Ethernet".into());
        }
        let (by_memory, by_device) = (Transport::SharedMemory, Transport::CudaIpc);
        if let Some(ticket) = record.file.filter(|_| record.transports.has(by_memory) && host::may_share()) {
            match map(&ticket) {
                Ok(mapped) => return Self::Mapped(mapped),
                Err(error) => {
                    return Self::Unreachable(format!("failed to map memory of another process: {error}"));
                }
            }
        }
        if record.is_device && record.transports.has(by_device) {
            return Self::open(record).unwrap_or_else(|error| Self::Unreachable(error.to_string()));
        }
        Self::Unreachable("memory of another process is accessible only if it is shared".into())
    }

    fn open(record: &MemoryRecord) -> Result<Self, CudaError> {
        let lacking =
            || CudaError::Unsupported("the owner of this CUDA memory could not share it by CUDA IPC".into());
        let ipc = record.ipc.as_deref().and_then(IpcRecord::decode).ok_or_else(lacking)?;
        if ipc.bytes != record.bytes {
            return Err(CudaError::Argument(
                "invalid record of registered memory: contradictory sizes".into(),
            ));
        }
        let gpu = Gpu::current()?;
        Ok(Self::Opened(IpcMemory::open(&ipc, &gpu)?, gpu))
    }
}

/// Maps memory of another process; each memory is mapped once.
fn map(ticket: &FileTicket) -> io::Result<Arc<MappedMemory>> {
    let key = ticket.encode();
    if let Some(mapped) = MAPPED.lock().get(&key).and_then(Weak::upgrade) {
        return Ok(mapped);
    }
    let mapped = Arc::new(MappedMemory::open(ticket)?);
    let mut all = MAPPED.lock();
    all.retain(|_, mapped| mapped.strong_count() > 0);
    Ok(match all.get(&key).and_then(Weak::upgrade) {
        // Another thread was faster.
        Some(other) => other,
        None => {
            all.insert(key, Arc::downgrade(&mapped));
            mapped
        }
    })
}

impl Drop for Registered {
    fn drop(&mut self) {
        if matches!(self.access, Access::Own { .. }) {
            REGISTERED.lock().remove(&self.record.id);
        }
    }
}

// SAFETY: a plain address; the holders of the memory govern its use.
unsafe impl Send for LocalAddress {}

/// The id of this host, the same for processes that may share memory.
pub(super) fn this_host() -> u64 {
    static HOST: OnceLock<u64> = OnceLock::new();
    *HOST.get_or_init(host::host_id_without_builder)
}

/// A unique id of this process, which a fork does not share.
pub(crate) fn process_id() -> u128 {
    static RANDOM: OnceLock<u128> = OnceLock::new();
    // Without a source of randomness it is a number that is most likely unique.
    let random = RANDOM.get_or_init(|| random::id().unwrap_or_else(|_| u128::from(host::unshared_host_id())));
    random.wrapping_add(u128::from(std::process::id()))
}

debug_as!(
    RegisteredMemory,
    self => "RegisteredMemory({} bytes at {:#x} for {:?})",
    self.size(), self.inner.record.address, self.transports()
);
