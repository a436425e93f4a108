//! Memory that the other side of a connection may write, or that is read for it.

use super::error::PortError;
use super::memory_record::MemoryRecord;
use super::transport::{Transport, TransportFlags};
use crate::{CudaError, DeviceMemory, Gpu, IpcMemory, IpcRecord};
use parking_lot::Mutex;
use ringfold_fabric::channel::{Handle, Segment};
use ringfold_fabric::memory::Memory;
use ringfold_fabric::shared_memory::{FileTicket, MappedMemory, SharedMemory};
use ringfold_fabric::{host, random};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, OnceLock, Weak};

/// What can be registered. Whatever keeps it is let go of when the last registration is gone, by whichever thread
/// holds it. Several registrations may lie in one allocation, and overlap.
#[derive(Debug)]
pub enum Registrable {
    /// Memory of the host that only this process has.
    Host(Memory),
    /// Memory of the host that lies in a file, so that others of the host can map it.
    Shared(SharedMemory),
    /// Memory of a device.
    Device(DeviceMemory),
}

/// Registered memory: of this process, or of another one that has told of it. Clones are the same memory.
#[derive(Clone)]
pub struct RegisteredMemory {
    pub(super) inner: Arc<Registered>,
}

pub(super) struct Registered {
    pub(super) record: MemoryRecord,
    reach: Reach,
    /// Why other processes can't open it, if they can't.
    unshared: Option<CudaError>,
}

/// How it is reached from here.
enum Reach {
    /// It is this process's, and kept by what is registered.
    Own {
        _kept: Kept,
        gpu: Option<Gpu>,
    },
    Mapped(Arc<MappedMemory>),
    Opened(IpcMemory, Gpu),
    /// It is not, for this reason.
    Nowhere(String),
}

/// What keeps memory of this process.
pub(super) enum Kept {
    /// Nobody writes it over TCP.
    Memory(#[expect(dead_code, reason = "held for its drop")] Memory),
    Device(#[expect(dead_code, reason = "held for its drop")] DeviceMemory),
    Segment(#[expect(dead_code, reason = "held for its drop")] Segment),
    /// And a file that others map it from, as long as it is open here.
    File(
        #[expect(dead_code, reason = "held for its drop")] Box<Kept>,
        #[expect(dead_code, reason = "as above")] OwnedFd,
    ),
}

/// Where bytes are, as far as this process can get at them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Host(*mut u8),
    Device(Gpu, u64),
}

/// What this process has registered, by its number: whoever is told of it within the process gets the very same.
static REGISTERED: LazyLock<Mutex<HashMap<u64, Weak<Registered>>>> = LazyLock::new(Mutex::default);

/// Memory of others that is mapped, by the file and the place in it.
static MAPPED: LazyLock<Mutex<HashMap<[u8; FileTicket::BYTES], Weak<MappedMemory>>>> =
    LazyLock::new(Mutex::default);

/// What is new about memory that is being registered.
pub(super) struct Registration {
    pub(super) port: u128,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) transports: TransportFlags,
    pub(super) gpu: Option<Gpu>,
    pub(super) file: Option<(OwnedFd, FileTicket)>,
    pub(super) segment: Option<Handle>,
    pub(super) kept: Kept,
}

impl RegisteredMemory {
    /// Makes memory of this process known.
    pub(super) fn register(new: Registration) -> io::Result<Self> {
        let Registration { port, address, bytes, transports, gpu, file, segment, kept } = new;
        let id = u64::from_le_bytes(random::bytes()?);
        let mut unshared = None;
        let mut ipc = None;
        if gpu.is_some() && bytes > 0 && transports.has(Transport::CudaIpc) {
            match IpcRecord::export(address, usize::try_from(bytes).unwrap_or(usize::MAX)) {
                Ok(record) => ipc = Some(record.encode()),
                Err(error) => unshared = Some(error),
            }
        }
        let ticket = file.as_ref().map(|(_, ticket)| *ticket);
        let record = MemoryRecord {
            host: this_host(),
            process: process(),
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
        let kept = match file {
            Some((file, _)) => Kept::File(Box::new(kept), file),
            None => kept,
        };
        let inner = Arc::new(Registered { record, reach: Reach::Own { _kept: kept, gpu }, unshared });
        REGISTERED.lock().insert(id, Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// The memory that someone has told of.
    pub(super) fn remote(record: &[u8]) -> Result<Self, PortError> {
        let record = MemoryRecord::decode(record)
            .ok_or_else(|| PortError::Argument("these bytes are no record of registered memory".into()))?;
        if record.process == process() {
            let known = REGISTERED.lock().get(&record.id).and_then(Weak::upgrade);
            let gone = || {
                PortError::Argument(format!("the memory at {:#x} is registered no longer", record.address))
            };
            return known.map(|inner| Self { inner }).ok_or_else(gone);
        }
        let reach = Reach::of(&record);
        Ok(Self { inner: Arc::new(Registered { record, reach, unshared: None }) })
    }

    /// What is told to the other side.
    pub fn serialize(&self) -> Vec<u8> {
        self.inner.record.encode()
    }

    /// Nothing, or why processes of this host can't open it although it was registered for that.
    pub fn check_sharable(&self) -> Result<(), PortError> {
        self.inner.unshared.clone().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Where it can be read and written from here; 0 if it can't. Memory of a device is read and written by that.
    pub fn data(&self) -> u64 {
        match &self.inner.reach {
            Reach::Own { .. } => self.inner.record.address,
            Reach::Mapped(mapped) => mapped.start().expose_provenance() as u64,
            Reach::Opened(opened, _) => opened.address(),
            Reach::Nowhere(_) => 0,
        }
    }

    /// How many bytes.
    pub fn size(&self) -> u64 {
        self.inner.record.bytes
    }

    /// The ways that it was registered for.
    pub fn transports(&self) -> TransportFlags {
        self.inner.record.transports
    }

    /// Whether it is memory of a device.
    pub fn is_device(&self) -> bool {
        self.inner.record.is_device
    }

    /// Where some bytes of it are.
    pub(super) fn place(&self, offset: u64) -> Result<Place, PortError> {
        let address = self.data() + offset;
        let host = || Place::Host(core::ptr::with_exposed_provenance_mut(address as usize));
        match &self.inner.reach {
            Reach::Own { gpu: Some(gpu), .. } | Reach::Opened(_, gpu) => Ok(Place::Device(*gpu, address)),
            Reach::Own { gpu: None, .. } | Reach::Mapped(_) => Ok(host()),
            Reach::Nowhere(why) => Err(PortError::Unsupported(why.clone())),
        }
    }

    /// Nothing, or the words for whoever wants bytes that it does not have.
    pub(super) fn check(&self, offset: u64, bytes: u64) -> Result<(), PortError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(PortError::Argument(format!(
                "{bytes} bytes at {offset} are not within registered memory of {} bytes",
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
            "the word at {offset} is not aligned: its address is no multiple of 8"
        )))
    }
}

impl Reach {
    /// How memory of another process can be reached.
    fn of(record: &MemoryRecord) -> Self {
        if record.host != this_host() {
            return Self::Nowhere("memory of another host can't be reached but by Ethernet".into());
        }
        let (by_memory, by_device) = (Transport::SharedMemory, Transport::CudaIpc);
        if let Some(ticket) = record.file.filter(|_| record.transports.has(by_memory) && host::may_share()) {
            match map(&ticket) {
                Ok(mapped) => return Self::Mapped(mapped),
                Err(error) => {
                    return Self::Nowhere(format!("another process's memory can't be mapped: {error}"));
                }
            }
        }
        if record.is_device && record.transports.has(by_device) {
            return Self::open(record).unwrap_or_else(|error| Self::Nowhere(error.to_string()));
        }
        Self::Nowhere("memory of another process can't be reached unless it is shared".into())
    }

    fn open(record: &MemoryRecord) -> Result<Self, CudaError> {
        let lacking =
            || CudaError::Unsupported("its process could not share this memory of a CUDA device".into());
        let ipc = record.ipc.as_deref().and_then(IpcRecord::decode).ok_or_else(lacking)?;
        if ipc.bytes != record.bytes {
            return Err(CudaError::Argument("the record of this memory contradicts itself".into()));
        }
        let gpu = Gpu::current()?;
        Ok(Self::Opened(IpcMemory::open(&ipc, &gpu)?, gpu))
    }
}

/// Maps memory of another process, once for all who have it.
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
        if matches!(self.reach, Reach::Own { .. }) {
            REGISTERED.lock().remove(&self.record.id);
        }
    }
}

// SAFETY: an address; who may use it when is ruled by those who hold the memory.
unsafe impl Send for Place {}

/// The host, as those that may share memory number it.
pub(super) fn this_host() -> u64 {
    static HOST: OnceLock<u64> = OnceLock::new();
    *HOST.get_or_init(host::host_id)
}

/// A number that no other process has, and that a fork does not share.
pub(super) fn process() -> u128 {
    static RANDOM: OnceLock<u128> = OnceLock::new();
    // Without chance it is a number that is most likely alone.
    let random = RANDOM.get_or_init(|| random::id().unwrap_or_else(|_| u128::from(host::nobodys())));
    random.wrapping_add(u128::from(std::process::id()))
}

impl core::fmt::Debug for RegisteredMemory {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let MemoryRecord { bytes, address, transports, .. } = &self.inner.record;
        write!(out, "RegisteredMemory({bytes} bytes at {address:#x} for {transports:?})")
    }
}
